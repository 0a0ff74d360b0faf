"""What has been read of one answer so far, and the count of its tokens chunk by chunk."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any


@dataclass(slots=True)
class Answer:
    """State of one answer while its events are read; the readers of each API write into it.

    A *chunk* is an event that carried new tokens. `said` is the server's running total of output tokens;
    chunks from index `open_from` on came after it without a figure and count one token each until the next
    figure spreads the true number over them.
    """

    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    chunk_chars: list[int] = field(default_factory=list)
    open_from: int = 0
    said: int | None = None
    first_token_ns: int | None = None
    first_content_ns: int | None = None
    seen: bool = False
    parts: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    text: str = ""
    output_ids: list[Any] | None = None
    n_ids: int = 0
    answers: int = 0
    finish_reason: str | None = None
    finished: bool = False
    error: str | None = None
    request_id: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    details: Any = None

    def add(self, stamp: int | None, said: int | None, seen: bool, chars: int) -> None:
        """Account for one event that may carry tokens.

        `said` is the server's running total in it, `seen` whether any field shows a new token, `chars` how
        many characters are new. `stamp` is None for a body that did not come as a stream: it has no chunks.
        """
        self.seen = self.seen or seen
        if stamp is None:
            self.said = self.said if said is None else said
            return
        before = self.said or 0
        if said is None or self.open_from < len(self.chunk_ns):
            if seen:
                self._chunk(stamp, 1, chars)
            if said is not None:
                self.settle(said)
        else:
            if said > before:
                self._chunk(stamp, said - before, chars)
                self.open_from = len(self.chunk_ns)
            self.said = max(said, before)
        if seen and self.first_token_ns is None:
            self.first_token_ns = stamp

    def _chunk(self, stamp: int, tokens: int, chars: int) -> None:
        self.chunk_ns.append(stamp)
        self.chunk_tokens.append(tokens)
        self.chunk_chars.append(chars)
        if self.first_token_ns is None:
            self.first_token_ns = stamp

    def settle(self, said: int) -> None:
        """The server names its running total outside any token: spread it over the chunks it covers."""
        new = said - (self.said or 0)
        if self.open_from < len(self.chunk_tokens):
            if counts := spread(new, self.chunk_chars[self.open_from:]):
                self.chunk_tokens[self.open_from:] = counts
        elif new > 0 and self.chunk_tokens:
            # Tokens without text, such as the end-of-sequence one: they came with or after the last chunk.
            self.chunk_tokens[-1] += new
        self.said = said
        self.open_from = len(self.chunk_tokens)

    def total(self, streamed: bool) -> tuple[int | None, str | None]:
        """(output tokens, token source): the server's figure, else one token a chunk, else unknown.

        Never the requested length (sgl-project/sglang#24266). A server that says 0 beside visible output is
        taken to have said nothing.
        """
        settled = self.open_from == len(self.chunk_tokens)
        if self.said is not None and settled and (self.said or not self.seen):
            return self.said, "server"
        return (sum(self.chunk_tokens), "estimated") if streamed else (None, None)

    def digest(self) -> str | None:
        """blake2b-8 (hex) of the output ids as 64-bit little-endian integers, else of the generated text
        with what was hidden (reasoning, tool calls) before it; None without any output."""
        if self.output_ids:
            raw = struct.pack(f"<{len(self.output_ids)}q", *self.output_ids)
        else:
            hidden = "".join(self.hidden)
            raw = (f"{hidden}\0{self.text}" if hidden else self.text).encode("utf-8", "replace")
        return blake2b(raw, digest_size=8).hexdigest() if raw else None


def spread(total: int, chars: list[int]) -> list[int] | None:
    """`total` tokens over chunks with `chars` new characters each: at least one a chunk, the rest in
    proportion to the characters; None when there are fewer tokens than chunks.

    Cumulative rounding, so the result is deterministic and sums to `total`.
    """
    rest = total - len(chars)
    if rest < 0 or not chars:
        return None
    weight = sum(chars)
    counts, done, before = [], 0, 0
    for n_chars in chars:
        before += n_chars if weight else 1
        upto = rest * before // (weight or len(chars))
        counts.append(1 + upto - done)
        done = upto
    return counts
