import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.analysis.gaps import LOWEST_NS, N_BINS, bin_of, histogram, quantile
from hicache_bench.analysis.measured import Detail, add_gaps, load_run
from hicache_bench.analysis.within import FEWEST_BLOCKS, MOST_BLOCKS, alone, pair, spreads
from tests.analysis.runs import simple_run


def detail(sessions, due, ok=None):
    n = len(sessions)
    ok = np.ones(n, dtype=bool) if ok is None else np.array(ok)
    return Detail(np.array(sessions), np.zeros(n, dtype=np.int32), np.array(due, dtype=float), ok, ~ok,
                  np.zeros(n, dtype=bool), None, {}, {})  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.floats(2_000, 1e12), min_size=1, max_size=200), st.sampled_from([50, 90, 99]))
def test_quantile_of_bins_is_within_a_bin_of_a_sample(values, q):
    counts = histogram(np.array(values), np.zeros(len(values), dtype=np.int32), 1)
    found, exact = quantile(counts, q)[0], np.percentile(values, q, method="inverted_cdf")
    assert found == pytest.approx(exact, rel=0.0026)
    first = int(np.flatnonzero(counts[0])[0])
    assert quantile(counts[:, first:], q, first)[0] == pytest.approx(found)


def test_bins_hold_everything():
    assert bin_of(np.array([-1.0, 0.0, LOWEST_NS])).tolist() == [0, 0, 0]
    assert bin_of(np.array([1e300])).tolist() == [N_BINS - 1]


def test_blocks_keep_sessions_and_their_order():
    sessions = np.repeat(np.arange(100)[::-1], 3)
    side = alone(detail(sessions, (99 - sessions) * 10.0))
    assert side.blocks == MOST_BLOCKS
    for session in range(100):
        assert len(set(side.every[sessions == session])) == 1
    assert (np.diff(side.every) >= 0).all()
    assert alone(detail(range(FEWEST_BLOCKS - 1), range(FEWEST_BLOCKS - 1))) is None


def test_pairs_keep_only_what_both_answered():
    base = detail(range(20), range(20), [True] * 19 + [False])
    new = detail(range(2, 22), range(20), [False] + [True] * 19)
    one, two, matched = pair(base, new)
    assert matched == 16  # sessions 3 to 18
    assert (one.block >= 0).sum() == (two.block >= 0).sum() == 16
    assert (one.every >= 0).sum() == 18
    assert dict(zip(base.session[one.block >= 0], one.block[one.block >= 0], strict=True)) == dict(
        zip(new.session[two.block >= 0], two.block[two.block >= 0], strict=True))  # fmt: skip
    assert pair(base, detail(range(100, 120), range(20))) is None


def judged(tmp_path, paired=True, **new):
    """Spreads of two runs with the same noise but for `new`."""
    found = [load_run(simple_run(tmp_path, 1)), load_run(simple_run(tmp_path, 2, **new))]
    details = [item[1] for item in found]
    sides = pair(*details)[:2] if paired else tuple(alone(item) for item in details)
    read = [add_gaps(*item, None, side.block, side.blocks) for item, side in zip(found, sides, strict=True)]
    return spreads(*sides, tuple(item[2] for item in read), paired=paired), [item[0].values for item in read]


def test_a_shift_is_found_and_nothing_else(tmp_path):
    found, (base, new) = judged(tmp_path, ttft=1.2, gap=1.1)
    assert found["ttft p50"].low > 0.1
    assert found["ttft p50"].p < 0.05
    assert found["ttft p50"].difference == pytest.approx(np.log(new["ttft p50"] / base["ttft p50"]), abs=1e-6)
    assert found["itl mean"].low < np.log(1.1) < found["itl mean"].high
    assert found["itl p50"].difference == pytest.approx(np.log(new["itl p50"] / base["itl p50"]), abs=1e-6)
    assert found["hit_ratio"].low <= 0 <= found["hit_ratio"].high
    assert found["error_rate"].difference == 0
    assert "output_per_s" not in found
    assert "schedule_lag p50" not in found


def test_pairing_is_sharper(tmp_path):
    paired, plain = judged(tmp_path / "a")[0]["ttft p50"], judged(tmp_path / "b", paired=False)[0]["ttft p50"]
    assert paired.high - paired.low < 0.7 * (plain.high - plain.low)
    assert paired.p > 0.05


def test_errors_count_though_only_answers_pair(tmp_path):
    found, _ = judged(tmp_path, fail=12)
    assert found["error_rate"].difference == pytest.approx(12 / 48)
    assert found["error_rate"].high > 0.1
