"""The companion process: a whole run (capture, reset, prime, rows, settle, run directory) round a measured
phase that Locust drives.

The phases are asyncio and Locust is gevent, so they live in two processes. The companion belongs to the local
process or the master; there is one, whatever the number of workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from hicache_bench import bench
from hicache_bench.analysis.summary import render_text, summarize
from hicache_bench.clock import now_ns
from hicache_bench.errors import EXIT_MEASURE, BenchError, MeasureError
from hicache_bench.load.driver import DriveResult
from hicache_bench.load.requests import RequestBuilder
from hicache_bench.load.turns import Counts
from hicache_bench.locust_user.channel import Channel, inherited
from hicache_bench.locust_user.job import Ending, Job, cut, pack_job, unpack_rows
from hicache_bench.locust_user.live import Live
from hicache_bench.locust_user.settings import read_settings
from hicache_bench.recording import Progress
from hicache_bench.records import ClosedLoop, Plan

LIVE_S = 1.0


@dataclasses.dataclass(slots=True)
class Share:
    """One load process as the companion sees it."""

    id: str
    requests: int
    clock_offset_ns: int = 0
    clock: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: int = 0
    ending: Ending | None = None
    """None: the process was lost."""

    def plain(self) -> dict[str, Any]:
        ending = self.ending
        return {"id": self.id, "requests": self.requests, "rows": self.rows, "lost": ending is None,
                "issued": None if ending is None else ending.issued, "shed": None if ending is None else ending.shed,
                **self.clock, "health": {} if ending is None else ending.health}


def _say(channel: Channel, kind: str, body: Any) -> None:
    """Tell Locust's process; one that was killed must not keep the run from being sealed."""
    try:
        channel.send(kind, body)
    except OSError:
        pass


class Says:
    """Passes the run's phases and notes on to Locust's log."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def note(self, text: str) -> None:
        _say(self._channel, "note", text)

    def phase(self, name: str) -> None:
        _say(self._channel, "phase", name)

    def tick(self, counts: Counts, progress: Progress, elapsed_ns: int, plan: Plan) -> None:
        """Locust prints its own progress."""


class Companion:
    """Stands in for the driver: hands shares of the plan out and takes rows in."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.inbox: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()

    async def measure(self, this: bench.Run, transport: object, builder: RequestBuilder,
                      start_state: str) -> DriveResult:
        """The measured phase of `bench.run`; the requests are sent by one or more Locust processes."""
        shares = await self._hand_out(this, builder)
        start_ns, ids = await self._expect("start")
        for share, (name, offset_ns, clock) in zip(shares, ids, strict=True):
            share.id, share.clock_offset_ns, share.clock = name, offset_ns, clock
        this.observer.phase("measure")
        this.scraper.start()
        this.rundir.append_event("measure_start", start_state=start_state)
        this.save(measure_start_ns=start_ns, locust=_about(shares))
        live = Live(start_ns)
        ticker = asyncio.get_running_loop().create_task(self._tick(this, live))
        try:
            interrupted = await self._collect(this, shares, live)
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            await this.scraper.stop()
        _say(self._channel, "live", live.snapshot())
        result = _result(this, shares, start_ns, interrupted)
        this.rundir.append_event("measure_end", interrupted=interrupted, cancelled=result.cancelled)
        for share in shares:
            _mark(this, share)
        this.save(issue_end_ns=result.issue_end_ns, measure_end_ns=result.end_ns, locust=_about(shares),
                  client={**_worst(shares), "recorder_backlog_bytes": this.recorder.max_backlog_bytes})
        this.recorder.check()
        failures = [share.ending.failure for share in shares if share.ending and share.ending.failure]
        if failures:
            raise MeasureError(f"the load process failed: {failures[0]}")
        return result

    async def _hand_out(self, this: bench.Run, builder: RequestBuilder) -> list[Share]:
        plan = this.plan
        closed = isinstance(plan.loop, ClosedLoop)
        _say(self._channel, "planned", {"closed": closed, "sessions": len(plan.sessions),
                                        "requests": plan.n_requests, "duration_ns": plan.stop.duration_ns})
        plans = cut(plan, await self._expect("split"))
        for share in plans:
            job = Job(share, builder, this.nonce, int(this.spec.drain.deadline))
            _say(self._channel, "share", await asyncio.to_thread(pack_job, job))
        return [Share("", share.n_requests) for share in plans]

    async def _expect(self, kind: str) -> Any:
        message = await self.inbox.get()
        if message is None or message[0] != kind:
            raise asyncio.CancelledError  # stopped before the measured phase: `bench.run` seals it as aborted
        return message[1]

    async def _collect(self, this: bench.Run, shares: list[Share], live: Live) -> bool:
        """Rows until the end is told; returns whether the run was cut short: stopped, a worker lost, or the
        load process gone."""
        while (message := await self.inbox.get()) is not None:
            kind, body = message
            if kind == "rows":
                index, data = body
                self._take(this, shares[index], data, live)
            elif kind == "end":
                for share, (ending, drift_ns) in zip(shares, body, strict=True):
                    share.ending = ending
                    share.clock = {**share.clock, "drift_ns": drift_ns}
                return any(share.ending is None or share.ending.stopped for share in shares)
        return True

    def _take(self, this: bench.Run, share: Share, data: bytes, live: Live) -> None:
        try:
            rows = unpack_rows(data, share.clock_offset_ns)
        except msgspec.DecodeError as error:
            this.warn("bad_rows", f"rows of {share.id} could not be read: {error}", "do all processes run the same "
                      "version of hicache-bench?")
            return
        share.rows += len(rows)
        for row in rows:
            this.recorder.put_row(row)
        live.add(rows)

    async def _tick(self, this: bench.Run, live: Live) -> None:
        while True:
            await asyncio.sleep(LIVE_S)
            _say(self._channel, "live", live.snapshot())
            try:
                this.recorder.check()
            except BenchError as error:
                _say(self._channel, "stop", str(error))
                return


def _about(shares: list[Share]) -> dict[str, Any]:
    return {"version": version("locust"), "workers": [share.plain() for share in shares]}


def _mark(this: bench.Run, share: Share) -> None:
    if share.ending is None:
        this.warn("worker_lost", f"worker {share.id} was lost: {share.requests - share.rows} of the "
                  f"{share.requests} requests of its share are not reported (not sent, or lost with it)",
                  "the figures cover what was received from it; run again")
    elif share.rows != share.ending.rows:
        this.warn("rows_missing", f"worker {share.id} sent {share.ending.rows} rows and {share.rows} arrived")


def _result(this: bench.Run, shares: list[Share], start_ns: int, interrupted: bool) -> DriveResult:
    ended = [(share, share.ending) for share in shares if share.ending is not None]
    lost = sum(share.rows for share in shares if share.ending is None)
    issue_ends = [ending.issue_end_ns - share.clock_offset_ns for share, ending in ended
                  if ending.issue_end_ns is not None]
    ends = [ending.end_ns - share.clock_offset_ns for share, ending in ended if ending.end_ns is not None]
    counts = Counts(issued=sum(ending.issued for _, ending in ended) + lost,
                    shed=sum(ending.shed for _, ending in ended))
    return DriveResult(
        start_ns=start_ns,
        issue_end_ns=max(issue_ends, default=now_ns()),
        end_ns=max(ends, default=now_ns()),
        counts=counts,
        planned_out=any(ending.planned_out for _, ending in ended),
        interrupted=interrupted,
        cancelled=sum(ending.cancelled for _, ending in ended),
    )


def _worst(shares: list[Share]) -> dict[str, Any]:
    """Each figure of loop health as the worst process had it: that is the one that spoils a run."""
    healths = [share.ending.health for share in shares if share.ending is not None]
    names = sorted({name for health in healths for name in health})
    worst: dict[str, Any] = {}
    for name in names:
        known = [health[name] for health in healths if health.get(name) is not None]
        worst[name] = (min if name == "samples" else max)(known) if known else None
    return worst


# --------------------------------------------------------------------------- the process


async def _serve(channel: Channel, given: Mapping[str, Any]) -> None:
    companion, loop = Companion(channel), asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def closed() -> None:
        if companion.inbox.empty() and not measuring:
            task.cancel()  # nobody waits for the reset or the priming any more
        companion.inbox.put_nowait(None)

    def listen() -> None:
        while (message := channel.receive()) is not None:
            loop.call_soon_threadsafe(companion.inbox.put_nowait, message)
        loop.call_soon_threadsafe(closed)

    measuring: list[bool] = []

    async def measure(*args: Any) -> DriveResult:
        measuring.append(True)
        return await companion.measure(*args)

    threading.Thread(target=listen, name="companion-listen", daemon=True).start()
    spec, path, target, options = read_settings(given)
    run_dir = await bench.run(spec, path, target, options, Says(channel), bench.Interrupt(),
                              measure)
    _say(channel, "sealed", {"path": str(run_dir), "text": render_text(summarize(run_dir))})


def main(argument: str) -> None:
    """One run; ends when it is sealed. The load process may go at any time: what it gave is stored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = inherited(argument)
    first = channel.receive()
    if first is None:
        return
    failure: tuple[int, str] | None = None
    try:
        asyncio.run(_serve(channel, first[1]))
    except BenchError as error:
        failure = (error.exit_code, str(error))
    except asyncio.CancelledError:
        failure = (EXIT_MEASURE, "stopped before the measured phase; the run is sealed as aborted")
    except Exception as error:  # Locust's user must learn of a bug here, too
        failure = (EXIT_MEASURE, f"the companion failed: {type(error).__name__}: {error}")
    if failure is not None:
        _say(channel, "failed", failure)


if __name__ == "__main__":
    # Messages name the classes of this module by its real name, not __main__.
    from hicache_bench.locust_user.companion import main as serve

    serve(sys.argv[1])
