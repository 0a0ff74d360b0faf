"""From segments to page keys, without making a single token.

A page is named by what it holds, (segment key, offset, length) for each piece, and by the page before it, so two
prompts share page keys exactly as far as their tokens would be equal. Keys are 64-bit hashes: among a million
pages two collide with a probability of 3e-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hicache_bench.records import Prompt, Segment

CHARS_PER_TOKEN = 4
"""Stands for a tokenizer where a prompt is literal text: an assumption, said in the notes of a run."""


class Chain:
    """The keys of a context that grows at its end; `n_tokens` so far."""

    __slots__ = ("_before", "_filled", "_page", "_pieces", "keys", "n_tokens")

    def __init__(self, page_size: int) -> None:
        self.keys: list[int] = []
        self.n_tokens = 0
        self._page = page_size
        self._before = 0
        self._filled = 0
        self._pieces: tuple[int, ...] = ()

    def fork(self) -> Chain:
        """A copy that can grow on its own."""
        other = Chain(self._page)
        other.keys, other.n_tokens = self.keys.copy(), self.n_tokens
        other._before, other._filled, other._pieces = self._before, self._filled, self._pieces
        return other

    def add(self, key: str, n_tokens: int) -> None:
        """The first `n_tokens` tokens of the stream named `key`."""
        self._add(hash(key), n_tokens)

    def add_text(self, text: str) -> None:
        """Literal text, a token every four characters; equal beginnings share pages."""
        for start in range(0, len(text), CHARS_PER_TOKEN):
            self._add(hash(text[start : start + CHARS_PER_TOKEN]), 1)

    def _add(self, name: int, n_tokens: int) -> None:
        page, before, offset = self._page, self._before, 0
        self.n_tokens += n_tokens
        if self._filled:
            offset = min(page - self._filled, n_tokens)
            self._pieces += (name, 0, offset)
            self._filled += offset
            if self._filled < page:
                return
            before = hash((before, self._pieces))
            self.keys.append(before)
            self._pieces, self._filled = (), 0
        append = self.keys.append
        while offset + page <= n_tokens:
            before = hash((before, name, offset))
            append(before)
            offset += page
        self._before = before
        if offset < n_tokens:
            self._pieces, self._filled = (name, offset, n_tokens - offset), n_tokens - offset


def add_prompt(chain: Chain, prompt: Prompt) -> None:
    """Put a prompt at the end of a context."""
    if prompt.text is not None:
        chain.add_text(prompt.text)
    for message in prompt.messages:
        chain.add_text(f"{message.role}\n{message.content}\n")
    for segment in prompt.segments:
        chain.add(segment.key, segment.n_tokens)


def segment_keys(segments: Iterable[Segment], page_size: int) -> Sequence[int]:
    """Keys of the full pages of `segments` joined."""
    chain = Chain(page_size)
    for segment in segments:
        chain.add(segment.key, segment.n_tokens)
    return chain.keys
