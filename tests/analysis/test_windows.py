import pytest

from hicache_bench.analysis.metrics import BY_NAME, value
from hicache_bench.analysis.windows import measured, steady
from tests.analysis.build import MS, at, attempt, rows


def span(start, end):
    return attempt(start, start, [(end, 10)])


def test_no_instants_no_window():
    assert measured(rows()) is None
    assert steady(rows()) is None


def test_closed_loop_without_ramp_and_tail():
    # Two workers; the second joins at 100 and the first ends at 900.
    view = rows(span(0, 500), span(500, 900), span(100, 600), span(600, 1000), loop="closed", concurrency=2)
    found = steady(view)
    assert (found.start_ns, found.end_ns) == (0, 1000 * MS)  # 0.9 of 2 floors to 1
    view = rows(*[span(20 * i, 1000 - 20 * i) for i in range(10)], loop="closed", concurrency=10)
    found = steady(view)
    assert (found.start_ns, found.end_ns) == (160 * MS, 840 * MS)  # 9 of 10
    assert "9 or more in flight" in found.how


def test_closed_loop_bridges_short_dips_only():
    view = rows(span(0, 500), span(505, 1000), loop="closed", concurrency=1)
    assert steady(view).duration_ns == 1000 * MS
    view = rows(span(0, 400), span(450, 1000), loop="closed", concurrency=1)
    assert (steady(view).start_ns, steady(view).end_ns) == (450 * MS, 1000 * MS)


def test_a_concurrency_never_reached_is_not_asked_for():
    assert steady(rows(span(0, 1000), loop="closed", concurrency=64)).duration_ns == 1000 * MS


def test_open_loop_ignores_one_burst():
    base = [span(0, 100), *[span(100, 900) for _ in range(4)], *[span(400, 410) for _ in range(50)], span(900, 1000)]
    found = steady(rows(*base, loop="open"))
    assert (found.start_ns, found.end_ns) == (100 * MS, 900 * MS)
    assert "median 4" in found.how


def test_steady_rates():
    view = rows(*[span(20 * i, 1000 - 20 * i) for i in range(10)], loop="closed", concurrency=10)
    # Ended between 160 and 840 ms: i = 8 and 9.
    assert value(BY_NAME["requests_per_s_steady"], view) == pytest.approx(2 / 0.68)
    assert value(BY_NAME["output_per_s_steady"], view) == pytest.approx(20 / 0.68)


def test_too_short_to_be_called_steady():
    view = rows(span(0, 1000), *[span(500, 520) for _ in range(9)], loop="closed", concurrency=10)
    assert steady(view) is None


def test_shed_rows_were_never_in_flight():
    shed = attempt(0, None, outcome="shed")
    assert steady(rows(shed, start_ns=at(0), end_ns=at(10))) is None
