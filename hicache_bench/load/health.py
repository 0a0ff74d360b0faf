"""The client watches itself: event-loop lag and CPU, so that a run it spoiled says so."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from hicache_bench.clock import NS_PER_S, now_ns

PERIOD_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Health:
    """Loop lag percentiles over the watched time, and the share of one core this process used (0..1+)."""

    loop_lag_p50_ns: int | None
    loop_lag_p99_ns: int | None
    loop_lag_max_ns: int | None
    cpu_fraction: float | None
    samples: int


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
        wall_s = (now_ns() - self._wall_ns) / NS_PER_S
        cpu_s = time.process_time() - self._cpu_s
        lags = sorted(self._lags)
        at = (lambda q: lags[min(len(lags) - 1, int(q * len(lags)))]) if lags else (lambda q: None)
        return Health(at(0.5), at(0.99), lags[-1] if lags else None, cpu_s / wall_s if wall_s > 0 else None, len(lags))
