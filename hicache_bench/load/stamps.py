"""Kernel receive stamps: when bytes reached this host, however late the client reads them.

Linux marks every received TCP segment with CLOCK_REALTIME (`SO_TIMESTAMPNS`, socket(7)) when asked; `recvmsg`
returns the mark of the *last* segment it took from. Segments that queue up while the client is busy are merged
by the kernel and keep the latest mark only (`tcp_try_coalesce`), so a mark is exact for the last byte of a read
and never later than the read. There is nothing of the kind on TLS (the socket is read by the TLS engine) or
outside Linux.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; architectures with another number return no marks, and the loop's stamps are used."""

_TIMESPEC = struct.Struct("@ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0

JITTER_NS = 50_000
"""How far two clock reads in a row may drift apart (a preemption) before the offset is sampled with care."""

STEP_NS = 20_000
"""A change of the careful offset above this is a clock step: NTP slews both clocks alike."""


def ask_for_stamps(sock: socket.socket) -> bool:
    """Turn kernel receive stamps on for one socket; False where there are none."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def kernel_real_ns(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The CLOCK_REALTIME mark among a read's control messages, or None."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return None


def sample_offset_ns(samples: int = 5) -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC, from the tightest of some readings."""
    best_width, best = 1 << 62, 0
    for _ in range(samples):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, real - (before + after) // 2
    return best


class KernelClock:
    """Turns kernel marks into monotonic instants, and refuses those a stepped clock may have spoiled."""

    __slots__ = ("_believed_from_ns", "_offset_ns", "refused")

    def __init__(self) -> None:
        self._offset_ns = sample_offset_ns()
        self._believed_from_ns = 0
        self.refused = 0

    def instant(self, real_ns: int, read_ns: int, floor_ns: int) -> int | None:
        """The monotonic instant of a mark, or None when it cannot be true.

        `read_ns` was taken right after the read; `floor_ns` is the instant the request was sent. The offset is
        checked on every read, so a step is seen before a converted mark is believed; marks from before it are
        refused.
        """
        if not -JITTER_NS < time.time_ns() - read_ns - self._offset_ns < JITTER_NS:
            self._look_again()
        instant = real_ns - self._offset_ns
        if instant > read_ns or instant < floor_ns or instant < self._believed_from_ns:
            self.refused += 1
            return None
        return instant

    def _look_again(self) -> None:
        offset_ns = sample_offset_ns()
        if abs(offset_ns - self._offset_ns) > STEP_NS:
            self._believed_from_ns = time.monotonic_ns()
        self._offset_ns = offset_ns
