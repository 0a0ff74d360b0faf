"""Arrival schedules: rates, shapes, seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench import pacing
from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.pacing import Stage


def test_constant_is_even_and_starts_at_once():
    made = pacing.count_schedule("constant", 8.0, 5, seed=0)
    assert made.dtype == np.int64
    assert made.tolist() == [0, 125_000_000, 250_000_000, 375_000_000, 500_000_000]


def test_constant_duration_is_half_open():
    assert pacing.duration_schedule("constant", 10.0, NS_PER_S, seed=0).tolist() == [
        i * 100_000_000 for i in range(10)
    ]


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 0.3), ("gamma", 2.5)])
def test_mean_rate_and_variation_are_the_asked_ones(process, cv):
    """Clipped gaps (as in vidur) would raise the mean rate by 5 %; 200,000 gaps tell 1 % for sure."""
    made = pacing.count_schedule(process, 50.0, 200_000, seed=3, cv=cv) / NS_PER_S
    gaps = np.diff(made)
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.02)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.02)
    if cv == 1.0:
        assert gaps.max() > 9 / 50  # the tail is there


def test_count_in_a_duration_has_the_asked_mean():
    counts = [len(pacing.duration_schedule("poisson", 100.0, 10 * NS_PER_S, seed=s)) for s in range(60)]
    assert np.mean(counts) == pytest.approx(1000, abs=5 * np.sqrt(1000 / 60))


def test_seed_zero_is_a_seed_and_seeds_differ():
    zero = pacing.count_schedule("poisson", 1.0, 100, seed=0)
    assert np.array_equal(zero, pacing.count_schedule("poisson", 1.0, 100, seed=0))
    assert not np.array_equal(zero, pacing.count_schedule("poisson", 1.0, 100, seed=1))


def test_purposes_do_not_share_draws():
    assert pacing.generator(0, "a").random() != pacing.generator(0, "b").random()


def test_ramp_puts_arrivals_where_the_rate_is():
    ramp = (Stage(10 * NS_PER_S, 0.0, 200.0),)
    made = pacing.stages_schedule("constant", ramp, seed=0) / NS_PER_S
    assert len(made) == 1000
    assert np.sum(made < 5) == pytest.approx(250, abs=1)  # area of the first half is a quarter


def test_stages_follow_each_other():
    stages = (Stage(2 * NS_PER_S, 10.0, 10.0), Stage(NS_PER_S, 0.0, 0.0), Stage(2 * NS_PER_S, 50.0, 50.0))
    made = pacing.stages_schedule("constant", stages, seed=0) / NS_PER_S
    assert np.sum(made < 2) == 20
    assert np.sum((made > 2) & (made < 3)) == 0
    assert np.sum(made >= 3) == 100
    assert len(made) == 120


def test_poisson_ramp_mean():
    stages = (Stage(5 * NS_PER_S, 100.0, 300.0), Stage(5 * NS_PER_S, 300.0, 0.0))
    counts = [len(pacing.stages_schedule("poisson", stages, seed=s)) for s in range(40)]
    assert np.mean(counts) == pytest.approx(1750, abs=5 * np.sqrt(1750 / 40))


def test_trace_times_sort_and_speed_up():
    assert pacing.trace_schedule([3000, 0, 3000, 9000], 3.0).tolist() == [0, 1000, 1000, 3000]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_rates_are_refused(rate):
    with pytest.raises(UsageError, match="rate"):
        pacing.count_schedule("poisson", rate, 3, seed=0)
    with pytest.raises(UsageError, match="rate"):
        pacing.duration_schedule("poisson", rate, NS_PER_S, seed=0)


def test_bad_cv_stages_and_speedup_are_refused():
    with pytest.raises(UsageError, match="cv"):
        pacing.count_schedule("gamma", 1.0, 3, seed=0, cv=0.0)
    with pytest.raises(UsageError, match="stage"):
        pacing.stages_schedule("poisson", (), seed=0)
    with pytest.raises(UsageError, match="longer than zero"):
        pacing.stages_schedule("poisson", (Stage(0, 1.0, 1.0),), seed=0)
    with pytest.raises(UsageError, match="speedup"):
        pacing.trace_schedule([1], 0.0)


_stage = st.builds(Stage, st.integers(10**6, 10**10), st.floats(0, 200), st.floats(0, 200))


@settings(max_examples=40, deadline=None)
@given(st.lists(_stage, min_size=1, max_size=4), st.sampled_from(["constant", "poisson", "gamma"]), st.integers(0, 9))
def test_any_stages_give_sorted_instants_inside(stages, process, seed):
    made = pacing.stages_schedule(process, stages, seed=seed, cv=0.7)
    assert made.dtype == np.int64
    assert np.all(np.diff(made) >= 0)
    assert len(made) == 0 or (made[0] >= 0 and made[-1] <= sum(stage.duration_ns for stage in stages) + 1)
