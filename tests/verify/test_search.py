"""Bisection finds the threshold and distrusts it; lengths tell grids apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import Inconclusive
from hicache_bench.verify.search import CONFIRMATIONS, Grid, fit_grid, probe_lengths, threshold


async def find(real, guess, limit=200):
    asked = []

    async def evicts(n):
        asked.append(n)
        return n >= real

    return await threshold(evicts, guess, limit), asked


@given(real=st.integers(1, 120), guess=st.integers(-5, 300))
async def test_the_threshold_is_found_from_any_guess(real, guess):
    found, asked = await find(real, guess)
    assert found == real
    assert asked.count(real) >= CONFIRMATIONS
    assert real == 1 or asked.count(real - 1) >= CONFIRMATIONS
    assert all(1 <= n <= 200 for n in asked)


async def test_a_right_guess_costs_four_trials():
    found, asked = await find(20, 20)
    assert (found, sorted(asked)) == (20, [19, 19, 20, 20])


async def test_no_threshold_within_the_limit_is_none():
    assert (await find(500, 20))[0] is None


async def test_an_answer_that_changes_is_inconclusive():
    answers = iter([True, False, False])

    async def evicts(n):
        return next(answers)

    with pytest.raises(Inconclusive, match="not stable: with 20 peers"):
        await threshold(evicts, 20, 100)


PAGE_GRIDS = st.tuples(st.sampled_from([16, 64, 128]), st.sampled_from([1, 2, 4, 8, 16]))


@given(PAGE_GRIDS, st.integers(17, 60), st.sampled_from(["L-1", "L"]))
def test_probe_lengths_tell_every_grid_up_to_16_pages_apart(sizes, pages, rule):
    page, times = sizes
    grid, less = page * times, 1 if rule == "L-1" else 0
    lengths = probe_lengths(page, pages)
    found = fit_grid([(length, (length - less) // grid * grid) for length in lengths])
    assert found is not None
    for length in lengths:
        assert (length - (found.rule == "L-1")) // found.tokens * found.tokens == (length - less) // grid * grid
    if rule == "L-1":
        assert found == Grid(grid, "L-1")


def test_one_length_cannot_tell():
    assert fit_grid([(3200, 3072)]) == Grid(3072, "L-1")


def test_the_seed_figures():
    assert fit_grid([(3200, 3072), (3201, 3200), (3300, 3200), (3328, 3200), (3329, 3328)]) == Grid(128, "L-1")
    assert fit_grid([(3200, 2048), (4097, 4096), (2049, 2048), (2048, 0)]) == Grid(2048, "L-1")


def test_what_no_grid_explains_is_none():
    assert fit_grid([(3200, 3072), (3201, 1000)]) is None
    assert fit_grid([(100, 0)]) is None
    assert fit_grid([]) is None
