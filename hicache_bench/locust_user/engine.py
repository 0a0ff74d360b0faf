"""The gevent driver: what `load.driver` does for asyncio, with the same rows, for one share of a plan.

Closed loop: each Locust user takes the next session of the share. Open loop: sessions start at their instants,
whatever the users do; over the limit they are shed, and counted.
"""


from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Group

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.load.requests import History
from hicache_bench.load.turns import PREBUILT_BYTES, Counts, Sink, Turns
from hicache_bench.locust_user.health import LagWatch
from hicache_bench.locust_user.job import Ending, Job
from hicache_bench.locust_user.transport import GeventTransport
from hicache_bench.records import ClosedLoop, Exchange, Session


class Engine:
    """Sends one job. `start` once; `done` is set when everything has ended and left its row."""

    def __init__(self, job: Job, transport: GeventTransport, sink: Sink, processes: int = 1) -> None:
        self._job, self._plan = job, job.plan
        self._transport = transport
        self._turns = Turns(job.builder, sink, phase="measure", rid_prefix=job.rid_prefix)
        self._prebuilt_limit = PREBUILT_BYTES // max(1, processes)
        self._queue = iter(job.plan.sessions)
        self._left = len(job.plan.sessions)
        self._running: set[gevent.Greenlet[..., Any]] = set()
        self._own = Group()
        self._started, self._stopping, self._idle = Event(), Event(), Event()
        self._idle.set()
        self._watch = LagWatch()
        self._supervised = False
        self.closed = isinstance(job.plan.loop, ClosedLoop)
        self.done = Event()
        self.counts = Counts()
        self.ending = Ending()

    # ------------------------------------------------------------------ from outside

    def prebuild(self) -> None:
        """Build request bodies in schedule order, giving way after each session so that heartbeats go on."""
        held = 0
        for session in self._plan.sessions:
            held += self._turns.build_ahead(session)
            gevent.sleep(0)
            if held > self._prebuilt_limit:
                return

    def start(self, start_ns: int) -> None:
        """Begin at `start_ns` (this process's monotonic clock)."""
        self._supervised = True
        self._own.add(gevent.spawn(self._supervise, start_ns))

    def stop(self) -> None:
        """Issue nothing more; what is in flight goes on until the drain time is over."""
        if not self._stopping.is_set():
            self.ending.stopped = True
        self._stopping.set()
        self._started.set()
        if not self._supervised:
            self.done.set()

    def serve(self) -> bool:
        """One session of a closed loop in the calling greenlet; False when there is nothing (more) to do."""
        self._started.wait()
        session = None if self._stopping.is_set() else next(self._queue, None)
        if session is None:
            return False
        self._left -= 1
        self._session(session, now_ns())
        return True

    # ------------------------------------------------------------------ the two loops

    def _supervise(self, start_ns: int) -> None:
        if not self._sleep(start_ns):
            start_ns = now_ns()
        self._watch.start()
        stop = self._plan.stop.duration_ns
        timer = None if stop is None else gevent.spawn(self._stop_at, start_ns + stop)
        try:
            if self.closed:
                self._started.set()
                self._until(lambda: self._left == 0 and not self._running)
            else:
                self._open(start_ns)
            ran_out = not self._stopping.is_set()
            self.ending.issue_end_ns = now_ns()
            self.ending.planned_out = (ran_out and self.closed and stop is not None
                                       and self.ending.issue_end_ns < start_ns + stop)
            self._stopping.set()
            self._drain()
        except Exception as error:  # a bug of ours must end the run, not hang it
            self._fail(error)
        finally:
            if timer is not None:
                timer.kill(block=False)
            self._finish()

    def _finish(self) -> None:
        ending = self.ending
        ending.issued, ending.shed, ending.end_ns = self.counts.issued, self.counts.shed, now_ns()
        ending.health = dataclasses.asdict(self._watch.stop())
        self._stopping.set()
        self.done.set()

    def _stop_at(self, instant_ns: int) -> None:
        self._sleep(instant_ns)
        self._stopping.set()

    def _open(self, start_ns: int) -> None:
        limit = self._plan.loop.limit  # type: ignore[union-attr]  # an open loop here
        for session, offset_ns in zip(self._plan.sessions, self._plan.arrivals_ns.tolist(), strict=True):
            due_ns = start_ns + offset_ns
            if due_ns <= now_ns():
                gevent.sleep(0)  # a burst at one instant must not keep answers from being read
            elif not self._sleep(due_ns):
                return
            if self._stopping.is_set():
                return
            if self.counts.active >= limit:
                self.counts.shed += 1
                why = f"not sent: {limit} sessions already in flight (limit)"
                for index in range(len(session.turns)):
                    self._turns.unsent(session, index, due_ns, "shed", why)
                continue
            self.counts.active += 1  # here, and not when the greenlet first runs: the next session looks at it
            self._own.add(gevent.spawn(self._open_session, session, due_ns))
        self._until(lambda: self.counts.active == 0)

    def _open_session(self, session: Session, due_ns: int) -> None:
        try:
            self._session(session, due_ns)
        finally:
            self.counts.active -= 1
            self._idle.set()

    def _until(self, ended: Callable[[], bool]) -> None:
        """Wait until `ended()` or a stop; looked at whenever a session ends."""
        while not ended() and not self._stopping.is_set():
            self._idle.clear()
            gevent.wait([self._idle, self._stopping], count=1)

    def _drain(self) -> None:
        deadline_ns = now_ns() + self._job.drain_ns
        while self._running and (left_ns := deadline_ns - now_ns()) > 0:
            self._idle.clear()
            self._idle.wait(left_ns / NS_PER_S)
        self.ending.cancelled = self.counts.in_flight
        gevent.killall(list(self._running), block=True, timeout=5.0)

    def _sleep(self, until_ns: int) -> bool:
        """Sleep to an absolute deadline; False when a stop ended it early."""
        while (left_ns := until_ns - now_ns()) > 0:
            if self._stopping.wait(left_ns / NS_PER_S):
                return False
        return True

    def _fail(self, error: Exception) -> None:
        self.ending.failure = self.ending.failure or f"{type(error).__name__}: {error}"
        self.stop()

    # ------------------------------------------------------------------ one session

    def _session(self, session: Session, scheduled_ns: int) -> None:
        current = gevent.getcurrent()
        self._running.add(current)
        try:
            if all(turn.after == ((i - 1,) if i else ()) for i, turn in enumerate(session.turns)):
                self._chain(session, scheduled_ns)
            else:
                self._graph(session, scheduled_ns)
        except Exception as error:
            self._fail(error)
        finally:
            self._running.discard(current)
            self._idle.set()

    def _chain(self, session: Session, scheduled_ns: int) -> None:
        history: History | None = None
        for index, turn in enumerate(session.turns):
            if index:
                scheduled_ns = now_ns() + turn.think_ns
                if not self._sleep(scheduled_ns) or self._stopping.is_set():
                    return
            live_next = index + 1 < len(session.turns) and session.turns[index + 1].live
            answered, history = self._turn(session, index, scheduled_ns, history, keep_output=live_next)
            if not answered and live_next:
                for later in range(index + 1, len(session.turns)):
                    self._turns.unsent(session, later, None, "aborted",
                                 f"not sent: turn {index} failed and the history is live")
                return

    def _graph(self, session: Session, scheduled_ns: int) -> None:
        """Turns that wait for several others or run side by side (agents with sub-agents)."""
        ended = [Event() for _ in session.turns]
        ends_ns = [scheduled_ns for _ in session.turns]

        def one(index: int) -> None:
            turn = session.turns[index]
            for before in turn.after:
                ended[before].wait()
            due_ns = max((ends_ns[before] for before in turn.after), default=scheduled_ns) + turn.think_ns
            try:
                if self._sleep(due_ns) and not self._stopping.is_set():
                    self._turn(session, index, due_ns, None, keep_output=False)
            except Exception as error:
                self._fail(error)
            finally:
                ends_ns[index] = now_ns()
                ended[index].set()

        turns = [gevent.spawn(one, index) for index in range(len(session.turns))]
        try:
            gevent.joinall(turns)
        finally:
            gevent.killall(turns)

    # ------------------------------------------------------------------ one request

    def _turn(self, session: Session, index: int, scheduled_ns: int, history: History | None, *,
              keep_output: bool) -> tuple[bool, History | None]:
        """Send one turn; returns (answered, history for a live next turn)."""
        made = self._turns.take(session, index, history)
        exchange = Exchange()
        self.counts.issued += 1
        self.counts.in_flight += 1
        try:
            self._transport.send(made.request, exchange, self._turns.timeout_ns)
        finally:
            self.counts.in_flight -= 1
            self.counts.finished += 1
            self._turns.ended(session, index, scheduled_ns, made, exchange)
        return self._turns.outcome(made, exchange, keep_output=keep_output)
