"""The gevent driver with a transport of our own: order, schedule, shedding, stops. No socket, no Locust."""

from __future__ import annotations

import numpy as np
import pytest

from hicache_bench.clock import now_ns
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.locust_user.job import Job
from hicache_bench.records import ClosedLoop, OpenLoop, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.workload.tokens import TokenSpace

gevent = pytest.importorskip("gevent")
from hicache_bench.locust_user.engine import Engine  # noqa: E402

MS = 10**6


class Answers:
    """A server that takes `seconds` for each request and answers nothing."""

    def __init__(self, seconds: float = 0.0, fail: bool = False) -> None:
        self.seconds, self.fail = seconds, fail
        self.in_flight = self.most = 0

    def send(self, request, exchange, timeout_ns):
        exchange.sent_ns = now_ns()
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            gevent.sleep(self.seconds)
            exchange.status = 500 if self.fail else 200
        except gevent.GreenletExit:
            exchange.failure = ("aborted", "cancelled")
            raise
        finally:
            self.in_flight -= 1
            exchange.done_ns = now_ns()


def turn(key, after=(), think_ns=0, live=False):
    return Turn(Prompt((Segment(key, 4),), n_tokens=4), 1, after=after, think_ns=think_ns, live=live)


def engine(sessions, loop, answers, *, arrivals=None, duration_ns=None, drain_ns=10**9):
    plan = Plan("p", 0, tuple(sessions), np.asarray(arrivals or [0] * len(sessions), dtype=np.int64), loop,
                Stop(duration_ns), "d")
    rows = []
    builder = RequestBuilder(TokenSpace.random_ids(10, 99, "n"), RequestOptions())
    made = Engine(Job(plan, builder, "n", drain_ns), answers, lambda *item: rows.append(item))
    made.prebuild()
    return made, rows


def singles(n):
    return [Session(i, "s", "unique", (turn(f"u{i}"),)) for i in range(n)]


def users(made, n):
    def loop():
        while made.serve():
            pass

    return [gevent.spawn(loop) for _ in range(n)]


def finish(made, timeout_s=10):
    assert made.done.wait(timeout_s)
    return made.ending


def test_closed_loop_sends_each_session_once_with_so_many_users():
    answers = Answers(0.01)
    made, rows = engine(singles(30), ClosedLoop(5), answers)
    greenlets = users(made, 5)
    gevent.sleep(0.05)
    assert not rows, "nobody begins before the common start"
    made.start(now_ns())
    ending = finish(made)
    gevent.joinall(greenlets, timeout=5)
    assert sorted(row.session for row, *_ in rows) == list(range(30))
    assert answers.most == 5
    assert (ending.issued, ending.shed, ending.cancelled, ending.stopped) == (30, 0, 0, False)
    assert ending.failure is None


def test_open_loop_keeps_its_instants_and_sheds_over_the_limit():
    offsets = [0, 20, 40, 60, 400]
    made, rows = engine(singles(5), OpenLoop(2), Answers(0.25), arrivals=[at * MS for at in offsets])
    start_ns = now_ns() + 20 * MS
    made.start(start_ns)
    ending = finish(made)
    assert {row.session: (row.scheduled_ns - start_ns) // MS for row, *_ in rows} == dict(enumerate(offsets))
    assert {row.session: x.failure and x.failure[0] for row, _, x in rows} == {
        0: None, 1: None, 2: "shed", 3: "shed", 4: None}
    assert (ending.issued, ending.shed) == (3, 2)
    assert all(x.sent_ns >= row.scheduled_ns for row, _, x in rows if x.sent_ns)


def test_turns_of_a_graph_wait_for_those_they_need():
    turns = (turn("a"), turn("b", (0,)), turn("c", (0,), 50 * MS), turn("d", (1, 2)))
    made, rows = engine([Session(0, "s", "trace", turns)], ClosedLoop(1), Answers(0.02))
    users(made, 1)
    made.start(now_ns())
    finish(made)
    ends = {row.turn: x.done_ns for row, _, x in rows}
    sent = {row.turn: x.sent_ns for row, _, x in rows}
    assert sent[1] >= ends[0]
    assert sent[2] >= ends[0] + 50 * MS
    assert sent[3] >= max(ends[1], ends[2])
    assert sent[1] < ends[2], "siblings run side by side"


def test_a_failed_live_turn_leaves_rows_for_those_that_need_it():
    turns = (turn("a"), turn("b", (0,), live=True), turn("c", (1,), live=True))
    made, rows = engine([Session(0, "s", "multi_turn", turns)], ClosedLoop(1), Answers(fail=True))
    users(made, 1)
    made.start(now_ns())
    finish(made)
    assert [(row.turn, x.failure and x.failure[0]) for row, _, x in rows] == [(0, None), (1, "aborted"), (2, "aborted")]


def test_the_duration_ends_the_issue_and_what_is_in_flight_drains():
    made, rows = engine(singles(1000), ClosedLoop(2), Answers(0.05), duration_ns=200 * MS)
    users(made, 2)
    start_ns = now_ns()
    made.start(start_ns)
    ending = finish(made)
    assert not ending.stopped
    assert not ending.planned_out
    assert 200 * MS <= ending.issue_end_ns - start_ns < 2000 * MS
    assert all(x.failure is None for _, _, x in rows)
    assert all(row.scheduled_ns < ending.issue_end_ns for row, *_ in rows)


def test_what_outlasts_the_drain_is_cancelled_and_still_a_row():
    made, rows = engine(singles(3), ClosedLoop(2), Answers(30), drain_ns=100 * MS)
    users(made, 2)
    made.start(now_ns())
    gevent.sleep(0.1)
    made.stop()
    ending = finish(made)
    assert ending.stopped
    assert (ending.issued, ending.cancelled) == (2, 2)
    assert [x.failure[0] for _, _, x in rows] == ["aborted", "aborted"]


def test_stopped_before_the_start_is_done_at_once():
    made, rows = engine(singles(3), ClosedLoop(2), Answers())
    made.stop()
    assert finish(made, 1).issued == 0
    assert not rows
    assert not made.serve()


def test_a_bug_ends_the_run_and_is_told():
    class Broken(Answers):
        def send(self, request, exchange, timeout_ns):
            raise ValueError("ours")

    made, _ = engine(singles(10), ClosedLoop(1), Broken())
    users(made, 1)
    made.start(now_ns())
    assert finish(made).failure == "ValueError: ours"
