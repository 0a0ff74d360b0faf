"""The driver against scripted answers: schedule, shedding, live histories, agents, stop and drain."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.driver import Driver
from hicache_bench.load.fast import FastTransport
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.records import ClosedLoop, OpenLoop, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.wire.fold import fold
from hicache_bench.workload.tokens import TokenSpace
from tests.scripted import ScriptedServer, json_answer, native_stream

S = 1_000_000_000


@pytest.fixture(autouse=True, params=[AiohttpTransport, FastTransport])
def lane(request, monkeypatch):
    """Every test below runs over both transports."""
    monkeypatch.setitem(globals(), "AiohttpTransport", request.param)


def prompt(key: str, n: int = 8) -> Prompt:
    return Prompt((Segment(key, n),), n_tokens=n)


def single(i: int, n_out: int = 3) -> Session:
    return Session(i, "s", "unique", (Turn(prompt(f"p{i}"), n_out, prompt_tokens=8),))


def plan(sessions, loop, arrivals=None, stop: Stop | None = None) -> Plan:
    offsets = np.asarray(arrivals if arrivals is not None else [0] * len(sessions), dtype=np.int64)
    return Plan("t", 0, tuple(sessions), offsets, loop, stop or Stop(), "d")


async def drive(server, the_plan, *, interrupt_after=(), drain_ns=5 * S, prebuild=False, **options):
    rows = []
    transport = AiohttpTransport(server.url, {})
    await transport.open()
    builder = RequestBuilder(TokenSpace.random_ids(100, 5000, "n"), RequestOptions(**options))
    driver = Driver(transport, builder, lambda *item: rows.append(item), drain_ns=drain_ns)
    if prebuild:
        assert driver.prebuild(the_plan) > 0
    task = asyncio.create_task(driver.run(the_plan))
    for seconds in interrupt_after:
        await asyncio.sleep(seconds)
        driver.interrupt()
    result = await asyncio.wait_for(task, 30)
    await transport.close()
    return rows, result


async def test_closed_loop_keeps_its_concurrency():
    async with ScriptedServer(lambda seen: native_stream(2, gap=0.02)) as server:
        rows, result = await drive(server, plan([single(i) for i in range(40)], ClosedLoop(5)), prebuild=True)
    assert server.peak == 5
    assert sorted(row.session for row, _, _ in rows) == list(range(40))
    assert result.counts.issued == 40
    assert not result.interrupted
    assert not result.planned_out


async def test_duration_stops_issuing_and_drains():
    async with ScriptedServer(lambda seen: native_stream(2, gap=0.3)) as server:
        rows, result = await drive(server, plan([single(i) for i in range(1000)], ClosedLoop(2),
                                                stop=Stop(duration_ns=S // 2)))
    assert 2 <= len(rows) <= 8
    assert all(fold(request, exchange).outcome == "ok" for _, request, exchange in rows)
    assert result.cancelled == 0


async def test_running_out_of_plan_before_the_duration_is_told():
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        _, result = await drive(server, plan([single(0)], ClosedLoop(1), stop=Stop(duration_ns=20 * S)))
    assert result.planned_out


async def test_d21_stall_neither_delays_the_schedule_nor_hides_in_the_latency():
    """50 requests/s for two seconds; the server stalls everything that arrives in the first second."""
    start = []

    def script(seen):
        start.append(seen.arrived_ns)
        stalled = max(0.0, 1.0 - (seen.arrived_ns - start[0]) / S)
        return native_stream(1, first=stalled)

    arrivals = [i * S // 50 for i in range(100)]
    async with ScriptedServer(script) as server:
        rows, _ = await drive(server, plan([single(i) for i in range(100)], OpenLoop(1000), arrivals))
    lags = [exchange.sent_ns - row.scheduled_ns for row, _, exchange in rows]
    gaps = np.diff(sorted(row.scheduled_ns for row, _, _ in rows))
    assert len(rows) == 100
    assert set(gaps.tolist()) == {S // 50}
    assert np.median(lags) < 20_000_000
    # Every request due during the stall waited for its end, and the schedule-based latency says so.
    first = min(rows, key=lambda item: item[0].scheduled_ns)
    folded = fold(first[1], first[2])
    assert folded.first_token_ns - first[0].scheduled_ns > 0.9 * S


async def test_open_loop_sheds_above_the_limit_instead_of_blocking():
    arrivals = [i * S // 100 for i in range(50)]
    async with ScriptedServer(lambda seen: native_stream(1, first=2.0)) as server:
        rows, result = await drive(server, plan([single(i) for i in range(50)], OpenLoop(5), arrivals))
    outcomes = [fold(request, exchange).outcome for _, request, exchange in rows]
    assert outcomes.count("shed") == 45
    assert outcomes.count("ok") == 5
    assert server.peak == 5
    assert result.counts.shed == 45
    shed = [row for row, _, exchange in rows if exchange.sent_ns is None]
    assert all(row.scheduled_ns is not None for row in shed)


def chain(live: bool, think_ns: int = 0) -> Session:
    turns = [Turn(prompt("a"), 3)]
    turns += [Turn(prompt(k), 3, after=(i,), live=live, think_ns=think_ns) for i, k in enumerate("bc")]
    return Session(0, "chat", "multi_turn", tuple(turns))


async def test_live_history_sends_the_servers_own_output_back():
    async with ScriptedServer(lambda seen: native_stream(3)) as server:
        rows, _ = await drive(server, plan([chain(live=True)], ClosedLoop(1)))
    sent = [seen.json()["input_ids"] for seen in server.seen]
    assert len(rows) == 3
    assert sent[1][:8] == sent[0]
    assert sent[1][8:11] == [0, 1, 2]  # what native_stream answered
    assert sent[2][: len(sent[1])] == sent[1]
    assert len(sent[2]) == 8 + 3 + 8 + 3 + 8


async def test_live_history_stops_at_a_failed_turn_and_says_so():
    answers = [native_stream(3), json_answer({"error": "boom"}, 500)]
    async with ScriptedServer(lambda seen: answers[min(len(server.seen), 2) - 1]) as server:
        rows, _ = await drive(server, plan([chain(live=True)], ClosedLoop(1)))
    outcomes = [(row.turn, fold(request, exchange).outcome) for row, request, exchange in rows]
    assert outcomes == [(0, "ok"), (1, "http"), (2, "aborted")]


async def test_scripted_history_goes_on_after_a_failure():
    async with ScriptedServer(lambda seen: json_answer({"error": "boom"}, 500)) as server:
        rows, _ = await drive(server, plan([chain(live=False)], ClosedLoop(1)))
    assert len(rows) == 3
    assert len(server.seen) == 3


async def test_think_time_is_kept_between_turns():
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        rows, _ = await drive(server, plan([chain(live=False, think_ns=S // 4)], ClosedLoop(1)))
    for (_, _, before), (row, _, after) in pairwise(rows):
        assert row.scheduled_ns >= before.done_ns + S // 4
        assert after.sent_ns >= row.scheduled_ns


async def test_agents_children_wait_for_their_parent_and_join():
    """0 → (1, 2 side by side) → 3."""
    turns = (Turn(prompt("a"), 1), Turn(prompt("b"), 1, after=(0,)), Turn(prompt("c"), 1, after=(0,)),
             Turn(prompt("d"), 1, after=(1, 2)))
    async with ScriptedServer(lambda seen: native_stream(1, first=0.2)) as server:
        rows, _ = await drive(server, plan([Session(0, "w", "trace", turns)], ClosedLoop(1)))
    at = {row.turn: exchange for row, _, exchange in rows}
    assert server.peak == 2
    assert min(at[1].sent_ns, at[2].sent_ns) >= at[0].done_ns
    assert at[3].sent_ns >= max(at[1].done_ns, at[2].done_ns)


async def test_interrupt_once_drains():
    async with ScriptedServer(lambda seen: native_stream(2, gap=0.5)) as server:
        rows, result = await drive(server, plan([single(i) for i in range(100)], ClosedLoop(3)),
                                   interrupt_after=(0.2,))
    assert result.interrupted
    assert [fold(request, exchange).outcome for _, request, exchange in rows] == ["ok"] * 3


async def test_interrupt_twice_cancels_and_keeps_partial_rows():
    async with ScriptedServer(lambda seen: native_stream(2, gap=20.0)) as server:
        rows, result = await drive(server, plan([single(i) for i in range(100)], ClosedLoop(3)),
                                   interrupt_after=(0.3, 0.1))
    folded = [fold(request, exchange) for _, request, exchange in rows]
    assert result.cancelled == 3
    assert [f.outcome for f in folded] == ["aborted"] * 3
    assert all(f.output_tokens == 1 for f in folded)


async def test_drain_deadline_cancels_what_is_left():
    async with ScriptedServer(lambda seen: native_stream(2, gap=20.0)) as server:
        rows, result = await drive(server, plan([single(0)], ClosedLoop(1), stop=Stop(duration_ns=S // 10)),
                                   drain_ns=S // 5)
    assert result.cancelled == 1
    assert len(rows) == 1


async def test_a_bug_in_the_sink_ends_the_run_loudly():
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        transport = AiohttpTransport(server.url, {})
        await transport.open()
        builder = RequestBuilder(TokenSpace.random_ids(100, 5000, "n"), RequestOptions())

        def sink(*_):
            raise RuntimeError("full")

        with pytest.raises(RuntimeError, match="full"):
            await Driver(transport, builder, sink).run(plan([single(i) for i in range(10)], ClosedLoop(2)))
        await transport.close()


@pytest.mark.parametrize(("routing", "expected"), [
    ("none", [None] * 4), (2, [2] * 4), ("round_robin", [0, 1, 2, 0]),
])
async def test_dp_routing(routing, expected):
    builder = RequestBuilder(TokenSpace.random_ids(100, 5000, "n"), RequestOptions(dp_routing=routing, dp_size=3))
    assert [builder.dp_rank(single(i)) for i in range(4)] == expected


async def test_sticky_routing_keeps_a_prefix_group_together():
    builder = RequestBuilder(TokenSpace.random_ids(100, 5000, "n"), RequestOptions(dp_routing="sticky", dp_size=3))
    sessions = [Session(i, "s", "shared_prefix", (), affinity=f"g{i % 5}") for i in range(100)]
    ranks = {s.affinity: {builder.dp_rank(t) for t in sessions if t.affinity == s.affinity} for s in sessions}
    assert all(len(found) == 1 for found in ranks.values())
    assert len(set.union(*ranks.values())) > 1
