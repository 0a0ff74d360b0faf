"""Keeping the schedule in the hot phase: exact wake-ups, and no long garbage collections."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hicache_bench.clock import NS_PER_S, now_ns

YOUNG_OBJECTS = 10_000
"""New container objects after which the young generation is collected: well under a millisecond."""

NEVER = 1_000_000_000

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = 0o2000000 | 0o4000  # TFD_CLOEXEC | TFD_NONBLOCK
_TFD_TIMER_ABSTIME = 1


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec` of timerfd_settime(2): the interval (unused), then the instant."""

    _fields_ = (("interval_s", ctypes.c_long), ("interval_ns", ctypes.c_long),
                ("at_s", ctypes.c_long), ("at_ns", ctypes.c_long))


class Alarm:
    """Wakes one sleeper at a time at an absolute instant.

    Event loops wake by whole milliseconds (libuv, and epoll in asyncio), which at 1,000 requests/s is the
    gap itself. A timer descriptor (Linux) wakes within some tens of microseconds; elsewhere the loop's timer
    is used. `wake` ends a sleep early. Use from one event loop only, and `close` it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[None] | None = None
        self._spec = _TimerSpec()
        self._fd, self._set = _timer_descriptor()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rang)

    async def sleep_until(self, deadline_ns: int) -> None:
        """Return at `deadline_ns` (monotonic), or after `wake`; at once if it has passed."""
        if deadline_ns <= now_ns():
            return
        sleeper = self._sleeper = self._loop.create_future()
        handle: asyncio.TimerHandle | None = None
        if self._fd >= 0:
            self._spec.at_s, self._spec.at_ns = divmod(deadline_ns, NS_PER_S)
            self._set(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)
        else:
            handle = self._loop.call_later((deadline_ns - now_ns()) / NS_PER_S, self.wake)
        try:
            await sleeper
        finally:
            self._sleeper = None
            if handle is not None:
                handle.cancel()

    def wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _rang(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew in the meantime
        self.wake()


def _timer_descriptor() -> tuple[int, ctypes._FuncPointer]:
    """A timer descriptor and its setter; the descriptor is -1 where there is none."""
    if not sys.platform.startswith("linux"):
        return -1, ctypes.CFUNCTYPE(ctypes.c_int)()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)), libc.timerfd_settime
    except (OSError, AttributeError):
        return -1, ctypes.CFUNCTYPE(ctypes.c_int)()


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No long garbage collection inside: what exists is set aside, only young objects are collected.

    A full collection over a large plan takes tens of milliseconds, which would pose as the server's latency.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
