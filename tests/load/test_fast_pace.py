"""Exact wake-ups and a quiet garbage collector."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from hicache_bench.clock import now_ns
from hicache_bench.load import fast_pace
from hicache_bench.load.fast_pace import Alarm, quiet_collector

MS = 1_000_000


@pytest.fixture(params=["descriptor", "loop timer"])
def kind(request, monkeypatch):
    if request.param == "loop timer":
        monkeypatch.setattr(fast_pace, "sys", type("Elsewhere", (), {"platform": "darwin"}))
    return request.param


async def test_sleeps_are_absolute_and_not_early(kind):
    alarm = Alarm()
    late = []
    start_ns = now_ns()
    for i in range(1, 101):
        due_ns = start_ns + i * MS
        while due_ns > now_ns():
            await alarm.sleep_until(due_ns)
        late.append(now_ns() - due_ns)
    alarm.close()
    assert min(late) >= 0
    assert now_ns() - start_ns >= 100 * MS
    if kind == "descriptor" and sys.platform.startswith("linux"):
        assert sorted(late)[10] < MS  # a loop timer is late by up to a millisecond; the machine may be busy


async def test_a_sleep_ends_early_when_woken(kind):
    alarm = Alarm()
    asyncio.get_running_loop().call_later(0.02, alarm.wake)
    start_ns = now_ns()
    await asyncio.wait_for(alarm.sleep_until(start_ns + 60_000 * MS), 5)
    assert now_ns() - start_ns < 5_000 * MS
    start_ns = now_ns()
    await alarm.sleep_until(start_ns + 30 * MS)  # the earlier deadline is forgotten
    assert now_ns() - start_ns >= 29 * MS
    alarm.close()


async def test_a_passed_deadline_returns_at_once(kind):
    alarm = Alarm()
    await alarm.sleep_until(now_ns() - MS)
    alarm.close()
    alarm.close()


def test_the_collector_is_quiet_inside_and_as_before_outside():
    before = gc.get_threshold()
    with quiet_collector():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[1:] == (fast_pace.NEVER, fast_pace.NEVER)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
