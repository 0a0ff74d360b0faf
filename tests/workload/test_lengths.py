"""Length and pause distributions."""

from __future__ import annotations

import numpy as np
import pytest

from hicache_bench.pacing import generator
from hicache_bench.workload.lengths import (
    Empirical,
    ExponentialPause,
    LogNormal,
    LogNormalPause,
    Uniform,
    UniformPause,
    draw_lengths,
    draw_pauses_ns,
    mean_length,
)

N = 100_000


def draw(length):
    return draw_lengths(length, N, generator(0, "t"))


def test_constant():
    assert set(draw(7).tolist()) == {7}
    assert draw(7).dtype == np.int64


def test_uniform_has_both_ends():
    made = draw(Uniform(min=3, max=6))
    assert set(made.tolist()) == {3, 4, 5, 6}
    assert made.mean() == pytest.approx(4.5, abs=0.03)


def test_lognormal_by_median_and_by_mean():
    assert np.median(draw(LogNormal(sigma=0.8, median=500))) == pytest.approx(500, rel=0.02)
    assert draw(LogNormal(sigma=0.8, mean=500)).mean() == pytest.approx(500, rel=0.02)


def test_lognormal_limits():
    made = draw(LogNormal(sigma=2.0, median=50, min=10, max=100))
    assert made.min() == 10
    assert made.max() == 100


def test_empirical_weights():
    made = draw(Empirical(values=(1, 5, 9), weights=(1.0, 0.0, 3.0)))
    assert set(made.tolist()) == {1, 9}
    assert np.mean(made == 9) == pytest.approx(0.75, abs=0.01)
    assert set(draw(Empirical(values=(2, 4))).tolist()) == {2, 4}


@pytest.mark.parametrize(
    "length", [7, Uniform(min=1, max=9), Empirical(values=(1, 5), weights=(1.0, 3.0)), LogNormal(sigma=0.5, mean=80)]
)
def test_mean_length_is_the_mean_of_draws(length):
    assert draw(length).mean() == pytest.approx(mean_length(length), rel=0.02)


def test_pauses():
    rng = generator(0, "p")
    assert set(draw_pauses_ns("2s", 10, rng).tolist()) == {2 * 10**9}
    uniform = draw_pauses_ns(UniformPause(min=10**9, max=3 * 10**9), N, rng)
    assert uniform.mean() == pytest.approx(2e9, rel=0.02)
    assert draw_pauses_ns(ExponentialPause(mean=10**9), N, rng).mean() == pytest.approx(1e9, rel=0.02)
    long = draw_pauses_ns(LogNormalPause(median=10**9, sigma=1.0, max=2 * 10**9), N, rng)
    assert np.median(long) == pytest.approx(1e9, rel=0.03)
    assert long.max() == 2 * 10**9
