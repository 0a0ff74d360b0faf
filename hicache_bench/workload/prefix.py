"""Which prefixes have been seen: an unbounded prefix cache over segments, exact to the token.

A prefix is identified by its path of whole segments, so nothing is ever made into tokens. Memory grows with
the distinct segments, not with tokens or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hicache_bench.records import Segment, Turn


class Visit(NamedTuple):
    """What one request found and left. `matched` is before the rules of matching (see `ideal_cached`)."""

    prompt_tokens: int
    matched: int
    new_tokens: int
    new_pages: int
    reused_pages: int
    """Pages that were matched here for the first time: summed up, the number of shared pages."""


class PrefixIndex:
    """The cache. `page_size` only decides how pages are counted: page p of a context belongs to the segment
    in which it ends."""

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._seen: dict[tuple[int, str], int] = {}
        self._reused: dict[tuple[int, str], int] = {}
        self._nodes: dict[tuple[int, str, int], int] = {}

    def prime(self, segment: Segment) -> None:
        """Make a beginning resident before the load, as the prime phase does; it counts as nobody's request."""
        edge = (0, segment.key)
        self._seen[edge] = max(segment.n_tokens, self._seen.get(edge, 0))

    def visit(self, segments: Sequence[Segment], output_tokens: int, output_key: str | None = None) -> Visit:
        """Match a prompt, then insert it and its output.

        A finished request of L prompt and N output tokens leaves L + N - 1 tokens: the last sampled one was
        never computed (SGLang, cache_finished_req). `output_key` names the output where a later prompt goes
        on with it; other output only takes room.
        """
        page, node, depth, matched, matching, new, new_pages, reused = self._page, 0, 0, 0, True, 0, 0, 0
        last = len(segments) - 1
        for index, segment in enumerate(segments):
            key, n = segment.key, segment.n_tokens
            edge = (node, key)
            seen = self._seen.get(edge, 0)
            if matching:
                got = min(n, seen)
                matched += got
                before = self._reused.get(edge, 0)
                if got > before:
                    self._reused[edge] = got
                    reused += (depth + got) // page - (depth + before) // page
                matching = got == n
            if n > seen:
                self._seen[edge] = n
                new += n - seen
                new_pages += (depth + n) // page - (depth + seen) // page
            depth += n
            if index < last or output_key is not None:
                node = self._nodes.setdefault((node, key, n), len(self._nodes) + 1)
        left = output_tokens - 1
        if left > 0:
            if output_key is not None:
                self._seen[(node, output_key)] = left
            new += left
            new_pages += (depth + left) // page - depth // page
        return Visit(depth, matched, new, new_pages, reused)


def ideal_cached(visit: Visit, page_size: int) -> int:
    """Tokens an unbounded cache serves: at least one prompt token is always computed, then whole pages
    (SGLang, schedule_batch.py: _compute_max_prefix_len; issue 27206)."""
    return min(visit.matched, visit.prompt_tokens - 1) // page_size * page_size


def visit_session(index: PrefixIndex, session_id: int, turns: Sequence[Turn]) -> list[Visit | None]:
    """Send a session's turns through the index, in their order; None where only the server can count.

    A live turn's context is that of the turn it goes on from, then that turn's output, then its own prompt.
    """
    if len(turns) == 1 and turns[0].prompt.segments:
        return [index.visit(turns[0].prompt.segments, turns[0].output_tokens)]
    continued = {turn.after[0] for turn in turns if turn.live}
    contexts: dict[int, tuple[Segment, ...]] = {}
    visits: list[Visit | None] = []
    for number, turn in enumerate(turns):
        own = turn.prompt.segments
        if not own or (turn.live and turn.after[0] not in contexts):
            visits.append(None)
            continue
        if turn.live:
            source = turn.after[0]
            said = Segment(_output_key(session_id, source), turns[source].output_tokens)
            own = (*contexts[source], said, *own)
        key = None
        if number in continued:
            contexts[number], key = own, _output_key(session_id, number)
        visits.append(index.visit(own, turn.output_tokens, key))
    return visits


def _output_key(session_id: int, turn: int) -> str:
    return f"#{session_id}.{turn}"  # no stream name holds a #
