"""The driver: starts sessions when the plan says, keeps back-pressure out of the schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from hicache_bench.clock import NS_PER_S, now_ns, sleep_until
from hicache_bench.load.fast_pace import Alarm, quiet_collector
from hicache_bench.load.requests import History, RequestBuilder
from hicache_bench.load.transport import Transport
from hicache_bench.load.turns import PREBUILT_BYTES, Counts, Sink, Turns
from hicache_bench.records import ClosedLoop, Exchange, Plan, Session


@dataclass(frozen=True, slots=True)
class DriveResult:
    """`start_ns` is the common zero of the schedule; `planned_out` tells that the plan ran out of sessions
    before the asked duration had passed."""

    start_ns: int
    issue_end_ns: int
    end_ns: int
    counts: Counts
    planned_out: bool
    interrupted: bool
    cancelled: int


class Driver:
    """Sends one plan through one transport. Not reusable: one driver, one phase."""

    def __init__(
        self,
        transport: Transport,
        builder: RequestBuilder,
        sink: Sink,
        *,
        phase: str = "measure",
        rid_prefix: str = "hb",
        drain_ns: int = 30_000_000_000,
    ) -> None:
        self._transport = transport
        self._turns = Turns(builder, sink, phase=phase, rid_prefix=rid_prefix)
        self._drain_ns = drain_ns
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._interrupted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thinking: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._alarm: Alarm | None = None
        self.counts = Counts()

    def interrupt(self) -> None:
        """First call: issue nothing more and drain. Second call: cancel what is in flight."""
        if self._interrupted:
            self._stop_now.set()
        self._interrupted = True
        self._stop_issuing()

    def prebuild(self, plan: Plan) -> int:
        """Build request bodies in schedule order before the clock starts; returns the bytes held.

        Live turns wait for the server's answers and are built when they are due.
        """
        held = 0
        for session in plan.sessions:
            held += self._turns.build_ahead(session)
            if held > PREBUILT_BYTES:
                break
        return held

    async def run(self, plan: Plan) -> DriveResult:
        """Drive the whole plan; returns after the drain. Every planned turn that was due leaves a row."""
        alarm = self._alarm = Alarm()
        try:
            with quiet_collector():
                return await self._drive(plan)
        finally:
            self._alarm = None
            alarm.close()

    async def _drive(self, plan: Plan) -> DriveResult:
        start_ns = now_ns()
        stopper = asyncio.get_running_loop().create_task(self._stop_after(plan, start_ns))
        try:
            if isinstance(plan.loop, ClosedLoop):
                await self._closed(plan, plan.loop.concurrency)
            else:
                await self._open(plan, plan.loop.limit, start_ns)
            issue_end_ns, ran_out = now_ns(), not self._stop.is_set()
            cancelled = await self._drain()
        finally:
            stopper.cancel()
            await asyncio.gather(stopper, return_exceptions=True)
        duration_ns = plan.stop.duration_ns
        return DriveResult(
            start_ns=start_ns,
            issue_end_ns=issue_end_ns,
            end_ns=now_ns(),
            counts=self.counts,
            planned_out=ran_out and duration_ns is not None and issue_end_ns < start_ns + duration_ns
            and isinstance(plan.loop, ClosedLoop),
            interrupted=self._interrupted,
            cancelled=cancelled,
        )

    # ------------------------------------------------------------------ the two loops

    async def _stop_after(self, plan: Plan, start_ns: int) -> None:
        if plan.stop.duration_ns is not None:
            await sleep_until(start_ns + plan.stop.duration_ns)
            self._stop_issuing()

    def _stop_issuing(self) -> None:
        self._stop.set()
        if self._alarm is not None:
            self._alarm.wake()

    async def _open(self, plan: Plan, limit: int, start_ns: int) -> None:
        assert self._alarm is not None
        alarm = self._alarm
        for session, offset_ns in zip(plan.sessions, plan.arrivals_ns.tolist(), strict=True):
            due_ns = start_ns + offset_ns
            if due_ns > now_ns():
                while not self._stop.is_set() and due_ns > now_ns():
                    await alarm.sleep_until(due_ns)
            else:
                # A burst of arrivals at one instant must not keep the loop from reading answers.
                await asyncio.sleep(0)
            if self._stop.is_set():
                return
            if self.counts.active >= limit:
                self._shed(session, due_ns, limit)
                continue
            self._start(self._session(session, due_ns))
        # Later turns of running sessions are still part of the load; with a duration they are cut by it.
        await self._first_of(self._idle, self._stop)

    async def _closed(self, plan: Plan, concurrency: int) -> None:
        queue = iter(plan.sessions)
        workers = min(concurrency, len(plan.sessions))
        for _ in range(workers):
            self._start(self._worker(queue))
        await self._first_of(self._idle, self._stop)

    async def _worker(self, queue: Iterator[Session]) -> None:
        for session in queue:
            await self._session(session, now_ns())
            if self._stop.is_set():
                return

    def _start(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._thinking.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # A bug of ours, not a failed request: end the run rather than measure on with fewer workers.
            self._failure = task.exception()
            self._stop_issuing()
            self._stop_now.set()
        if not self._tasks:
            self._idle.set()

    async def _first_of(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait until one of the events is set, or the time is up."""
        if any(event.is_set() for event in events):
            return
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _sleep_unless_stopped(self, due_ns: int) -> None:
        """Sleep to an absolute deadline; only a stop request ends it early."""
        while not self._stop.is_set() and (left_ns := due_ns - now_ns()) > 0:
            await self._first_of(self._stop, timeout_s=left_ns / NS_PER_S)

    async def _drain(self) -> int:
        """Wait for what is in flight, at most the drain time; the rest is cancelled and becomes rows."""
        for task in tuple(self._thinking):
            task.cancel()
        await self._first_of(self._idle, self._stop_now, timeout_s=self._drain_ns / NS_PER_S)
        cancelled = self.counts.in_flight
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        return cancelled

    # ------------------------------------------------------------------ one session

    async def _session(self, session: Session, scheduled_ns: int) -> None:
        self.counts.active += 1
        try:
            if all(turn.after == ((i - 1,) if i else ()) for i, turn in enumerate(session.turns)):
                await self._chain(session, scheduled_ns)
            else:
                await self._graph(session, scheduled_ns)
        finally:
            self.counts.active -= 1

    async def _chain(self, session: Session, scheduled_ns: int) -> None:
        history: History | None = None
        for index, turn in enumerate(session.turns):
            if index:
                scheduled_ns = now_ns() + turn.think_ns
                if turn.think_ns:
                    await self._think(scheduled_ns)
                if self._stop.is_set():
                    return
            live_next = index + 1 < len(session.turns) and session.turns[index + 1].live
            ok, history = await self._turn(session, index, scheduled_ns, history, keep_output=live_next)
            if not ok and live_next:
                self._skip(session, index + 1, f"not sent: turn {index} failed and the history is live")
                return

    async def _graph(self, session: Session, scheduled_ns: int) -> None:
        """A session whose turns wait for several others or run side by side (agents with sub-agents)."""
        loop = asyncio.get_running_loop()
        done: list[asyncio.Future[int]] = [loop.create_future() for _ in session.turns]

        async def one(index: int) -> None:
            turn = session.turns[index]
            ends = [await done[before] for before in turn.after]
            due_ns = max(ends, default=scheduled_ns) + turn.think_ns
            if due_ns > now_ns():
                await self._sleep_unless_stopped(due_ns)
            if not self._stop.is_set():
                await self._turn(session, index, due_ns, None, keep_output=False)
            if not done[index].done():
                done[index].set_result(now_ns())

        tasks = [loop.create_task(one(i)) for i in range(len(session.turns))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _think(self, until_ns: int) -> None:
        task = asyncio.current_task()
        if self._stop.is_set() or task is None:
            return
        self._thinking.add(task)
        try:
            await sleep_until(until_ns)
        finally:
            self._thinking.discard(task)

    # ------------------------------------------------------------------ one request

    async def _turn(
        self, session: Session, index: int, scheduled_ns: int, history: History | None, *, keep_output: bool
    ) -> tuple[bool, History | None]:
        """Send one turn; returns (answered, history for a live next turn)."""
        made = self._turns.take(session, index, history)
        exchange = Exchange()
        self.counts.issued += 1
        self.counts.in_flight += 1
        try:
            await self._transport.send(made.request, exchange, self._turns.timeout_ns)
        finally:
            self.counts.in_flight -= 1
            self.counts.finished += 1
            self._turns.ended(session, index, scheduled_ns, made, exchange)
        return self._turns.outcome(made, exchange, keep_output=keep_output)

    def _shed(self, session: Session, due_ns: int, limit: int) -> None:
        self.counts.shed += 1
        for index in range(len(session.turns)):
            self._turns.unsent(session, index, due_ns, "shed", f"not sent: {limit} sessions already in flight (limit)")

    def _skip(self, session: Session, first: int, why: str) -> None:
        for index in range(first, len(session.turns)):
            self._turns.unsent(session, index, None, "aborted", why)
