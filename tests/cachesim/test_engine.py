"""The engine: who runs when, what it costs, and that nothing is lost whatever happens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import COSTS, Costs, IoPath, replace_costs
from hicache_bench.cachesim.engine import Engine
from hicache_bench.cachesim.jobs import Job
from hicache_bench.cachesim.schedule import Schedule
from hicache_bench.errors import UsageError

PAGE = 16
MS = 1_000_000
PLAIN = replace_costs(COSTS["free"], name="plain", prefill_tokens_per_s=1_000_000, decode_step_ms=1.0)
"""A microsecond a prompt token, a millisecond a decode step, copies at once."""


def config(**changes: object) -> CacheConfig:
    return CacheConfig(**{"page_size": PAGE, "device_tokens": 1024 * PAGE, "storage": True,
                          "prefetch_policy": "wait_complete", **changes})  # type: ignore[arg-type]


def engine(costs: Costs = PLAIN, schedule: Schedule | None = None, stepwise: bool = False, **changes: object) -> Engine:
    return Engine(config(**changes), costs, schedule, stepwise=stepwise)


def job(name: object, n_tokens: int, n_out: int = 1, prompt: object = None) -> Job:
    prompt = name if prompt is None else prompt
    return Job(name, [(prompt, page) for page in range(n_tokens // PAGE)], n_tokens, n_out)


def test_one_request_takes_its_prefill_and_its_steps():
    made = engine()
    result = made.submit(job("a", 1000, 4), 5 * MS)
    events = made.run()
    assert [(event.at_ns, event.kind) for event in events] == [
        (5 * MS, "admitted"), (6 * MS, "first_token"), (9 * MS, "finished")]
    assert result.token_ns() == [6 * MS, 7 * MS, 8 * MS, 9 * MS]
    assert result.tiers is not None
    assert result.tiers.cached == 0
    assert made.totals.computed_tokens == 1000
    assert made.idle


@pytest.mark.parametrize(("n_out", "kinds"), [
    (0, ["admitted", "finished"]), (1, ["admitted", "first_token", "finished"])])
def test_no_output_has_no_first_token(n_out, kinds):
    made = engine()
    result = made.submit(job("a", 100, n_out), 0)
    assert [event.kind for event in made.run()] == kinds
    assert (result.first_token_ns is None) == (n_out == 0)


def test_chunks_delay_and_never_join_decode_steps():
    made = engine(chunked_prefill_size=512)
    long = made.submit(job("long", 2048), 0)
    made.run()
    assert made.totals.prefill_batches == 4
    assert long.first_token_ns == 2048 * 1000


def test_prefill_goes_before_decoding():
    made = engine()
    first = made.submit(job("a", 160, 10), 0)
    second = made.submit(job("b", 4000, 1), 2 * MS)
    made.run()
    tokens = first.token_ns()
    assert second.admitted_ns in tokens, "a step under way is finished before the prefill"
    gaps = [late - early for early, late in pairwise(tokens)]
    assert sorted(gaps)[-1] == MS + 4000 * 1000
    assert sorted(gaps)[:-1] == [MS] * 8


def test_requests_decode_together():
    made = engine()
    results = [made.submit(job(name, 160, 11), 0) for name in "abcd"]
    made.run()
    assert made.totals.decode_steps == 10
    assert len({tuple(result.token_ns()) for result in results}) == 1


def test_decode_cost_grows_with_requests_and_context():
    costs = replace_costs(PLAIN, decode_ms_per_request=0.5, decode_ms_per_1k_context=2.0)
    made = engine(costs)
    result = made.submit(job("a", 1000, 3), 0)
    made.run()
    tokens = result.token_ns()
    assert tokens[1] - tokens[0] == MS + MS // 2 + 2 * MS
    assert tokens[2] - tokens[1] == MS + MS // 2 + 2 * MS * 1001 // 1000


def test_running_requests_are_limited_first_come_first_served():
    made = engine(schedule=Schedule(max_running_requests=2))
    results = [made.submit(job(n, 160, 5), 0) for n in range(5)]
    made.run()
    admitted = [result.admitted_ns for result in results]
    assert admitted == sorted(admitted)
    assert admitted[0] == admitted[1] < admitted[2] == admitted[3] < admitted[4]


def test_a_shared_prefix_hits_while_its_first_request_still_runs():
    made = engine()
    made.submit(job("a", 1000, 500, prompt="shared"), 0)
    later = made.submit(job("b", 1000, 1, prompt="shared"), 10 * MS)
    made.run()
    assert later.tiers is not None
    assert later.tiers.device == 992


def evicted_then_asked(made: Engine) -> object:
    """A prompt, then others that push it off the device, then the prompt again."""
    size = made.config.device_tokens // 4
    made.submit(job("first", size), 0)
    made.run()
    for number in range(4):
        made.submit(job(number, size), made.now_ns)
        made.run()
    result = made.submit(job("again", size, 1, prompt="first"), made.now_ns)
    made.run()
    return result


def test_host_hit_takes_the_copy_overlapped_with_the_prefill():
    path = IoPath(h2d_gb_per_s=0.001, d2h_gb_per_s=0)
    costs = replace_costs(PLAIN, kv_bytes_per_token=1, io={"kernel": path}, layers=10)
    made = engine(costs, host_ratio=4.0)
    result = evicted_then_asked(made)
    assert result.tiers.host == 4080
    # 4,080 bytes at 1 MB/s beside 16 computed tokens, a tenth of them not hidden
    assert result.first_token_ns - result.admitted_ns == 4080 * 1000 + 16 * 1000 // 10


def test_storage_hit_waits_for_the_read_and_others_pass():
    costs = replace_costs(PLAIN, kv_bytes_per_token=1, storage_read_gb_per_s=0.001, storage_op_us=50)
    made = engine(costs)
    made.submit(job("first", 4096), 0)
    made.run()
    assert made.flush()
    start = made.now_ns
    slow = made.submit(job("again", 4096, 1, prompt="first"), start)
    quick = made.submit(job("other", 160), start)
    made.run()
    assert slow.tiers.storage == 4080
    assert quick.first_token_ns < slow.admitted_ns
    # 255 pages: two queries and two calls of at most 128
    assert slow.prefetch_wait_ns == slow.admitted_ns - start == 4 * 50_000 + 4080 * 1000


@pytest.mark.parametrize(("policy", "storage"), [("best_effort", 0), ("timeout", 2048), ("wait_complete", 4080)])
def test_prefetch_policies_end_the_wait(policy, storage):
    costs = replace_costs(PLAIN, kv_bytes_per_token=1, storage_read_gb_per_s=0.001)
    made = engine(costs, prefetch_policy=policy, prefetch_timeout_base_s=0.003, prefetch_timeout_per_ki_token_s=0.0)
    made.submit(job("first", 4096), 0)
    made.run()
    assert made.flush()
    again = made.submit(job("again", 4096, 1, prompt="first"), made.now_ns)
    made.run()
    assert again.tiers.storage == storage
    if policy == "timeout":
        assert again.prefetch_wait_ns == 3 * MS


def test_write_back_blocks_the_scheduler_for_its_copy():
    path = IoPath(h2d_gb_per_s=0, d2h_gb_per_s=0.001)
    costs = replace_costs(PLAIN, kv_bytes_per_token=1, io={"kernel": path})
    through, back = (engine(costs, write_policy=policy, host_ratio=8.0) for policy in ("write_through", "write_back"))
    for made in (through, back):
        evicted_then_asked(made)
    assert back.totals.busy_ns > through.totals.busy_ns + 4096 * 1000


def test_too_many_running_are_retracted_and_all_finish():
    """By its 600th step a request reserves a tenth of what it may still generate, so too much is let in."""
    made = engine(device_tokens=256 * PAGE, storage=False)
    results = [made.submit(job("a", 160, 3000), 0), made.submit(job("b", 160, 2800), 610 * MS)]
    made.run()
    assert made.totals.retractions == sum(result.retractions for result in results) > 0
    assert results[1].retractions, "who has generated least gives way"
    assert [result.n_out for result in results] == [3000, 2800]
    for result in results:
        tokens = result.token_ns()
        assert len(tokens) == result.n_out
        assert tokens == sorted(set(tokens))
    made.cache.check()


def test_what_never_fits_is_rejected_and_blocks_nobody():
    made = engine(device_tokens=64 * PAGE)
    big = made.submit(job("big", 64 * PAGE), 0)
    small = made.submit(job("small", 32, 2), 0)
    kinds = {event.job_id: event.kind for event in made.run()}
    assert kinds == {"big": "rejected", "small": "finished"}
    assert "never fits" in str(big.error)
    assert small.n_out == 2


def test_output_is_cut_to_the_pool():
    made = engine(device_tokens=64 * PAGE)
    result = made.submit(job("a", 32 * PAGE, 10_000), 0)
    made.run()
    assert result.n_out == result.output_tokens == 31 * PAGE - 1


@pytest.mark.parametrize("at_ms", [0, 1, 3, 50])
def test_abort_frees_everything(at_ms):
    made = engine(chunked_prefill_size=512)
    made.submit(job("a", 4096, 1000), 0)
    made.submit(job("b", 4096, 3), 0)
    events = made.advance(at_ms * MS)
    assert made.abort("a")
    assert not made.abort("nobody")
    events += made.run()
    kinds = {event.job_id: event.kind for event in events if event.kind in ("aborted", "finished")}
    assert kinds == {"a": "aborted", "b": "finished"}
    assert made.idle
    made.cache.check()
    assert made.cache.protected_tokens == 0


def test_flush_only_when_idle():
    made = engine()
    made.submit(job("a", 160, 10), 0)
    made.advance(2 * MS)
    assert not made.flush()
    made.run()
    assert made.flush()
    assert made.cache.device_used_tokens == 0
    assert made.cache.storage_used_pages > 0
    made.clear_storage()
    assert made.cache.storage_used_pages == 0


@pytest.mark.parametrize(("bad", "rule"), [
    (lambda e: e.submit(job("a", 100), -1), "engine is at"),
    (lambda e: (e.submit(job("a", 100), 0), e.submit(job("a", 100), 0)), "under way"),
    (lambda e: e.submit(Job("a", [], 0, 1), 0), "at least 1 and 0"),
    (lambda e: e.submit(job("a", 10, -1), 0), "at least 1 and 0"),
    (lambda e: e.submit(Job("a", [], 100, 1), 0), "0 page keys"),
    (lambda e: e.advance(-1), "engine is at"),
    (lambda e: Schedule(max_running_requests=0), "max_running_requests 0"),
    (lambda e: Schedule(io_backend="warp"), "kernel, direct"),
])
def test_bad_input_is_refused(bad, rule):
    with pytest.raises(UsageError, match=rule):
        bad(engine())


JOBS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(1, 700), st.integers(0, 60)),
                min_size=1, max_size=14)
POLICY = st.sampled_from(["write_through", "write_through_selective", "write_back"])


def history(jobs, aborted, policy, prefetch, stepwise):
    """Arrival instants, a few shared prompts, a small device: everything that can happen does."""
    costs = replace_costs(COSTS["toy"], decode_step_ms=1.0)
    made = engine(costs, stepwise=stepwise, device_tokens=64 * PAGE, write_policy=policy, prefetch_policy=prefetch,
                  prefetch_threshold=PAGE, chunked_prefill_size=128, host_ratio=1.5)
    results = []
    for number, (at_ms, prompt, n_tokens, n_out) in enumerate(sorted(jobs)):
        results.append(made.submit(job(number, n_tokens, n_out, prompt), at_ms * MS))
    events = []
    for number in aborted:
        events += made.advance(made.now_ns + 7 * MS)
        made.abort(number)
    while (at_ns := made.next_event_ns()) is not None:
        events += made.advance(at_ns)
    return made, results, events


@settings(max_examples=60, deadline=None)
@given(JOBS, st.lists(st.integers(0, 14), max_size=3), POLICY,
       st.sampled_from(["best_effort", "wait_complete", "timeout"]))
def test_every_job_ends_once_and_nothing_leaks(jobs, aborted, policy, prefetch):
    made, results, events = history(jobs, aborted, policy, prefetch, stepwise=False)
    ends = [event.job_id for event in events if event.kind in ("finished", "aborted", "rejected")]
    assert sorted(ends) == list(range(len(jobs)))
    assert [event.at_ns for event in events] == sorted(event.at_ns for event in events)
    assert made.idle
    made.cache.check()
    assert made.cache.protected_tokens == 0
    for result in results:
        tokens = result.token_ns()
        assert len(tokens) == result.n_out <= result.output_tokens
        assert tokens == sorted(set(tokens))
        if result.error is None:
            assert result.n_out == result.output_tokens
            assert result.arrival_ns <= result.admitted_ns <= result.finished_ns


@settings(max_examples=30, deadline=None)
@given(JOBS, POLICY)
def test_step_by_step_gives_the_same_instants(jobs, policy):
    """Making many steps at once is a shortcut, not another schedule, while nobody waits for room."""
    jobs = [(at, prompt, min(n, 100), out) for at, prompt, n, out in jobs[:4]]
    _, fast, _ = history(jobs, [], policy, "wait_complete", stepwise=False)
    _, slow, _ = history(jobs, [], policy, "wait_complete", stepwise=True)
    assert [result.token_ns() for result in fast] == [result.token_ns() for result in slow]
    assert [result.tiers for result in fast] == [result.tiers for result in slow]


def test_a_stepwise_engine_tells_every_token():
    made = engine(stepwise=True)
    result = made.submit(job("a", 160, 5), 0)
    events = made.run()
    told = [event.at_ns for event in events if event.kind in ("first_token", "token")]
    assert told == result.token_ns()
    assert events[-1].kind == "finished"


def test_advance_can_stop_where_a_job_ends():
    made = engine()
    made.submit(job("a", 160, 3), 0)
    made.submit(job("b", 160, 30), 0)
    events = made.advance(10**12, until_over=True)
    assert [event.job_id for event in events if event.kind == "finished"] == ["a"]
    assert made.now_ns == events[-1].at_ns < 10**12
