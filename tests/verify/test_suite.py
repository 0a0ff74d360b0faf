"""Whole suites into a run directory: verdicts, exit codes, files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from hicache_bench.errors import Inconclusive, MeasureError, UsageError
from hicache_bench.profiles.profile import load_profile
from hicache_bench.records import ServerInfo
from hicache_bench.store.reader import read_attempts
from hicache_bench.target import Target
from hicache_bench.verify import CalibrateOptions, VerifyOptions, calibrate, verify
from hicache_bench.verify.calibration_text import render_calibration
from hicache_bench.verify.ground import computed_profile, probe_tokens, profile_for
from hicache_bench.verify.judge import Finding
from hicache_bench.verify.report import junit_xml, render_json, render_text, show_line
from hicache_bench.verify.suite import CaseResult, Result, verdict_of
from tests.verify.fake import PAGE, Fake, served


async def suite(fake, tmp_path, *cases, **more):
    lines = []
    async with served(fake) as (url, _):
        result = await verify([Target(url)], VerifyOptions(cases, results=tmp_path, **more), lines.append)
    return result, lines


async def test_a_suite_leaves_a_sealed_run_with_rows_and_verdict(tmp_path):
    junit = tmp_path / "junit.xml"
    result, lines = await suite(Fake(), tmp_path, "l1", "l2", "l3", junit=junit)
    assert result.exit_code == 0
    assert [case.verdict for case in result.cases] == ["pass"] * 3
    run = json.loads((result.run_dir / "run.json").read_text())
    assert (run["status"], run["name"], run["profile"]) == ("complete", "verify", "auto")
    rows = read_attempts(result.run_dir).to_pylist()
    assert len(rows) == run["issued"] > 40
    assert {row["phase"] for row in rows} == {"probe", "prime", "warmup", "measure"}
    assert any(row["label"] == "l2: send base" and row["host_tokens"] for row in rows)
    verdict = json.loads((result.run_dir / "verdict.json").read_text())
    assert verdict["exit_code"] == 0
    assert verdict["cases"][1]["findings"][2]["seen"].startswith("cached=640 device=0 host=640")
    assert verdict["profile"]["figures"]["match_tokens"]["how"] == "computed"
    root = ET.fromstring(junit.read_text())
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("3", "0", "0")
    assert sum(line.startswith("PASS") for line in lines) == sum(len(case.findings) for case in result.cases)
    assert all("cached=" in line and "device=" in line and "storage=" in line for line in lines if "PASS" in line)
    assert json.loads(render_json(result))["run_dir"] == str(result.run_dir)
    assert "3 passed  [SIMULATED server]" in render_text(result)
    assert 0 < result.requests_ns <= result.elapsed_ns
    kinds = {json.loads(line)["kind"] for line in (result.run_dir / "events.jsonl").read_text().splitlines()}
    assert {"case", "flush", "clear_storage", "reset_probe", "settle"} <= kinds


@pytest.mark.parametrize(("fake", "cases", "code"), [
    (Fake(fault="l3_lost"), ("l3",), 1),
    (Fake(storage=False), ("l3",), 4),
])
async def test_exit_codes(tmp_path, fake, cases, code):
    result, _ = await suite(fake, tmp_path, *cases)
    assert result.exit_code == code
    assert json.loads((result.run_dir / "verdict.json").read_text())["exit_code"] == code


@pytest.mark.slow
async def test_hicache_off_skips_with_reason_and_still_judges_the_device(tmp_path):
    result, lines = await suite(Fake(hicache=False, storage=False), tmp_path)
    assert result.exit_code == 4
    assert "HiCache is off" in render_text(result)
    assert {case.name for case in result.cases if case.verdict == "pass"} == {"l1", "salt"}
    assert any(line.startswith("skip  l2: HiCache is off") for line in lines)


async def test_a_server_that_is_not_there_cannot_be_measured(tmp_path):
    with pytest.raises(MeasureError):
        await verify([Target("http://127.0.0.1:9")], VerifyOptions(("l1",), results=tmp_path), print)
    assert not list(tmp_path.glob("*verify*"))


async def test_no_and_three_servers_are_usage_errors(tmp_path):
    for count in (0, 3):
        with pytest.raises(UsageError, match=f"{count} servers"):
            await verify([Target("http://127.0.0.1:9")] * count, VerifyOptions(results=tmp_path), print)


def result(*cases):
    return Result(cases, load_profile("glm5.2-dsa"), "real", "s", None, 2, 1)


def test_the_worst_finding_is_the_verdict_of_a_case():
    def one(*verdicts):
        return verdict_of([Finding("c", "s", verdict) for verdict in verdicts])

    assert one() == "inconclusive"
    assert one("pass") == "pass"
    assert one("pass", "inconclusive") == "inconclusive"
    assert one("inconclusive", "error") == "error"
    assert one("error", "fail") == "fail"


@pytest.mark.parametrize(("verdicts", "named", "code"), [
    (("pass", "skipped"), False, 0), (("pass", "skipped"), True, 4), (("skipped",), False, 4), ((), False, 4),
    (("pass", "fail", "error"), False, 1), (("pass", "error", "inconclusive"), False, 3),
    (("pass", "inconclusive"), False, 4)])
def test_the_exit_code_of_a_suite(verdicts, named, code):
    cases = tuple(CaseResult(f"c{i}", "t", verdict) for i, verdict in enumerate(verdicts))
    assert Result(cases, load_profile("glm5.2-dsa"), "real", "s", None, 2, 1, named).exit_code == code


def test_junit_survives_any_text_and_tells_the_kinds_apart():
    bad = Finding("c", "s", "fail", reason="a\x00b\x1b<&>\ufffe", advice="do")
    cases = (CaseResult("c", "t", "fail", (bad,)), CaseResult("d", "t", "error", (Finding("d", "s", "error"),)),
             CaseResult("e", "t", "inconclusive", (Finding("e", "s", "inconclusive", reason="why"),)),
             CaseResult("f", "t", "skipped", reason="off"), CaseResult("g", "t", "pass", (Finding("g", "s", "pass"),)))
    root = ET.fromstring(junit_xml(result(*cases)))
    assert [child.tag for item in root for child in item] == ["failure", "error", "skipped", "skipped", "system-out"]
    assert root[0][0].get("message") == "s: ab<&>"
    assert root[2][0].get("message") == "inconclusive: s: why"


def test_a_miss_shows_reason_and_advice_below():
    line = show_line(Finding("l2", "send", "fail", "cached=0", "device=0", "the reason", "the advice"))
    assert line.splitlines()[1:] == ["      the reason", "      → the advice"]


# --------------------------------------------------------------------------- profiles and servers


def info(**more):
    base = {"page_size": 128, "device_tokens": 65536, "max_request_tokens": 8000, "hicache": True}
    return ServerInfo("real", **(base | more))


def test_the_computed_profile_agrees_with_what_a_real_server_showed():
    figures = computed_profile(info()).figures
    assert (figures.first_evicting_peers.value, figures.resident_pages.value, figures.match_tokens.value) == (
        20, 25, 3200)
    assert {figure.how for figure in (figures.stay_peers, figures.evict_peers)} == {"computed"}


@pytest.mark.parametrize("change", [{"page_size": None}, {"device_tokens": None}, {"device_tokens": 1024},
                                    {"max_request_tokens": 300}])
def test_what_cannot_be_computed_is_inconclusive(change):
    with pytest.raises(Inconclusive):
        computed_profile(info(**change))


@pytest.mark.parametrize(("change", "text"), [
    ({"page_size": 16}, r"page_size 128, the server has 16"),
    ({"device_tokens": 4096}, r"max_total_tokens 65,536, the server has 4,096"),
    ({"max_request_tokens": 3000}, "takes 3000"),
])
def test_a_profile_of_another_server_is_refused(change, text):
    with pytest.raises(UsageError, match=text):
        profile_for("glm5.2-dsa", info(**change))


def test_a_coarse_grid_makes_the_probe_longer():
    assert probe_tokens(load_profile("deepseek-v4")) == 2048 + 128 + 1


# --------------------------------------------------------------------------- calibrate


async def calibrated(fake, tmp_path, **more):
    async with served(fake) as (url, _):
        return await calibrate(Target(url), CalibrateOptions(tmp_path, **more), lambda text: None)


@pytest.fixture(autouse=True)
def short_watch(monkeypatch):
    monkeypatch.setattr("hicache_bench.verify.traffic.WATCH_S", 0.05)
    monkeypatch.setattr("hicache_bench.verify.prober.GAUGE_QUIET_NS", 10**7)
    monkeypatch.setattr("hicache_bench.verify.prober.STORAGE_QUIET_S", 0.02)


@pytest.mark.slow
async def test_calibrate_finds_the_thresholds_of_a_server_and_writes_a_profile_that_passes(tmp_path):
    fake, file = Fake(), tmp_path / "mine.toml"
    found = await calibrated(fake, tmp_path, write=file)
    figures = found.profile.figures
    each = found.profile.prompt_tokens // PAGE
    assert found.grid is not None
    assert (found.grid.tokens, found.grid.rule) == (PAGE, "L-1")
    # The fake drops whole prompts as soon as their pages do not fit: a base and n peers need (n + 1) * each.
    assert figures.first_evicting_peers.value == fake.pages // each
    assert figures.host_peers.value == 2 * fake.pages // each
    assert (figures.prime_requests.value, figures.commit_lag.value) == (2, 0)
    assert figures.resident_pages.value == each
    assert figures.stay_peers.value < figures.first_evicting_peers.value < figures.evict_peers.value
    assert {tier for tier, (equal, of) in found.fidelity.items() if equal == of > 0} == {"device", "host", "storage"}
    assert {figure.server for figure in (figures.match_tokens, figures.host_peers)} != {""}
    assert load_profile(file) == found.profile
    assert "SIMULATED" in file.read_text()
    text = render_calibration(found)
    assert "pressure sweep" in text
    assert "DDD" in text
    assert "HHH" in text
    async with served(Fake()) as (url, _):
        again = await verify([Target(url)], VerifyOptions(("l1", "l2"), str(file), tmp_path), lambda text: None)
    assert again.exit_code == 0


async def test_calibrate_refuses_a_server_with_other_traffic(tmp_path):
    with pytest.raises(MeasureError, match="other traffic: it served"):
        await calibrated(Fake(foreign=500), tmp_path)


@pytest.mark.slow
async def test_calibrate_says_when_it_cannot_tell_about_other_traffic(tmp_path):
    found = await calibrated(Fake(metrics=False, storage=False), tmp_path, host=False)
    assert any("not known" in note for note in found.notes)
    assert any("no storage tier" in note for note in found.notes)
    assert found.profile.figures.resident_pages is None
    assert found.profile.figures.host_peers is None
    assert "host" in render_calibration(found)


async def test_calibrate_without_tiers_in_the_answers_is_inconclusive(tmp_path):
    with pytest.raises(Inconclusive, match="which tier served"):
        await calibrated(Fake(fault="no_details"), tmp_path)


async def test_calibrate_sees_wrong_text_as_lost_fidelity(tmp_path):
    found = await calibrated(Fake(fault="wrong_text"), tmp_path, host=False)
    assert found.fidelity["device"][0] == found.fidelity["device"][1] > 0
    assert found.fidelity["host"][0] == 0 < found.fidelity["host"][1]


@pytest.mark.parametrize("tokens", [20, 10**6])
async def test_calibrate_refuses_a_prompt_length_that_tells_nothing(tmp_path, tokens):
    with pytest.raises(UsageError, match="--prompt-tokens"):
        await calibrated(Fake(), tmp_path, prompt_tokens=tokens)
