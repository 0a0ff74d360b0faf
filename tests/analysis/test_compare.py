import json

import pytest

from hicache_bench.analysis.compare import compare
from hicache_bench.analysis.comparison_text import render_json, render_text
from hicache_bench.analysis.sets import RunSet
from hicache_bench.errors import UsageError
from tests.analysis.build import MS, attempt, run_dir
from tests.analysis.runs import make_set, simple_run


def sets(*sides):
    return [RunSet(f"set{i}", tuple(runs)) for i, runs in enumerate(sides)]


def line(found, metric):
    return next(item for item in found.lines if item.metric == metric)


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    """Four runs a side, interleaved: NEW has 10 % more TTFT, a lower hit ratio, and another flag."""
    root = tmp_path_factory.mktemp("slower")
    base = make_set(root / "a", at=0, flags={"page_size": 64, "same": 1})
    new = make_set(root / "b", seed=50, at=1, ttft=1.1, hit=0.4, flags={"page_size": 128, "same": 1, "more": True})
    return base, new


def test_values_and_settings_of_single_runs(tmp_path):
    base = run_dir(tmp_path, attempt(0, 0, [(100, 1)], prompt_tokens=100, cached_tokens=40, device_tokens=40),
                   flags={"page_size": 64, "same": 1, "only_base": True})  # fmt: skip
    new = run_dir(tmp_path, attempt(0, 0, [(80, 1)], prompt_tokens=100, cached_tokens=20, device_tokens=20),
                  flags={"page_size": 128, "same": 1})  # fmt: skip
    found = compare(sets([base], [new]))
    ttft, hit = line(found, "ttft p50"), line(found, "hit_ratio")
    assert [cell.value for cell in ttft.cells] == [100 * MS, 80 * MS]
    assert ttft.deltas[0].size == pytest.approx(-0.2)
    assert hit.deltas[0].size == pytest.approx(-0.2)
    assert {item.deltas[0].verdict for item in found.lines} == {"unclear", None}
    assert line(found, "tpot p50").deltas[0].size is None
    assert [(item.name, item.asked, item.values) for item in found.settings] == [
        ("only_base", False, ("true", None)), ("page_size", False, ("64", "128"))]  # fmt: skip
    text = render_text([found])
    assert "-20.0%" in text
    assert "one run a side" in text
    assert "too few sessions for intervals" in text


@pytest.fixture(scope="module")
def judged(slower):
    return compare(sets(*slower))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"plan_digest": "other"}, "plan digest abc against other"),
        ({"loop": "closed"}, "loop kind open against closed"),
        ({"origin": "simulated"}, "origin real against simulated"),
        ({"start_state": "warm"}, "start state cold against warm"),
    ],
)
def test_refused_unless_forced(tmp_path, change, says):
    both = sets([run_dir(tmp_path)], [run_dir(tmp_path, **change)])
    with pytest.raises(UsageError, match=says):
        compare(both)
    found = compare(both, force=True)
    assert found.footnotes[-1].startswith(f"forced: {says}")
    assert f"* forced: {says}" in render_text([found])


def test_what_neither_run_knows_does_not_agree(tmp_path):
    with pytest.raises(UsageError, match="plan digest unknown in both"):
        compare(sets([run_dir(tmp_path, plan_digest=None)], [run_dir(tmp_path, plan_digest=None)]))


def test_runs_without_rows(tmp_path):
    found = compare(sets([run_dir(tmp_path)], [run_dir(tmp_path)]))
    assert line(found, "ttft p50").deltas[0].size is None
    assert "no measured request" in " ".join(found.cautions)
    render_text([found])
    with pytest.raises(UsageError, match="two sets"):
        compare(sets([run_dir(tmp_path)]))


def test_several_runs_give_words(judged):
    found = judged
    assert found.basis == "runs"
    assert line(found, "ttft p50").deltas[0].verdict == "worse"
    assert line(found, "hit_ratio").deltas[0].verdict == "worse"
    assert line(found, "ttft p50").cells[0].n == 4
    assert 0 < line(found, "ttft p50").cells[0].spread < 0.1
    assert not any("before all" in text or "smallest p" in text for text in found.footnotes)
    assert line(found, "schedule_lag p50").deltas[0].verdict is None


def test_three_runs_a_side_cannot_say(slower):
    found = compare(sets(slower[0][:3], slower[1][:3]))
    assert {item.deltas[0].verdict for item in found.lines} == {"unclear", None}
    assert any("3 v 3 runs: the smallest p possible is 0.1, so no verdict" in text for text in found.footnotes)


def test_two_new_sets(slower, tmp_path):
    third = make_set(tmp_path, seed=90, at=0)
    found = compare(sets(*slower, third))
    assert [len(item.cells) for item in found.lines[:1]] == [3]
    assert [item.verdict for item in line(found, "ttft p50").deltas][1] in ("same", "unclear")
    # Two contrasts of 4 v 4 runs: 2 * 2/70 is above 0.05.
    assert any("the smallest p possible is 0.057" in text for text in found.footnotes)


def test_not_interleaved_is_said(tmp_path):
    found = compare(sets(make_set(tmp_path / "a"), make_set(tmp_path / "b", seed=9, at=100)))
    assert any("interleave the runs" in text for text in found.footnotes)


def test_single_runs_are_paired_and_labelled_within_run(tmp_path):
    base = simple_run(tmp_path, 1)
    new = simple_run(tmp_path, 2, ttft=1.3)
    found = compare(sets([base], [new]))
    delta = line(found, "ttft p50").deltas[0]
    assert found.basis == delta.basis == "within run"
    assert "paired by session and turn (48 answers on both sides)" in found.basis_text
    assert (delta.verdict, delta.within) == ("unclear", "higher")
    assert delta.low < 0.3 < delta.high
    assert line(found, "ttft p99").deltas[0].size == pytest.approx(
        line(found, "ttft p99").cells[1].value / line(found, "ttft p99").cells[0].value - 1)  # fmt: skip
    other = compare(sets([base], [simple_run(tmp_path, 2, ttft=1.3, plan_digest="z")]), force=True)
    assert "not paired" in other.basis_text
    wide = line(other, "ttft p50").deltas[0]
    assert wide.high - wide.low > delta.high - delta.low


def test_goodput_follows_the_objective(slower):
    one = [side[:1] for side in slower]
    for slo, share in (("ttft<1ns", 0), ("ttft<1h", 1), ("ttft<1h,itl<1ns", 0), (None, None)):
        assert [cell.value for cell in line(compare(sets(*one), slo=slo), "goodput").cells] == [share, share]


def test_tiers_mix_and_costs(judged):
    found = judged
    assert [item.tier for item in found.tiers] == ["device", "mixed"]
    assert sum(item.cells[0].n for item in found.tiers) == 4 * 48
    assert len(found.mix[0]) == 8
    assert found.mix[0][0].recomputed == pytest.approx(0.5, abs=0.02)
    recomputed, host, storage = found.costs[0]
    assert recomputed.ms_per_1k.low < 20 < recomputed.ms_per_1k.high
    assert host.requests > 50
    assert storage.ms_per_1k is None


def test_json_has_the_documented_fields(judged):
    found = json.loads(render_json([judged]))
    assert set(found) == {"title", "basis", "basis_text", "origin", "sets", "lines", "settings", "tiers", "costs",
                          "mix", "cautions", "footnotes"}  # fmt: skip
    assert set(found["lines"][0]) == {"metric", "unit", "family", "cells", "deltas"}
    assert set(found["lines"][0]["deltas"][0]) == {"size", "low", "high", "p", "p_rank", "n_base", "n_new", "basis",
                                                   "verdict", "within", "why"}  # fmt: skip
    assert len(json.loads(render_json([judged] * 2))["comparisons"]) == 2
