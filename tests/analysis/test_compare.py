import json

import pytest

from hicache_bench.analysis.compare import POINT_ESTIMATE, compare, render_json, render_text
from hicache_bench.errors import UsageError
from tests.analysis.build import MS, attempt, run_dir


def line(found, metric):
    return next(item for item in found.lines if item.metric == metric)


def test_change_and_direction(tmp_path):
    base = run_dir(tmp_path, attempt(0, 0, [(100, 1)], prompt_tokens=100, cached_tokens=40, device_tokens=40),
                   flags={"page_size": 64, "same": 1, "only_base": True})  # fmt: skip
    new = run_dir(tmp_path, attempt(0, 0, [(80, 1)], prompt_tokens=100, cached_tokens=20, device_tokens=20),
                  flags={"page_size": 128, "same": 1})  # fmt: skip
    found = compare(base, new)
    ttft, hit = line(found, "ttft p50"), line(found, "hit_ratio")
    assert (ttft.base, ttft.new, ttft.arrow) == (100 * MS, 80 * MS, "better")
    assert ttft.change == pytest.approx(-0.2)
    assert (hit.change, hit.arrow) == (-0.5, "worse")
    assert line(found, "success_rate").arrow == "same"
    assert line(found, "tpot p50").arrow is None
    assert [(item.flag, item.base, item.new) for item in found.flags] == [
        ("only_base", True, None), ("page_size", 64, 128)]  # fmt: skip
    text = render_text(found)
    assert "-20.0%" in text
    assert POINT_ESTIMATE in text
    assert "page_size" in text
    assert json.loads(render_json(found))["base"] == base.path.name


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
    base, new = run_dir(tmp_path), run_dir(tmp_path, **change)
    with pytest.raises(UsageError, match=says):
        compare(base, new)
    found = compare(base, new, force=True)
    assert found.footnotes == (POINT_ESTIMATE, f"forced: {says}")
    assert f"* forced: {says}" in render_text(found)


def test_what_neither_run_knows_does_not_agree(tmp_path):
    with pytest.raises(UsageError, match="plan digest unknown in both"):
        compare(run_dir(tmp_path, plan_digest=None), run_dir(tmp_path, plan_digest=None))


def test_runs_without_rows(tmp_path):
    found = compare(run_dir(tmp_path), run_dir(tmp_path))
    assert line(found, "ttft p50").change is None
    assert "base: no measured request" in " ".join(found.cautions)
    render_text(found)
