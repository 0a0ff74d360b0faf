import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.analysis.slo import ALLOWED, Bound, format_slo, goodput, parse_slo
from hicache_bench.errors import UsageError
from tests.analysis.build import MS, attempt, rows


def test_parse():
    assert parse_slo("ttft<200ms,itl<50ms, e2e < 2s") == (
        Bound("ttft", 200 * MS), Bound("itl", 50 * MS), Bound("e2e", 2000 * MS))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write it like"),
        ("ttft", "write it like"),
        ("ttft<=5ms", "write it like"),
        ("ttft>5ms", "write it like"),
        ("speed<5ms", "allowed: ttft, "),
        ("ttft<5", "did you mean 5s"),
        ("ttft<5ms,", "write it like"),
        ("ttft<5ms,ttft<6ms", "twice"),
        ("ttft<" + "9" * 400 + "s", "ttft<"),
    ],
)
def test_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_slo(text)


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    try:
        assert parse_slo(text)
    except UsageError:
        pass


@given(st.lists(st.sampled_from(["ttft<=", "0123456789.msµ,itl", "e2"]), max_size=8).map("".join))
def test_near_misses_are_parsed_or_refused(text):
    try:
        parse_slo(text)
    except UsageError:
        pass


@given(st.dictionaries(st.sampled_from(ALLOWED), st.integers(0, 10**15), min_size=1))
def test_round_trip(limits):
    bounds = tuple(Bound(name, limit) for name, limit in limits.items())
    assert parse_slo(format_slo(bounds)) == bounds


def test_goodput():
    view = rows(
        attempt(0, 0, [(100, 1), (140, 1)]),
        attempt(0, 0, [(300, 1), (310, 1)]),  # TTFT
        attempt(0, 0, [(100, 1), (200, 1)]),  # ITL
        attempt(0, 0, [(150, 1)]),  # one token: no ITL to break
        attempt(0, 0, [(100, 1), (110, 1)], outcome="server_error"),
        attempt(0, None, outcome="shed"),
        attempt(0, 0, [(100, 1)], done=1000),
    )
    found = goodput(view, parse_slo("ttft<200ms,itl<50ms"))
    assert (found.met, found.n, found.share, found.per_s) == (3, 7, 3 / 7, 3.0)
    assert found.slo == "ttft<200ms,itl<50ms"
    assert goodput(view, parse_slo("tpot<50ms")).met == 4
    assert goodput(view, parse_slo("ttft<100ms")).met == 0


def test_goodput_without_rows():
    found = goodput(rows(), parse_slo("ttft<1s"))
    assert (found.met, found.n, found.share, found.per_s) == (0, 0, None, None)
