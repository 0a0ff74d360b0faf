"""Plays a plan against the engine: the rules of `load.driver`, on virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hicache_bench.cachesim.engine import Engine
from hicache_bench.cachesim.jobs import Job, Result
from hicache_bench.load.turns import Counts
from hicache_bench.records import ClosedLoop, Outcome, Plan, Session, Turn
from hicache_bench.simulate.keys import Chain, add_prompt

Sink = Callable[["Ended"], None]
"""Takes every request that is over, or was never sent."""

_TICK_EVENTS = 2048
_FOR_EVER_NS = 1 << 62


@dataclass(slots=True)
class Ended:
    """One attempt: what was planned, and what became of it (`result` None: never sent)."""

    session: Session
    index: int
    scheduled_ns: int | None
    result: Result | None
    outcome: Outcome
    error: str | None = None

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.index]


@dataclass(frozen=True, slots=True)
class Driven:
    """`start_ns` is the zero of the schedule; `planned_out`: the plan ran out of sessions before the duration."""

    start_ns: int
    issue_end_ns: int
    end_ns: int
    counts: Counts
    planned_out: bool
    cancelled: int


@dataclass(slots=True)
class _Walk:
    """A session under way: how many turns each turn still waits for, and the contexts that later turns go on with."""

    session: Session
    waits: list[int]
    left: int
    flying: int = 0
    chains: dict[int, Chain] = field(default_factory=dict)


class PlanDriver:
    """One plan, one engine, one go. `timeout_ns` bounds a request, `drain_ns` the time after the plan's duration."""

    def __init__(self, engine: Engine, plan: Plan, sink: Sink, *, timeout_ns: int | None = None,
                 drain_ns: int = 60_000_000_000, tick: Callable[[Counts, int], None] | None = None) -> None:
        self.counts = Counts()
        self._engine = engine
        self._plan = plan
        self._sink = sink
        self._timeout_ns = timeout_ns
        self._drain_ns = drain_ns
        self._tick = tick
        self._page = engine.config.page_size
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._flying: dict[tuple[int, int], tuple[_Walk, int, int]] = {}
        self._sessions: Iterator[tuple[int, Session]] = enumerate(plan.sessions)
        self._arrivals = plan.arrivals_ns
        self._start_ns = 0
        self._now_ns = 0
        self._stopped_ns: int | None = None
        self._over: dict[tuple[int, int], Outcome] = {}
        self._cancelled = 0
        self._unstarted = True

    def run(self, start_ns: int) -> Driven:
        """Play the plan from `start_ns`; every planned turn that was due ends in the sink."""
        self._start_ns = self._now_ns = start_ns
        self._engine.advance(start_ns)
        loop, duration_ns = self._plan.loop, self._plan.stop.duration_ns
        if duration_ns is not None:
            self._at(start_ns + duration_ns, self._stop)
        if isinstance(loop, ClosedLoop):
            for _ in range(loop.concurrency):
                self._next_of_worker()
        else:
            self._schedule_arrival()
        self._play()
        issue_end_ns = self._now_ns if self._stopped_ns is None else self._stopped_ns
        planned_out = (isinstance(loop, ClosedLoop) and duration_ns is not None and self._stopped_ns is None)
        return Driven(start_ns, issue_end_ns, self._now_ns, self.counts, planned_out, self._cancelled)

    def _play(self) -> None:
        engine, due, turns = self._engine, self._due, 0
        while self.counts.active or (self._unstarted and self._stopped_ns is None):
            if not due and engine.next_event_ns() is None:
                break
            events = engine.advance(due[0][0] if due else _FOR_EVER_NS, until_over=True)
            self._now_ns = engine.now_ns
            for event in events:
                if event.kind in ("finished", "aborted", "rejected"):
                    self._ended(event.job_id, event.result, event.kind)
            while due and due[0][0] <= self._now_ns:
                _, _, what, given = heapq.heappop(due)
                what(*given)
            turns += 1
            if self._tick is not None and turns % _TICK_EVENTS == 0:
                self._tick(self.counts, self._now_ns - self._start_ns)

    def _at(self, at_ns: int, what: Callable[..., None], *given: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (at_ns, self._numbers, what, given))

    # ------------------------------------------------------------------ sessions

    def _schedule_arrival(self) -> None:
        number, session = next(self._sessions, (0, None))
        if session is None:
            self._unstarted = False
        else:
            self._at(self._start_ns + int(self._arrivals[number]), self._arrive, session)

    def _arrive(self, session: Session) -> None:
        assert not isinstance(self._plan.loop, ClosedLoop)
        if self._stopped_ns is not None:
            return
        limit = self._plan.loop.limit
        if self.counts.active >= limit:
            self.counts.shed += 1
            for index in range(len(session.turns)):
                self._sink(Ended(session, index, self._now_ns, None, "shed",
                                 f"not sent: {limit} sessions already in flight (limit)"))
        else:
            self._begin(session)
        self._schedule_arrival()

    def _next_of_worker(self) -> None:
        _, session = next(self._sessions, (0, None))
        if session is None:
            self._unstarted = False
        elif self._stopped_ns is None:
            self._begin(session)

    def _begin(self, session: Session) -> None:
        turns = session.turns
        walk = _Walk(session, [len(turn.after) for turn in turns], len(turns))
        self.counts.active += 1
        chain = all(turn.after == ((i - 1,) if i else ()) for i, turn in enumerate(turns))
        for index, turn in enumerate(turns):
            if not turn.after:
                # A chain begins at once; roots of a graph have their own pause.
                self._when_due(walk, index, self._now_ns + (0 if chain else turn.think_ns))

    def _when_due(self, walk: _Walk, index: int, due_ns: int) -> None:
        if due_ns <= self._now_ns:
            self._send(walk, index, due_ns)
        else:
            self._at(due_ns, self._send, walk, index, due_ns)

    def _send(self, walk: _Walk, index: int, due_ns: int) -> None:
        session, turn = walk.session, walk.session.turns[index]
        chain = walk.chains[turn.after[0]].fork() if turn.live else Chain(self._page)
        add_prompt(chain, turn.prompt)
        key = (session.id, index)
        job = Job(key, chain.keys, chain.n_tokens, turn.output_tokens)
        if any(later.live and later.after[0] == index for later in session.turns[index + 1 :]):
            job = Job(key, chain.keys, chain.n_tokens, turn.output_tokens, output_keys=_with_output(chain, key))
            walk.chains[index] = chain
        self._flying[key] = (walk, index, due_ns)
        walk.flying += 1
        self.counts.issued += 1
        self.counts.in_flight += 1
        self._engine.submit(job, self._now_ns)
        if self._timeout_ns is not None:
            self._at(self._now_ns + self._timeout_ns, self._time_out, key)

    def _ended(self, key: Any, result: Result, kind: str) -> None:
        walk, index, due_ns = self._flying.pop(key)
        walk.flying -= 1
        self.counts.in_flight -= 1
        self.counts.finished += 1
        result.finished_ns = self._now_ns if result.finished_ns is None else result.finished_ns
        outcome, error = self._over.pop(key, None), result.error
        if outcome is None:
            outcome = "http" if kind == "rejected" else "server_error" if kind == "aborted" else \
                "ok" if result.n_out else "empty"
        elif outcome == "timeout":
            error = "no complete answer within the request timeout"
        else:
            error = "cancelled before the answer was complete"
        self._sink(Ended(walk.session, index, due_ns, result, outcome, error))
        answered = outcome in ("ok", "empty")
        if index in walk.chains:
            if answered and result.n_out:
                walk.chains[index].add(_output_name(key), result.n_out)
            elif outcome != "aborted":
                self._skip(walk, index)
        self._turn_over(walk, index)

    def _skip(self, walk: _Walk, index: int) -> None:
        """A failed turn of a live history: nobody can say what the rest of the conversation is."""
        for later in range(index + 1, len(walk.session.turns)):
            self._sink(Ended(walk.session, later, None, None, "aborted",
                             f"not sent: turn {index} failed and the history is live"))
        walk.left = 1

    def _turn_over(self, walk: _Walk, index: int) -> None:
        walk.left -= 1
        if self._stopped_ns is None and walk.left:
            for later, turn in enumerate(walk.session.turns[index + 1 :], index + 1):
                if index in turn.after:
                    walk.waits[later] -= 1
                    if not walk.waits[later]:
                        self._when_due(walk, later, self._now_ns + turn.think_ns)
        elif not walk.flying:
            self._close(walk)

    def _close(self, walk: _Walk) -> None:
        """The session is over: a closed loop's worker takes the next one."""
        self.counts.active -= 1
        if isinstance(self._plan.loop, ClosedLoop):
            self._next_of_worker()

    # ------------------------------------------------------------------ ends

    def _stop(self) -> None:
        """The duration is over: nothing more is sent, what is in flight may end within the drain time."""
        self._stopped_ns = self._now_ns
        self._at(self._now_ns + self._drain_ns, self._cancel)
        thinking = {id(given[0]): given[0] for _, _, what, given in self._due if what == self._send}
        self._due[:] = [item for item in self._due if item[2] != self._send]
        heapq.heapify(self._due)
        for walk in thinking.values():
            if not walk.flying:
                self._close(walk)

    def _cancel(self) -> None:
        for key in list(self._flying):
            self._cancelled += 1
            self._over[key] = "aborted"
            self._engine.abort(key)

    def _time_out(self, key: tuple[int, int]) -> None:
        if key in self._flying:
            self._over[key] = "timeout"
            self._engine.abort(key)


def _output_name(key: tuple[int, int]) -> str:
    return f"#{key[0]}.{key[1]}"  # no stream name holds a #


def _with_output(chain: Chain, key: tuple[int, int]) -> Callable[[int], list[int]]:
    def keys(n_out: int) -> list[int]:
        whole = chain.fork()
        if n_out > 1:
            whole.add(_output_name(key), n_out - 1)
        return whole.keys

    return keys
