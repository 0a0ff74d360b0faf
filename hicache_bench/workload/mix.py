"""Which sessions, and in what order: every stream gives its part, interleaved by a seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hicache_bench.errors import UsageError
from hicache_bench.pacing import generator
from hicache_bench.workload.dataset import load_dataset
from hicache_bench.workload.fit import Fitted, fit
from hicache_bench.workload.lengths import mean_length
from hicache_bench.workload.shapes import Draft, multi_turn, shared_prefix, unique
from hicache_bench.workload.spec import WorkloadSpec
from hicache_bench.workload.streams import Dataset, MultiTurn, SharedPrefix, StreamSpec, Trace, Unique
from hicache_bench.workload.trace import load_azure, load_mooncake
from hicache_bench.workload.weka import load_weka

_TRACES: dict[str, Callable[[Trace, Path], Iterator[Draft]]] = {
    "mooncake": load_mooncake,
    "weka": load_weka,
    "azure_csv": load_azure,
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the server can hold, as captured; None = not known."""

    device_tokens: int | None = None
    host_tokens: int | None = None
    max_request_tokens: int | None = None


@dataclass(slots=True)
class Source:
    """One stream with its part of the sessions: `count` of them, or a `share` of what others leave.

    `recorded` holds the sessions of a trace or data set, read once.
    """

    stream: StreamSpec
    seed: int
    count: int | None = None
    share: float | None = None
    recorded: Iterator[Draft] | None = None
    fitted: Fitted = field(default_factory=Fitted)
    taken: int = 0

    @property
    def mean_turns(self) -> float:
        return mean_length(self.stream.turns) if isinstance(self.stream, MultiTurn) else 1.0

    def take(self, n: int) -> list[Draft]:
        """The next `n` sessions; fewer when a trace or data set ends."""
        first, self.taken = self.taken, self.taken + n
        if self.recorded is not None:
            return list(itertools.islice(self.recorded, n))
        if isinstance(self.stream, SharedPrefix):
            return list(shared_prefix(self.stream, n, first, self.seed))
        if isinstance(self.stream, Unique):
            return list(unique(self.stream, n, first, self.seed))
        assert isinstance(self.stream, MultiTurn)
        return list(multi_turn(self.stream, n, first, self.seed))


def sources(spec: WorkloadSpec, base_dir: Path, page_size: int, capacity: Capacity) -> list[Source]:
    """The streams, ready to be drawn from. Raises UsageError for a `fill` whose capacity is not known."""
    made = []
    for stream in spec.stream:
        source = Source(stream, spec.seed, stream.count, stream.share)
        if isinstance(stream, Unique) and stream.fill is not None:
            source.count = fill_count(stream, page_size, capacity)
        if isinstance(stream, Trace | Dataset):
            path = base_dir / stream.path
            drafts = (_TRACES[stream.format](stream, path) if isinstance(stream, Trace)
                      else load_dataset(stream, path, spec.seed))
            drafts = _fitting(stream, drafts, capacity.max_request_tokens, source.fitted)
            source.recorded = _capped(drafts, _least(stream.max_requests, spec.load.requests))
        if source.count is None and source.share is None:
            capped = _least(getattr(stream, "max_requests", None), spec.load.requests) is not None
            endless = isinstance(stream, Dataset) and stream.loop and not capped
            if source.recorded is None or endless:
                source.share = 1.0
            else:
                kept = list(source.recorded)
                source.recorded, source.count = iter(kept), len(kept)
        made.append(source)
    return made


def fill_count(stream: Unique, page_size: int, capacity: Capacity) -> int:
    """How many prompts fill the asked part of a tier. A finished request of L prompt and N output tokens
    leaves whole pages of L + N - 1 tokens. Raises UsageError when the tier's size is not known."""
    tokens = capacity.device_tokens if stream.of == "device" else capacity.host_tokens
    if tokens is None:
        raise UsageError(f"stream {stream.name}: fill = {stream.fill} of {stream.of} needs the {stream.of} "
                         f"capacity, which is not known; give --url of a running server or --{stream.of}-tokens, "
                         "or give the stream a count instead of fill")
    left = mean_length(stream.prompt_tokens) + mean_length(stream.output_tokens) - 1
    return math.ceil((stream.fill or 0.0) * tokens / max(page_size, int(left) // page_size * page_size))


def mix(parts: Sequence[Source], seed: int, *, sessions: int | None, requests: int | None
        ) -> list[tuple[int, Draft]]:
    """(stream index, session) in sending order, at most `sessions` sessions and `requests` turns.

    Streams with a count give it whole; the rest is shared by largest remainder. Each stream keeps its own
    order; the interleave is a seeded shuffle. When turns are drawn too short to reach `requests`, more rounds
    follow. Raises UsageError when there are shares of nothing.
    """
    fixed = [source.count or 0 for source in parts]
    weights = [source.share or 0.0 for source in parts]
    if any(weights) and sessions is None and requests is None:
        raise UsageError("streams with a share need a total: give a duration or a number of requests "
                         "(-d 60s, -n 1000), or give every stream a count")
    per_session = sum(w * s.mean_turns for w, s in zip(weights, parts, strict=True)) / (sum(weights) or 1.0)
    if sessions is not None:
        rest = sessions - sum(fixed)
    else:
        planned = sum(n * source.mean_turns for n, source in zip(fixed, parts, strict=True))
        rest = math.ceil(((requests or 0) - planned) / (per_session or 1.0))
    counts = [n + m for n, m in zip(fixed, split(max(0, rest), weights), strict=True)]
    order = _round(parts, counts, generator(seed, "interleave"))
    turns = sum(len(draft.turns) for _, draft in order)
    while sessions is None and requests is not None and any(weights) and turns < requests:
        more = split(math.ceil((requests - turns) / (per_session or 1.0)), weights)
        added = _round(parts, more, generator(seed, f"interleave/{len(order)}"))
        if not added:
            break  # the traces and data sets that have shares are played out
        order += added
        turns += sum(len(draft.turns) for _, draft in added)
    return cut(order[:sessions], requests)


def cut(order: list[tuple[int, Draft]], requests: int | None) -> list[tuple[int, Draft]]:
    """The first sessions with `requests` turns in all; the last session may lose its later turns."""
    if requests is None:
        return order
    kept: list[tuple[int, Draft]] = []
    for index, draft in order:
        if requests <= 0:
            break
        turns = draft.turns[:requests]
        kept.append((index, draft if len(turns) == len(draft.turns) else draft._replace(turns=turns)))
        requests -= len(turns)
    return kept


def split(total: int, weights: Sequence[float]) -> list[int]:
    """`total` whole things by weight: floors first, then the largest remainders (ties: the earlier)."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [math.floor(value) for value in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _round(parts: Sequence[Source], counts: Sequence[int], rng: np.random.Generator) -> list[tuple[int, Draft]]:
    drawn = [source.take(n) if n else [] for source, n in zip(parts, counts, strict=True)]
    which = np.repeat(np.arange(len(parts)), [len(drafts) for drafts in drawn])
    rng.shuffle(which)
    queues = [iter(drafts) for drafts in drawn]
    return [(index, next(queues[index])) for index in which.tolist()]


def _fitting(stream: StreamSpec, drafts: Iterator[Draft], most: int | None, counts: Fitted) -> Iterator[Draft]:
    """Before any cap is counted, so that dropped requests do not use it up."""
    for draft in drafts:
        turns = fit(stream, draft.turns, most, counts)
        if turns:
            yield draft._replace(turns=turns)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _capped(drafts: Iterator[Draft], requests: int | None) -> Iterator[Draft]:
    for draft in drafts:
        if requests is None:
            yield draft
            continue
        yield draft._replace(turns=draft.turns[:requests])
        requests -= len(draft.turns)
        if requests <= 0:
            return
