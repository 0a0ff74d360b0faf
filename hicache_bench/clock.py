"""Time: one monotonic clock in nanoseconds, and sleeping to absolute deadlines."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

now_ns = time.monotonic_ns
"""CLOCK_MONOTONIC in nanoseconds: one time base for every process of one host."""


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """Ties the monotonic instants of a run to the wall clock, read once at its start."""

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def read(cls) -> ClockAnchor:
        return cls(time.monotonic_ns(), time.time_ns())

    def wall_of(self, instant_ns: int) -> int:
        """Wall-clock nanoseconds since the epoch of a monotonic instant."""
        return self.wall_ns + (instant_ns - self.monotonic_ns)


async def sleep_until(deadline_ns: int) -> None:
    """Return at `deadline_ns` (monotonic), never earlier; at once if it has passed.

    The deadline is absolute, so lateness of one sleep never adds to the next.
    """
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(left / NS_PER_S)
