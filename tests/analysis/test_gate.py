import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from hicache_bench.analysis.gate import EXITS, Check, GateResult, gate
from hicache_bench.analysis.gatefile import parse_gate
from hicache_bench.analysis.junit import render_json, render_junit, render_markdown, render_text
from hicache_bench.analysis.sets import RunSet
from hicache_bench.errors import UsageError
from tests.analysis.runs import make_set, simple_run


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Sound, an equal one, one with 15 % more TTFT; made in turn."""
    root = tmp_path_factory.mktemp("gate")
    how = {"base": {}, "equal": {"seed": 30}, "slow": {"seed": 60, "ttft": 1.15}}
    return {name: RunSet(name, tuple(make_set(root / name, at=i, step=3, **more)))
            for i, (name, more) in enumerate(how.items())}  # fmt: skip


def checks(sides, new, tables, base="base"):
    found = gate(sides[base], sides[new], parse_gate(tables))
    return found.result, {item.name: item.result for item in found.checks}, found


def test_a_slower_build_fails(sides):
    result, found, whole = checks(sides, "slow", {"metrics": {"ttft p50": {"worse_by": "5%"}}})
    assert (result, found) == ("fail", {"ttft p50 worse_by 5%": "fail"})
    assert "worse by more than 5%" in whole.checks[0].reason
    assert EXITS[result] == 1


def test_an_equal_build_passes(sides):
    tables = {"metrics": {"ttft p50": {"worse_by": "10%", "max": "1s"}, "hit_ratio": {"worse_by": "2pt", "min": "40%"}},
              "slo": [{"objective": "ttft<1s", "min_share": "99%"}]}  # fmt: skip
    result, found, _ = checks(sides, "equal", tables)
    assert result == "pass"
    assert set(found.values()) == {"pass"}
    assert len(found) == 5


def test_better_is_never_a_failure(sides):
    result, _, _ = checks(sides, "base", {"metrics": {"ttft p50": {"worse_by": "0%"}}}, base="slow")
    assert result == "pass"


def test_a_limit_inside_the_interval_is_inconclusive(sides):
    result, _, whole = checks(sides, "equal", {"metrics": {"ttft p50": {"worse_by": "0.01%"}}})
    assert result == "inconclusive"
    assert "measure more runs" in whole.checks[0].reason


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"metrics": {"ttft p50": {"max": "1ms"}}}, "fail"),
        ({"metrics": {"output_per_s": {"min": 10**9}}}, "fail"),
        ({"slo": [{"objective": "ttft<1ns", "min_share": "1%"}]}, "fail"),
        ({"metrics": {"shed_rate": {"max": "0%"}}}, "pass"),
        ({"metrics": {"error_rate": {"worse_by": "0.5pt"}}}, "pass"),
        ({"metrics": {"goodput": {"min": "50%"}}}, "inconclusive"),  # these runs have no objective
    ],
)
def test_absolute_limits_and_absent_figures(sides, tables, says):
    assert checks(sides, "equal", tables)[0] == says


def test_too_few_runs_never_pass(sides):
    few = {name: replace(item, runs=item.runs[:3]) for name, item in sides.items()}
    result, _, found = checks(few, "equal", {"metrics": {"ttft p50": {"max": "1s"}}})
    assert result == "inconclusive"
    assert found.evidence == ("base has 3 runs, min_runs is 4", "equal has 3 runs, min_runs is 4")
    single = {name: replace(item, runs=item.runs[:1]) for name, item in sides.items()}
    assert checks(single, "slow", {"min_runs": 2, "metrics": {"ttft p50": {"worse_by": "1%", "max": "1s"}}})[1] == {
        "ttft p50 worse_by 1%": "inconclusive", "ttft p50 max 1s": "inconclusive"}  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        ({"status": "aborted"}, "status_aborted"),
        ({"client": {"loop_lag_p99_ns": 10**9, "samples": 1000}}, "loop_lag"),
        ({"client": {"cpu_fraction": 0.99}}, "client_cpu"),
    ],
)
def test_spoiled_runs_never_pass_unless_allowed(sides, tmp_path, spoil, code):
    runs = (*sides["equal"].runs, simple_run(tmp_path, 44, at=5, **spoil))
    mixed, tables = {**sides, "mixed": RunSet("mixed", runs)}, {"metrics": {"ttft p50": {"max": "1s"}}}
    result, found, whole = checks(mixed, "mixed", tables)
    assert (result, set(found.values())) == ("inconclusive", {"pass"})
    assert runs[-1].path.name in whole.evidence[0]
    assert checks(mixed, "mixed", {**tables, "allow": [code]})[0] == "pass"


def test_not_comparable_is_refused(sides, tmp_path):
    other = RunSet("other", tuple(make_set(tmp_path, plan_digest="z")))
    with pytest.raises(UsageError, match="not comparable: plan digest"):
        gate(sides["base"], other, parse_gate({"metrics": {"ttft p50": {"max": "1s"}}}))


FOUND = GateResult("fail", "a", "b|c", (Check("ttft p50 worse_by 5%", "fail", "too <slow> | \x00"),
                                      Check("x", "pass", "fine"), Check("y", "inconclusive", "hm")),
                   ("few runs",), ("lag",), ("note",))  # fmt: skip


def test_junit():
    suite = ET.fromstring(render_junit(FOUND))[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "4", "failures": "1", "errors": "2"}  # fmt: skip
    assert [[child.tag for child in case] for case in suite] == [["failure"], ["system-out"], ["error"], ["error"]]
    assert suite[0][0].get("message") == "too <slow> | ?"


def test_markdown_text_and_json():
    table = [row for row in render_markdown(FOUND).splitlines() if row.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in table} == {4}
    text = render_text(FOUND)
    assert text.splitlines()[-1] == "fail: b|c against a"
    assert [row[:4] for row in text.splitlines()[:4]] == ["FAIL", "PASS", "????", "????"]
    assert '"result": "fail"' in render_json(FOUND)
