import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.stats import Summary, known, percentile, ratio, summary


def test_percentile_is_linear():
    assert percentile([10, 20, 30, 40], 50) == 25
    assert percentile([0, 10], 90) == pytest.approx(9)
    assert percentile([7], 99) == 7


def test_nothing_known_is_none():
    assert percentile([], 50) is None
    assert percentile([math.nan], 50) is None
    assert summary([]) == Summary(0, None, None, None, None, None, None)


def test_percentile_refuses_other_ranks():
    with pytest.raises(UsageError, match=r"0\.\.100"):
        percentile([1], 101)


def test_summary_leaves_nan_out():
    assert summary([1, math.nan, 3]) == Summary(2, 2, 2, pytest.approx(2.8), pytest.approx(2.98), 1, 3)


def test_ratio_never_divides_by_zero():
    assert ratio(3, 0) is None
    assert ratio(None, 2) is None
    assert ratio(3, None) is None
    assert ratio(3, math.nan) is None
    assert ratio(3, 2) == 1.5
    assert ratio(0, 2) == 0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False, width=32)), st.floats(0, 100))
def test_percentile_stays_in_range(values, q):
    found, real = percentile(values, q), known(values)
    assert (found is None) == (real.size == 0)
    if found is not None:
        assert real.min() <= found <= real.max()
