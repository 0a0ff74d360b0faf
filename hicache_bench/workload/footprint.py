"""How much cache a plan needs, and how often an unbounded cache would hit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache_bench.records import Plan
from hicache_bench.workload.prefix import PrefixIndex, visit_session


@dataclass(slots=True)
class StreamFootprint:
    """Counts of one stream, or of the whole plan.

    `unique_tokens` and `unique_pages` are what the cache would hold at the end if nothing were evicted
    (prompts, and outputs but for each last token); pages are whole ones. `shared_pages` of them are asked for
    more than once. Token counts leave out prompts that only the server can count: `uncounted` requests.
    """

    sessions: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    unique_tokens: int = 0
    unique_pages: int = 0
    shared_pages: int = 0
    ideal_cached_tokens: int = 0
    uncounted: int = 0

    @property
    def ideal_hit_ratio(self) -> float | None:
        """Cached share of the prompt tokens with an unbounded cache, primed prefixes included; None when no prompt
        could be counted."""
        return self.ideal_cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The whole plan and each stream by name, in order of first appearance."""

    whole: StreamFootprint
    streams: Mapping[str, StreamFootprint]


def footprint(plan: Plan, page_size: int) -> Footprint:
    """Exact by the plan's own prefix structure, sessions in their order; memory O(distinct segments)."""
    index = PrefixIndex(page_size)
    whole, streams = StreamFootprint(), dict[str, StreamFootprint]()
    for session in plan.sessions:
        counts = (whole, streams.setdefault(session.stream, StreamFootprint()))
        for total in counts:
            total.sessions += 1
            total.requests += len(session.turns)
        for turn, visit in zip(session.turns, visit_session(index, session.id, session.turns), strict=True):
            for total in counts:
                total.output_tokens += turn.output_tokens
                if visit is None:
                    total.uncounted += 1
                    continue
                total.prompt_tokens += visit.prompt_tokens
                total.unique_tokens += visit.new_tokens
                total.unique_pages += visit.new_pages
                total.shared_pages += visit.reused_pages
                total.ideal_cached_tokens += turn.ideal_cached_tokens or 0
    return Footprint(whole, streams)
