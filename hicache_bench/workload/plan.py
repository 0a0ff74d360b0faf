"""From a workload to its plan: every session and every start, before the clock starts."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.pacing import (
    Instants,
    count_schedule,
    duration_schedule,
    stages_schedule,
    trace_schedule,
)
from hicache_bench.records import ClosedLoop, OpenLoop, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.workload.fit import Fitted, fit
from hicache_bench.workload.mix import Capacity, Source, mix, sources
from hicache_bench.workload.prefix import PrefixIndex, ideal_cached, visit_session
from hicache_bench.workload.shapes import Draft
from hicache_bench.workload.spec import Load, WorkloadSpec, dump_spec
from hicache_bench.workload.streams import MultiTurn, SharedPrefix, StreamSpec, Trace, Unique, kind_of

__all__ = ["Capacity", "build_plan", "prime_prompts"]

MOST_SESSIONS = 200_000
"""A closed loop bounded only by time is planned for at most so many sessions (some 150 MB)."""

_Order = list[tuple[int, Draft]]


def build_plan(
    spec: WorkloadSpec,
    *,
    base_dir: Path,
    page_size: int,
    capacity: Capacity,
    notes: list[str] | None = None,
) -> Plan:
    """The whole load of a workload. Trace paths count from `base_dir`; `page_size` (tokens) and `capacity`
    size `fill` streams and the ideal hits, not the content.

    `notes` receives sentences for people (what was truncated, dropped or computed). Raises UsageError for
    loads without an end, `fill` without a capacity, unreadable traces and prompts over the server's limit.
    """
    said = notes if notes is not None else []
    load = spec.load
    loop = _loop(load)
    parts = sources(spec, base_dir, page_size, capacity)
    said += [f"stream {s.stream.name}: {s.count} prompts fill {s.stream.fill} of {s.stream.of}"
             for s in parts if isinstance(s.stream, Unique) and s.stream.fill is not None]
    timed = _timed_schedule(spec)
    sessions = len(timed) if timed is not None else None
    if isinstance(loop, ClosedLoop) and load.requests is None and load.duration is not None:
        sessions = _bound(int(load.duration), loop.concurrency)
        if not any(source.share for source in parts):
            sessions = None  # the counts are the bound
    order = mix(parts, spec.seed, sessions=sessions, requests=load.requests)
    _check_fit(spec, order, capacity)
    said += [note for source in parts for note in _notes(source)]
    said += _cut_short(parts, order)
    if not order:
        raise UsageError(f"workload {spec.name}: no requests to send; its streams are empty "
                         "(counts of 0, an empty window, or everything dropped)")
    arrivals, order = _schedule(spec, order, timed)
    planned = tuple(_annotate(spec, order, page_size))
    return Plan(spec.name, spec.seed, planned, arrivals, loop, _stop(load, planned), _digest(spec, planned, arrivals))


def prime_prompts(plan: Plan, spec: WorkloadSpec) -> list[Prompt]:
    """One prompt for every shared beginning the plan uses: the prefix of each `shared_prefix` group and the
    system prompt of each `multi_turn` stream, with one fresh token after it (at least one is computed)."""
    shared = {stream.name for stream in spec.stream if _has_head(stream)}
    heads = dict.fromkeys(session.turns[0].prompt.segments[0] for session in plan.sessions
                          if session.stream in shared)
    return [Prompt((head, Segment(f"{head.key}/prime", 1)), n_tokens=head.n_tokens + 1) for head in heads]


def _has_head(stream: StreamSpec) -> bool:
    """Whether the stream's sessions begin with something shared that the prime phase can send."""
    return isinstance(stream, SharedPrefix) or (isinstance(stream, MultiTurn) and stream.system_tokens > 0)


def _loop(load: Load) -> OpenLoop | ClosedLoop:
    if load.concurrency is not None:
        return ClosedLoop(load.concurrency)
    if load.rate is None and load.stages is None and load.arrival != "trace":
        raise UsageError("the load has no loop: give load.concurrency (-c 32), load.rate (-r 8/s), load.stages, "
                         'or load.arrival = "trace"')
    return OpenLoop(load.limit)


def _timed_schedule(spec: WorkloadSpec) -> Instants | None:
    """The arrivals of an open loop that a duration bounds; None when the sessions decide how many."""
    load = spec.load
    if load.concurrency is not None or load.arrival == "trace":
        return None
    if load.stages is not None:
        stages = [stage.stage() for stage in load.stages]
        made = stages_schedule(load.arrival, stages, seed=spec.seed, cv=load.cv)
        return made if load.duration is None else made[made < load.duration]
    if load.duration is None or load.rate is None:
        return None
    return duration_schedule(load.arrival, load.rate, load.duration, seed=spec.seed, cv=load.cv)


def _schedule(spec: WorkloadSpec, order: _Order, timed: Instants | None) -> tuple[Instants, _Order]:
    load = spec.load
    if load.concurrency is not None:
        return np.zeros(len(order), dtype=np.int64), order
    if timed is not None:
        return timed[: len(order)], order
    if load.arrival != "trace":
        assert load.rate is not None
        return count_schedule(load.arrival, load.rate, len(order), seed=spec.seed, cv=load.cv), order
    return _trace_times(spec, order)


def _trace_times(spec: WorkloadSpec, order: _Order) -> tuple[Instants, _Order]:
    offsets = []
    for index, draft in order:
        stream = spec.stream[index]
        if not isinstance(stream, Trace):
            raise UsageError(f'load.arrival = "trace" needs trace streams only; {stream.name} is {kind_of(stream)}')
        offsets.append(round(draft.arrival_ns / stream.speedup))
    by_time = sorted(range(len(order)), key=offsets.__getitem__)  # stable: ties keep the file's order
    arrivals = trace_schedule(offsets)
    duration = spec.load.duration
    n = len(order) if duration is None else int(np.searchsorted(arrivals, int(duration)))
    return arrivals[:n], [order[i] for i in by_time[:n]]


def _bound(duration_ns: int, concurrency: int) -> int:
    """More sessions than a closed loop can use up in its time, within memory."""
    return min(MOST_SESSIONS, math.ceil(duration_ns / NS_PER_S * max(100, 20 * concurrency)))


def _stop(load: Load, sessions: tuple[Session, ...]) -> Stop:
    duration = None if load.duration is None else int(load.duration)
    if duration is None and load.stages is not None:
        duration = sum(int(stage.duration) for stage in load.stages)
    total = sum(len(session.turns) for session in sessions)
    if load.requests is not None or duration is None:
        return Stop(duration, total)
    return Stop(duration)


def _check_fit(spec: WorkloadSpec, order: _Order, capacity: Capacity) -> None:
    """Recorded sessions were fitted when they were read; here the made-up ones are checked."""
    if capacity.max_request_tokens is None:
        return
    for index, draft in order:
        fit(spec.stream[index], draft.turns, capacity.max_request_tokens, Fitted())


def _notes(source: Source) -> list[str]:
    fitted, name = source.fitted, source.stream.name
    said = []
    if fitted.truncated:
        said.append(f"stream {name}: {fitted.truncated} prompts were truncated to fit")
    if fitted.dropped:
        said.append(f"stream {name}: {fitted.dropped} requests were dropped as too long")
    return said


def _cut_short(parts: list[Source], order: _Order) -> list[str]:
    """A stream that the total (-n, or the schedule's length) leaves less than it asks for is named, never lost."""
    sent = Counter(index for index, _ in order)
    said = []
    for index, source in enumerate(parts):
        asked = source.count
        if asked is not None and sent[index] < asked:
            said.append(f"stream {source.stream.name}: {sent[index]:,} of its {asked:,} sessions fit into the "
                        "total; raise the number of requests or the duration to send them all")
        elif asked is None and not sent[index]:
            said.append(f"stream {source.stream.name}: nothing is sent, the streams with a count use up the total; "
                        "raise the number of requests or the duration")
    return said


def _annotate(spec: WorkloadSpec, order: _Order, page_size: int) -> list[Session]:
    """Sessions with planned lengths and ideal hits, in the order in which they start."""
    seen = PrefixIndex(page_size)
    if spec.prime.enabled:
        for index, draft in order:
            if _has_head(spec.stream[index]):
                seen.prime(draft.turns[0].prompt.segments[0])
    made = []
    for number, (index, draft) in enumerate(order):
        stream = spec.stream[index]
        turns = tuple(
            turn if visit is None else Turn(turn.prompt, turn.output_tokens, turn.after, turn.think_ns, turn.live,
                                            turn.label, visit.prompt_tokens, ideal_cached(visit, page_size))
            for turn, visit in zip(draft.turns, visit_session(seen, number, draft.turns), strict=True)
        )
        made.append(Session(number, stream.name, kind_of(stream), turns, draft.affinity))
    return made


def _digest(spec: WorkloadSpec, sessions: tuple[Session, ...], arrivals: Instants) -> str:
    """What is sent and when, without the nonce; not the file's words, its goals, or where traces lie."""
    tables = dump_spec(spec)
    del tables["description"], tables["slo"]
    for stream in tables["stream"]:
        stream.pop("path", None)
    total = hashlib.blake2b(msgspec.json.encode(tables, order="sorted"), digest_size=8)
    total.update(np.ascontiguousarray(arrivals, dtype="<i8").tobytes())
    for session in sessions:
        total.update(repr((session.stream, session.affinity)).encode())
        for turn in session.turns:
            prompt = turn.prompt
            literal = (prompt.text, [(m.role, m.content) for m in prompt.messages]) if not prompt.segments else None
            total.update(repr((
                [(segment.key, segment.n_tokens) for segment in prompt.segments], literal,
                turn.output_tokens, turn.after, turn.think_ns, turn.live,
            )).encode())
    return total.hexdigest()
