"""One load process: its engine, its fold child, its statistics, and the way its rows take."""


from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import MeasureError
from hicache_bench.load.limits import ensure_descriptors
from hicache_bench.locust_user.channel import end_child, start_child
from hicache_bench.locust_user.engine import Engine
from hicache_bench.locust_user.job import Ending, Job, RowBatch
from hicache_bench.locust_user.options import Reach
from hicache_bench.locust_user.statistics import Statistics
from hicache_bench.locust_user.transport import GeventTransport
from hicache_bench.records import Attempt, ClosedLoop, Exchange, WireRequest

log = logging.getLogger(__name__)

FLUSH_S = 0.05
BATCH_ITEMS = 256
START_S = 60.0
FLUSHED_S = 60.0

Upstream = Callable[[RowBatch], None]
_Item = tuple[Attempt, WireRequest, Exchange]


class Node:
    """Runs one job. `upstream` takes folded rows in order; it may block, and then rows gather here."""

    def __init__(self, job: Job, reach: Reach, statistics: Statistics, upstream: Upstream, processes: int = 1) -> None:
        loop = job.plan.loop
        most = loop.concurrency if isinstance(loop, ClosedLoop) else loop.limit
        ensure_descriptors(min(most, len(job.plan.sessions)))
        self._transport = GeventTransport(reach.url, reach.headers, tls=reach.tls)
        self._statistics = statistics
        self._upstream = upstream
        self._drain_s = job.drain_ns / NS_PER_S
        self._queue: list[_Item] = []
        self._ready, self._flushed, self._gone = Event(), Event(), Event()
        self._channel, self._process = start_child("hicache_bench.locust_user.folding")
        self._channel.send("secrets", reach.secrets)
        self._rows = 0
        self._finished: Event | None = None
        self._receiver = gevent.spawn(self._receive)
        self._sender = gevent.spawn(self._send_forever)
        self.engine = Engine(job, self._transport, self._take, processes)

    def prepare(self) -> None:
        """Bodies built and the fold child up, so that neither costs measured time. Raises MeasureError."""
        self.engine.prebuild()
        if not self._ready.wait(START_S) or self._gone.is_set():
            raise MeasureError(f"the fold process did not start within {START_S:.0f} s")

    def finish(self) -> Ending:
        """Stop issuing, drain, hand every row up, close. Several callers wait for the same end."""
        if self._finished is not None:
            self._finished.wait()
            return self.engine.ending
        self._finished = Event()
        try:
            self.engine.stop()
            if not self.engine.done.wait(self._drain_s + 10):
                log.warning("hicache: the engine did not end within its drain time")
            self._send_queue()
            self._channel.send("flush")
            gevent.wait([self._flushed, self._gone], timeout=FLUSHED_S, count=1)
        except OSError:
            self._gone.set()
        finally:
            self.close()
            self.engine.ending.rows = self._rows
            if not self._flushed.is_set():
                self.engine.ending.failure = self.engine.ending.failure or "the fold process died; rows are lost"
            self._finished.set()
        return self.engine.ending

    def close(self) -> None:
        """End what belongs to this job."""
        self._sender.kill(block=False)
        self._channel.close()
        self._transport.close()
        gevent.spawn(end_child, self._process)

    # ------------------------------------------------------------------ rows

    def _take(self, row: Attempt, request: WireRequest, exchange: Exchange) -> None:
        self._queue.append((row, request, exchange))

    def _send_forever(self) -> None:
        try:
            while True:
                gevent.sleep(FLUSH_S)
                self._send_queue()
        except OSError:
            log.error("hicache: the fold process is gone; ending the run")
            self._gone.set()
            self.engine.stop()

    def _send_queue(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:BATCH_ITEMS], self._queue[BATCH_ITEMS:]
            self._channel.send("fold", batch)

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            kind, body = message
            if kind == "ready":
                self._ready.set()
            elif kind == "flushed":
                self._flushed.set()
            else:
                self._rows += body.n
                self._statistics.add(body.figures)
                self._upstream(body)
        self._gone.set()
        self._ready.set()


def boot_id() -> str:
    """Names the running kernel; empty where there is no /proc. Equal ones share CLOCK_MONOTONIC."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def identity() -> dict[str, Any]:
    """What a worker says of itself."""
    return {"pid": os.getpid(), "boot": boot_id()}
