"""Kernel marks become monotonic instants; a stepped clock spoils none."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from hicache_bench.load import stamps
from hicache_bench.load.stamps import ANCILLARY_BYTES, KernelClock, ask_for_stamps, kernel_real_ns, sample_offset_ns

MS = 1_000_000
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernel receive marks are Linux only")


class Clocks:
    """Two clocks set by hand in place of the time module's."""

    def __init__(self) -> None:
        self.mono, self.offset = 1_000 * MS, 5_000_000 * MS

    def monotonic_ns(self) -> int:
        return self.mono

    def time_ns(self) -> int:
        return self.mono + self.offset


@pytest.fixture
def clocks(monkeypatch):
    fake = Clocks()
    monkeypatch.setattr(stamps, "time", fake)
    return fake


def test_a_mark_is_converted(clocks):
    clock = KernelClock()
    real = clocks.time_ns()
    clocks.mono += 50 * MS
    assert clock.instant(real, clocks.mono, 900 * MS) == 1_000 * MS
    assert clock.refused == 0


@pytest.mark.parametrize("step_ms", [-3_600_000, -30, 30, 3_600_000])
def test_a_step_between_arrival_and_read_is_refused(clocks, step_ms):
    clock = KernelClock()
    real = clocks.time_ns()
    clocks.mono += 20 * MS
    clocks.offset += step_ms * MS
    found = clock.instant(real, clocks.mono, 900 * MS)
    assert found is None
    assert clock.refused == 1


@pytest.mark.parametrize("step_ms", [-30, 30])
def test_marks_after_a_step_are_believed_again(clocks, step_ms):
    clock = KernelClock()
    clocks.offset += step_ms * MS
    clocks.mono += 1 * MS
    clock.instant(clocks.time_ns(), clocks.mono, 0)
    clocks.mono += 1 * MS
    real = clocks.time_ns()
    clocks.mono += 5 * MS
    assert clock.instant(real, clocks.mono, 0) == clocks.mono - 5 * MS


def test_impossible_instants_are_refused(clocks):
    clock = KernelClock()
    assert clock.instant(clocks.time_ns() + 1 * MS, clocks.mono, 0) is None  # after the read
    assert clock.instant(clocks.time_ns() - 9 * MS, clocks.mono, clocks.mono - 5 * MS) is None  # before the send


def test_slow_drift_is_followed(clocks):
    clock = KernelClock()
    for _ in range(1000):
        clocks.mono += MS
        clocks.offset += 500  # 500 ppm, far more than the kernel allows between the two clocks
        real = clocks.time_ns()
        clocks.mono += MS // 10
        found = clock.instant(real, clocks.mono, 0)
        if found is not None:
            assert abs(found - (clocks.mono - MS // 10)) < 100_000


def test_no_mark_among_other_messages():
    assert kernel_real_ns([]) is None
    assert kernel_real_ns([(socket.SOL_SOCKET, 1, b"1234")]) is None
    assert kernel_real_ns([(socket.SOL_SOCKET, stamps.SO_TIMESTAMPNS, b"short")]) is None


@linux
def test_the_kernel_marks_the_arrival_and_not_the_read():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            assert ask_for_stamps(ours)
            clock = KernelClock()
            for _ in range(20):  # the kernel turns marking on a moment after it is asked
                sent_ns = time.monotonic_ns()
                theirs.send(b"x")
                time.sleep(0.05)
                _, ancillary, _, _ = ours.recvmsg(10, ANCILLARY_BYTES)
                real_ns = kernel_real_ns(ancillary)
                if real_ns is not None:
                    break
            read_ns = time.monotonic_ns()
            assert real_ns is not None
            found = clock.instant(real_ns, read_ns, sent_ns)
    assert found is not None
    assert sent_ns <= found < read_ns - 40 * MS


def test_offset_sample_is_steady():
    assert abs(sample_offset_ns() - sample_offset_ns()) < 5 * MS
