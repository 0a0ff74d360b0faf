"""The client watches itself: event-loop lag and CPU, so that a run it spoiled says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.stats import ratio, summary

PERIOD_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Health:
    """Loop lag percentiles over the watched time, and the share of one core this process used (0..1+)."""

    loop_lag_p50_ns: int | None
    loop_lag_p99_ns: int | None
    loop_lag_max_ns: int | None
    cpu_fraction: float | None
    samples: int


def health_of(lags_ns: Sequence[int], wall_ns: int, cpu_s: float) -> Health:
    """The figures of `wall_ns` watched nanoseconds, in which this process used `cpu_s` seconds of CPU."""
    found = summary(lags_ns)
    p50, p99, most = (None if value is None else int(value) for value in (found.p50, found.p99, found.max))
    return Health(p50, p99, most, ratio(cpu_s, wall_ns / NS_PER_S), found.n)


class LoopWatch:
    """Samples how late the event loop wakes a timer, every 20 ms."""

    def __init__(self) -> None:
        self._lags: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._wall_ns = 0
        self._cpu_s = 0.0

    def start(self) -> None:
        self._wall_ns, self._cpu_s = now_ns(), time.process_time()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            due = now_ns() + PERIOD_NS
            await asyncio.sleep(PERIOD_NS / NS_PER_S)
            self._lags.append(max(0, now_ns() - due))

    async def stop(self) -> Health:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        return health_of(self._lags, now_ns() - self._wall_ns, time.process_time() - self._cpu_s)
