"""The load process watches its own gevent loop and CPU, as `load.health` does under asyncio."""

from __future__ import annotations

import time
from typing import Any

import gevent

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.load.health import PERIOD_NS, Health, health_of


class LagWatch:
    """Samples how late gevent wakes a timer, every 20 ms."""

    def __init__(self) -> None:
        self._lags: list[int] = []
        self._greenlet: gevent.Greenlet[..., Any] | None = None
        self._wall_ns = 0
        self._cpu_s = 0.0

    def start(self) -> None:
        self._wall_ns, self._cpu_s = now_ns(), time.process_time()
        self._greenlet = gevent.spawn(self._watch)

    def _watch(self) -> None:
        while True:
            due_ns = now_ns() + PERIOD_NS
            gevent.sleep(PERIOD_NS / NS_PER_S)
            self._lags.append(max(0, now_ns() - due_ns))

    def stop(self) -> Health:
        """The figures since `start`; all None when it never started or nothing was sampled."""
        if self._greenlet is None:
            return Health(None, None, None, None, 0)
        self._greenlet.kill(block=False)
        return health_of(self._lags, now_ns() - self._wall_ns, time.process_time() - self._cpu_s)
