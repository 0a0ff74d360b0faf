import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, wilcoxon

from hicache_bench.analysis.replicates import ALPHA, judge_family, runs_needed, smallest_p

RNG = np.random.default_rng(3)


def rows(*pairs):
    base, new = zip(*pairs, strict=True)
    return np.array(base, dtype=float), np.array(new, dtype=float)


@pytest.mark.parametrize(("n", "m", "p"), [(1, 1, 1.0), (3, 3, 0.1), (4, 4, 2 / 70), (5, 5, 2 / 252), (1, 19, 0.1)])
def test_smallest_p(n, m, p):
    assert smallest_p(n, m) == pytest.approx(p)


def test_four_runs_a_side_are_the_fewest():
    assert runs_needed() == 4
    assert smallest_p(3, 3) >= ALPHA
    assert smallest_p(0, 3) == 1
    assert smallest_p(8, 8, blocks=8) == 2 / 256


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(-10, 10), min_size=7, max_size=9, unique=True))
def test_rank_p_is_the_exact_mann_whitney(values):
    base, new = np.array([values[:4]]), np.array([values[4:]])
    (found,) = judge_family(base, new)
    assert found.p_rank == pytest.approx(mannwhitneyu(base[0], new[0], method="exact").pvalue)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)).filter(bool), min_size=8, max_size=8, unique_by=abs))
def test_rank_p_of_pairs_is_the_exact_wilcoxon(differences):
    base = np.zeros((1, 8))
    (found,) = judge_family(base, base + differences, blocked=True)
    assert found.p_rank == pytest.approx(wilcoxon(differences, method="exact").pvalue)


def test_one_row_alone_is_the_plain_permutation_test():
    base, new = RNG.standard_normal((1, 5)), RNG.standard_normal((1, 5)) + 1
    (found,) = judge_family(base, new)
    pool, at_least = np.hstack((base[0], new[0])), 0
    seen = abs(new.mean() - base.mean())
    for chosen in itertools.combinations(range(10), 5):
        mask = np.isin(np.arange(10), chosen)
        at_least += abs(pool[mask].mean() - pool[~mask].mean()) >= seen - 1e-12
    assert found.p == pytest.approx(at_least / 252)


def test_adjusted_p_is_between_raw_and_bonferroni_and_keeps_a_large_difference():
    base = RNG.standard_normal((20, 5)) * 0.01
    new = RNG.standard_normal((20, 5)) * 0.01
    new[0] += 1
    found = judge_family(base, new)
    alone = [judge_family(base[i : i + 1], new[i : i + 1])[0].p for i in range(20)]
    assert found[0].p == pytest.approx(2 / 252)
    for item, p in zip(found, alone, strict=True):
        assert p - 1e-12 <= item.p <= min(1, 20 * p) + 1e-12


def test_no_order_of_rows_or_sides_matters():
    base, new = RNG.standard_normal((6, 5)), RNG.standard_normal((6, 5)) + 0.7
    found, back = judge_family(base, new), judge_family(new, base)
    turned = judge_family(base[::-1], new[::-1])[::-1]
    assert [item.p for item in found] == pytest.approx([item.p for item in turned])
    assert [item.p for item in found] == pytest.approx([item.p for item in back])
    assert [item.difference for item in found] == pytest.approx([-item.difference for item in back])


def test_rows_without_spread():
    same, apart = judge_family(*rows(([1.0] * 5, [1.0] * 5), ([1.0] * 5, [2.0] * 5)))
    assert (same.p, same.difference, same.low, same.high) == (1, 0, 0, 0)
    assert apart.p == pytest.approx(2 / 252)
    assert judge_family(np.zeros((0, 5)), np.zeros((0, 5))) == []


def test_one_or_two_runs_have_no_interval_and_no_small_p():
    (one,) = judge_family(*rows(([1.0], [5.0])))
    assert (one.p, one.low, one.high) == (1, None, None)
    (two,) = judge_family(*rows(([1.0, 1.1], [5.0, 5.1])))
    assert two.p >= 2 / 6 - 1e-12
    assert two.low is None


def test_many_runs_are_sampled_and_still_never_p_zero():
    base, new = RNG.standard_normal((2, 15)), RNG.standard_normal((2, 15)) + 5
    found = judge_family(base, new)
    assert 0 < found[0].p < 0.001


def test_pairs_see_through_a_drift_that_hides_it_otherwise():
    drift = np.cumsum(RNG.standard_normal(10))
    base = drift[None] + 0.01 * RNG.standard_normal((1, 10))
    new = drift[None] + 0.1 + 0.01 * RNG.standard_normal((1, 10))
    assert judge_family(base, new)[0].p > 0.5
    (found,) = judge_family(base, new, blocked=True)
    assert found.p == pytest.approx(2 / 1024)
    assert found.low < 0.1 < found.high


@pytest.mark.slow
def test_intervals_cover_and_the_family_error_holds():
    rng, covered, said = np.random.default_rng(5), 0, 0
    for _ in range(400):
        factor = 0.03 * rng.standard_normal((1, 10))
        values = factor + 0.01 * rng.standard_normal((6, 10))
        found = judge_family(values[:, :5], values[:, 5:])
        covered += found[0].low <= 0 <= found[0].high
        said += any(item.p < ALPHA for item in found)
    assert covered / 400 > 0.91
    assert said / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
