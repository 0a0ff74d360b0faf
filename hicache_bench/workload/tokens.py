"""From segments to tokens or text: the only place where a key becomes content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hicache_bench.errors import UsageError
from hicache_bench.records import Plan, Prompt, Segment
from hicache_bench.workload.english import EMPTY, WORDS, word_matrix

Ids = NDArray[np.uint32]

HEAD_TOKENS = 16
"""First pages are compared over at least this many tokens: a page may be one token (the CUDA default)."""
_GAP = np.uint32(0xFFFFFFFF)
_MAX_REKEYS = 1000


class TokenSpace:
    """Content by key. Equal (nonce, key) give equal tokens in every process; segments are prefix-stable.

    Build one with `english` or `random_ids`. The only state is the set of keys that `check_unique` moved.
    """

    def __init__(self, nonce: str, pad: Ids | None, vocab: tuple[int, int] | None) -> None:
        self._nonce = nonce
        self._pad = pad
        self._vocab = vocab
        self._moved: dict[str, int] = {}
        self._mean = 0.0 if pad is None else _tokens_per_sentence(pad)

    @classmethod
    def english(cls, word_ids: Sequence[Sequence[int]], nonce: str) -> TokenSpace:
        """English in a tokenizer's ids. `word_ids` is the tokenization of each of `english.WORDS`, in order,
        without special tokens (a first id that every answer shares is taken for one and removed).

        Raises UsageError when the count differs or a word has no tokens.
        """
        if len(word_ids) != len(WORDS):
            raise UsageError(f"the tokenizer answered for {len(word_ids)} of {len(WORDS)} words")
        ids = [list(word) for word in word_ids]
        if all(len(word) > 1 and word[0] == ids[0][0] for word in ids):
            ids = [word[1:] for word in ids]
        for text, word in zip(WORDS, ids, strict=True):
            if not word:
                raise UsageError(f"the tokenizer gives no tokens for {text!r}; use source = \"random_ids\"")
        pad = np.full((len(WORDS) + 1, max(map(len, ids))), _GAP, dtype=np.uint32)
        for row, word in enumerate(ids):
            pad[row, : len(word)] = word
        return cls(nonce, pad, None)

    @classmethod
    def random_ids(cls, lo: int, hi: int, nonce: str) -> TokenSpace:
        """Uniform random ids with lo <= id < hi. Raises UsageError when that is no range of 32-bit ids."""
        if not 0 <= lo < hi <= 2**32 - 1:
            raise UsageError(f"random ids from {lo} to {hi}: needs 0 <= lo < hi < 2^32")
        return cls(nonce, None, (lo, hi))

    def tokens(self, segment: Segment) -> Ids:
        """Exactly `segment.n_tokens` ids, uint32."""
        source, n = self._source(segment.key), segment.n_tokens
        if self._vocab is not None:
            return _random(source, n, *self._vocab)
        assert self._pad is not None
        sentences = int(n / self._mean * 1.15) + 2
        while True:
            # mode="clip" lets numpy skip a bounds-checked buffer; every id is in range
            flat = self._pad.take(word_matrix(source, sentences), axis=0, mode="clip").ravel()
            ids: Ids = flat[flat != _GAP]
            if len(ids) >= n:
                return ids[:n]
            sentences *= 2

    def prompt_ids(self, prompt: Prompt) -> Ids:
        """All segments of a prompt joined. Raises UsageError for a prompt of literal text."""
        if not prompt.segments:
            raise UsageError("a prompt of literal text has no token ids before the server has seen it; "
                             'use prompts.format = "text" or the chat API')
        parts = [self.tokens(segment) for segment in prompt.segments]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def text(self, prompt: Prompt) -> str:
        """The prompt as text; each segment is cut at the word that reaches its `n_tokens`, so the count is
        approximate. Raises UsageError when the content is random ids."""
        if prompt.text is not None:
            return prompt.text
        if self._pad is None:
            raise UsageError('random ids have no text; use prompts.source = "english"')
        return "".join(self._segment_text(segment) for segment in prompt.segments)

    def move(self, key: str) -> None:
        """Give `key` other content, the next in a fixed series."""
        self._moved[key] = self._moved.get(key, 0) + 1

    def _segment_text(self, segment: Segment) -> str:
        assert self._pad is not None
        counts = (self._pad != _GAP).sum(axis=1)
        sentences = int(segment.n_tokens / self._mean * 1.15) + 2
        while True:
            ids = word_matrix(self._source(segment.key), sentences).ravel()
            ids = ids[ids != EMPTY]
            reached = np.cumsum(counts[ids])
            if reached[-1] >= segment.n_tokens:
                last = int(np.searchsorted(reached, segment.n_tokens))
                return "".join(WORDS[i] for i in ids[: last + 1]) if segment.n_tokens else ""
            sentences *= 2

    def _source(self, key: str) -> bytes:
        moved = self._moved.get(key, 0) if self._moved else 0
        return f"{self._nonce}\0{key}\0{moved}".encode()


def check_unique(space: TokenSpace, plan: Plan, page_size: int) -> int:
    """Make the first pages of all distinct root segments pairwise different; returns how many there are.

    A root is the first segment of a turn that starts a context. Two that agree in their first
    max(page_size, 16) tokens would share cache by accident, so the later one gets other content, in a way
    that depends on the plan alone. Raises UsageError when the vocabulary is too small to tell them apart.
    """
    n, seen = max(page_size, HEAD_TOKENS), set[bytes]()
    roots = dict.fromkeys(turn.prompt.segments[0].key for session in plan.sessions for turn in session.turns
                          if turn.prompt.segments and not turn.live)
    for key in roots:
        for _ in range(_MAX_REKEYS):
            # a short digest keeps 200,000 heads small; 16 bytes do not collide by chance
            head = hashlib.blake2b(space.tokens(Segment(key, n)).tobytes(), digest_size=16).digest()
            if head not in seen:
                break
            space.move(key)
        else:
            raise UsageError(f"{len(roots)} prompts need different first {n} tokens, and the vocabulary does "
                             "not give that many; widen prompts.vocab")
        seen.add(head)
    return len(roots)


def load_tokenizer(path: Path | str) -> Callable[[Sequence[str]], list[list[int]]]:
    """A tokenizer.json as a function from strings to ids, special tokens left out.

    Needs the optional `tokenizers` package. Raises UsageError when it is missing or the file is no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("a local tokenizer file needs the tokenizers package: "
                         "pip install 'hicache-bench[tokenizer]'") from None
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises bare Exception
        raise UsageError(f"{file}: not readable as a tokenizer.json: {error}") from None

    def encode(texts: Sequence[str]) -> list[list[int]]:
        batch = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [list(one.ids) for one in batch]

    return encode


def _random(source: bytes, n: int, lo: int, hi: int) -> Ids:
    drawn = np.frombuffer(hashlib.shake_128(source).digest(4 * n), dtype="<u4").astype(np.uint64)
    ids: Ids = (((drawn * np.uint64(hi - lo)) >> np.uint64(32)) + np.uint64(lo)).astype(np.uint32)
    return ids


def _tokens_per_sentence(pad: Ids) -> float:
    flat = pad.take(word_matrix(b"how long is a sentence", 256), axis=0)
    return float((flat != _GAP).sum()) / 256


