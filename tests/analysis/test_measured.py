import numpy as np
import pytest

from hicache_bench.analysis.gaps import read_gaps
from hicache_bench.analysis.measured import add_gaps, load_run
from hicache_bench.analysis.summary import summarize
from hicache_bench.store.writer import PartWriter
from tests.analysis.build import attempt, run_dir
from tests.analysis.runs import attempts, simple_run

SLO = "ttft<20ms,itl<3200us,ttfo<1s,tpot<1s,e2e<9s,ttft_service<1s,e2e_service<9s"


@pytest.mark.parametrize("meta", [{}, {"measure_start_ns": None, "measure_end_ns": None}])
def test_the_figures_are_those_of_show(tmp_path, meta):
    """Part by part, in two passes, or all at once: one answer."""
    rows = attempts(3, fail=2)
    run = run_dir(tmp_path, *rows[:20], **meta)
    writer = PartWriter(run.path)
    writer.add(rows[20:])
    writer.flush()
    writer.add([attempt(0, 0, [(9, 1)], phase="warmup")])
    writer.close()
    assert len(list((run.path / "requests").iterdir())) == 3
    figures, detail, _ = add_gaps(*load_run(run, SLO), SLO)
    show = summarize(run.path, SLO)
    assert figures.attempts == show.attempts == 48
    assert figures.cautions == show.cautions
    assert figures.tiers == show.ttft_by_tier
    for name, value in figures.values.items():
        metric, _, point = name.partition(" ")
        if metric in show.latency:
            assert value == pytest.approx(getattr(show.latency[metric], point), rel=1e-6), name
        elif metric in show.figures:
            assert value == pytest.approx(show.figures[metric], rel=1e-6), name
    assert figures.values["goodput"] == show.goodput.share
    assert 0 < show.goodput.share < 1
    assert figures.values["goodput_per_s"] == pytest.approx(show.goodput.per_s, rel=1e-3)
    assert detail.ok.sum() == 46


def test_gaps_by_block(tmp_path):
    run = simple_run(tmp_path, sessions=10)
    block = np.array([0, 1, -1, 1] * 5, dtype=np.int32)
    found, whole = read_gaps(run.path, block=block, blocks=2), read_gaps(run.path)
    assert found.counts.sum(axis=1).tolist() == [15, 30, 15]  # 3 gaps a row
    assert found.counts.sum(axis=0).tolist() == whole.counts[0].tolist()
    assert found.sums.sum() == pytest.approx(whole.sums[0])
    assert found.points() == pytest.approx(whole.points())


def test_no_rows(tmp_path):
    figures, detail, gaps = add_gaps(*load_run(run_dir(tmp_path), SLO), SLO)
    assert figures.attempts == detail.ok.size == 0
    assert {figures.values[name] for name in ("ttft p50", "itl p50", "goodput", "error_rate")} == {None}
    assert set(gaps.points().values()) == {None}
    assert figures.mix == ()


def test_an_unreadable_part_counts_in_neither_pass(tmp_path):
    run = simple_run(tmp_path, sessions=10)
    (run.path / "requests" / "part-00009.parquet").write_bytes(b"PAR1 torn")
    figures, _, _ = add_gaps(*load_run(run))
    assert figures.attempts == 20
    assert [item.code for item in figures.cautions if item.code == "unreadable"] == ["unreadable"]
