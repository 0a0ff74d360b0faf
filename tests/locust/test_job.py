"""Shares, clocks and row batches: pure, without Locust."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.locust_user.folding import batches, figures_of, hide
from hicache_bench.locust_user.job import (
    PART_BYTES,
    Clock,
    Job,
    cut,
    pack_job,
    pack_rows,
    parts,
    relate,
    to_correct,
    unpack_job,
    unpack_rows,
)
from hicache_bench.records import Attempt, ClosedLoop, Exchange, OpenLoop, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.scrub import byte_forms
from hicache_bench.workload.tokens import TokenSpace


def plan_of(sessions: int, loop: OpenLoop | ClosedLoop) -> Plan:
    made = tuple(Session(i, "s", "unique", (Turn(Prompt((Segment(f"u{i}", 8),), n_tokens=8), 2),))
                 for i in range(sessions))
    return Plan("p", 0, made, np.arange(sessions, dtype=np.int64), loop, Stop(None, sessions), "d")


def attempt(**given) -> Attempt:
    return Attempt(3, 0, 0, "s", "unique", "", "measure", "generate", True, **given)


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 500), st.booleans())
def test_shares_are_disjoint_and_whole(sessions, n, places, closed):
    loop = ClosedLoop(places) if closed else OpenLoop(places)
    plan = plan_of(sessions, loop)
    if sessions < n or places < n:
        with pytest.raises(UsageError, match=str(n)):
            cut(plan, n)
        return
    shares = cut(plan, n)
    assert sorted(s.id for share in shares for s in share.sessions) == list(range(sessions))
    assert max(len(share.sessions) for share in shares) - min(len(share.sessions) for share in shares) <= 1
    for share in shares:
        assert [s.id for s in share.sessions] == share.arrivals_ns.tolist(), "each session keeps its start"
        assert share.digest == plan.digest
    given_out = [s.loop.concurrency if closed else s.loop.limit for s in shares]
    assert sum(given_out) == places
    assert min(given_out) >= 1


@given(st.integers(-10**12, 10**12), st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1))
def test_the_clock_is_within_its_stated_uncertainty(offset, delays):
    now, pings = 10**15, []
    for out, back in delays:
        pings.append((now, now + out + offset, now + out + back))
        now += out + back
    clock = relate(pings)
    assert abs(clock.offset_ns - offset) <= clock.uncertainty_ns + 1
    assert clock.uncertainty_ns <= min(out + back for out, back in delays) / 2 + 1


def test_noise_is_not_corrected_within_one_kernel():
    assert to_correct(Clock(900, 1000), same_kernel=True) == 0
    assert to_correct(Clock(900, 1000), same_kernel=False) == 900
    assert to_correct(Clock(5000, 1000), same_kernel=True) == 5000  # a time namespace
    with pytest.raises(UsageError):
        relate([])


def test_a_job_survives_the_way_to_a_worker():
    space = TokenSpace.random_ids(10, 5000, "nonce")
    space.move("u1")
    builder = RequestBuilder(space, RequestOptions())
    job = Job(plan_of(3, ClosedLoop(1)), builder, "nonce", 10**9)
    pieces = parts(pack_job(job), 100)
    assert all(len(piece) <= 100 for piece in pieces)
    there = unpack_job(b"".join(pieces))
    assert there.plan.sessions == job.plan.sessions
    for session in job.plan.sessions:
        bodies = [b.build(b.context(session.turns[0].prompt, None), 2, "r", None) for b in (builder, there.builder)]
        assert bodies[0] == bodies[1]
    assert parts(b"") == [b""]


@given(st.integers(-10**12, 10**12), st.lists(st.integers(0, 2**62), max_size=5), st.none() | st.integers(0, 2**62))
def test_rows_come_back_with_their_instants_moved(offset, chunks, first):
    row = attempt(scheduled_ns=5, first_token_ns=first, chunk_ns=list(chunks), chunk_tokens=[1] * len(chunks),
                  cached_tokens=0, device_tokens=None)
    (there,) = unpack_rows(pack_rows([row]), offset)
    assert there.scheduled_ns == 5 - offset
    assert there.first_token_ns == (None if first is None else first - offset)
    assert there.chunk_ns == [chunk - offset for chunk in chunks]
    assert there.sent_ns is None
    assert (there.cached_tokens, there.device_tokens, there.chunk_tokens) == (0, None, row.chunk_tokens)


def test_batches_are_bounded_and_lose_nothing():
    rows = [attempt(chunk_ns=list(range(2000)), chunk_tokens=[1] * 2000) for _ in range(300)]
    made = batches(rows)
    assert sum(batch.n for batch in made) == sum(len(batch.figures) for batch in made) == 300
    assert max(len(batch.data) for batch in made) <= PART_BYTES
    assert [row for batch in made for row in unpack_rows(batch.data)] == rows
    assert batches([]) == []
    assert [batch.n for batch in batches(rows[:2], limit=10)] == [1, 1]


def test_figures_count_from_the_schedule_and_absent_stays_absent():
    ms = 10**6
    row = attempt(scheduled_ns=0, sent_ns=2 * ms, first_token_ns=10 * ms, done_ns=31 * ms,
                  chunk_ns=[10 * ms, 20 * ms, 30 * ms], chunk_tokens=[1, 3, 2], output_tokens=6)
    made = figures_of(row)
    assert (made.ttft_ms, made.e2e_ms, made.itl_ms) == (10, 31, 4)
    nothing = figures_of(attempt(scheduled_ns=0, outcome="shed"))
    assert (nothing.ttft_ms, nothing.e2e_ms, nothing.itl_ms, nothing.device_tokens) == (None, None, None, None)
    assert figures_of(attempt(chunk_ns=[5], chunk_tokens=[1])).itl_ms is None


def test_a_key_that_the_server_repeats_does_not_become_a_row():
    forms = byte_forms(["sk-secret"])
    refused = Exchange(status=401, reads=[(1, b'{"error":"bad key sk-se'), (2, b'cret"}')])
    hide(refused, forms)
    assert refused.reads == [(2, b'{"error":"bad key ***"}')]
    streamed = Exchange(status=200, reads=[(1, b"data: a"), (2, b"sk-secret b")])
    hide(streamed, forms)
    assert streamed.reads == [(1, b"data: a"), (2, b"*** b")]
