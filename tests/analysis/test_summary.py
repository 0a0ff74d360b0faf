import json

import pytest

from hicache_bench.analysis.summary import render_json, render_text, summarize
from hicache_bench.analysis.text import SIMULATED
from hicache_bench.errors import StoreError, UsageError
from tests.analysis.build import MS, attempt, run_dir


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


def codes(found):
    return [item.code for item in found.cautions]


def good(i=0, **fields):
    told = {"prompt_tokens": 1000, "cached_tokens": 500, "device_tokens": 500, "host_tokens": 0, "storage_tokens": 0,
            "ideal_cached_tokens": 600} | fields  # fmt: skip
    return attempt(20 * i, 20 * i, [(20 * i + 50, 1), (20 * i + 60, 1)], **told)


def test_a_good_run(tmp_path):
    run = run_dir(tmp_path, *[good(i) for i in range(4)], good(4, stream="t", device_tokens=0, host_tokens=500),
                  slo="ttft<60ms", measure_start_ns=None)  # fmt: skip
    found = summarize(run.path)
    assert found.outcomes == {"ok": 5}
    assert (found.latency["ttft"].n, found.latency["ttft"].p99) == (5, 50 * MS)
    assert found.figures["hit_ratio"] == 0.5
    assert found.figures["ideal_hit_ratio"] == 0.6
    assert [(use.stream, use.requests, use.host_tokens) for use in found.tiers] == [
        ("all", 5, 500), ("s", 4, 0), ("t", 1, 500)]  # fmt: skip
    assert list(found.ttft_by_tier) == ["device", "host"]
    assert found.goodput.met == 5
    assert codes(found) == []
    text = render_text(found)
    assert "50 ms" in text
    assert "goodput ttft<60ms: 5 of 5 requests (100.0%)" in text
    assert "SIMULATED" not in text
    assert strict(render_json(found))["latency"]["ttft"]["p50"] == 50 * MS


def test_zero_rows(tmp_path):
    found = summarize(run_dir(tmp_path).path)
    assert codes(found) == ["no_rows"]
    assert found.latency["ttft"].p50 is None
    assert "attempts 0: none" in render_text(found)
    assert strict(render_json(found))["figures"]["success_rate"] is None


def test_d14_every_request_fails(tmp_path):
    failures = [attempt(0, 0, outcome="http", status=404, error="404 Not Found", done=1) for _ in range(20)]
    found = summarize(run_dir(tmp_path, *failures, slo="ttft<1s").path)
    assert found.attempts == 20
    assert found.figures["success_rate"] == 0
    assert [(line.outcome, line.message, line.count) for line in found.errors] == [("http", "404 Not Found", 20)]
    assert "all_failed" in codes(found)
    shown = strict(render_json(found))
    assert shown["latency"]["ttft"] == {"n": 0} | dict.fromkeys(("mean", "p50", "p90", "p99", "min", "max"))
    assert "404 Not Found" in render_text(found)
    assert "nan" not in render_text(found).lower()


def test_d15_frozen_clock(tmp_path):
    run = run_dir(tmp_path, attempt(0, 0, [(0, 3)], done=0), attempt(0, 0, done=0, output_tokens=0))
    found = summarize(run.path)
    assert found.figures["requests_per_s"] is None
    strict(render_json(found))
    render_text(found)


def test_d10_empty_answers_are_counted_and_said(tmp_path):
    found = summarize(run_dir(tmp_path, good(), attempt(0, 0, done=5, outcome="empty")).path)
    assert found.outcomes == {"ok": 1, "empty": 1}
    assert found.latency["ttft"].n == 1
    assert "empty_answers" in codes(found)


def test_spoilers(tmp_path):
    run = run_dir(
        tmp_path,
        attempt(0, 30, [(50, 2)], prompt_tokens=100, cached_tokens=90, ideal_cached_tokens=0, ignore_eos=True,
                planned_output_tokens=5),
        attempt(0, 0, [(50, 2)], prompt_tokens=100, cached_tokens=10, device_tokens=20, ideal_cached_tokens=0),
        attempt(0, None, outcome="shed"),
        status="aborted",
        client={"loop_lag_p99_ns": 20 * MS, "cpu_fraction": 0.99, "recorder_backlog_bytes": 2**30},
        warnings=[{"code": "planned_out", "text": "the plan ran out", "advice": "more"}],
    )  # fmt: skip
    found = summarize(run.path)
    assert codes(found) == ["status_aborted", "schedule_lag", "loop_lag", "client_cpu", "recorder_backlog", "shed",
                            "tier_coverage", "tier_sum", "not_cold", "short_answers", "planned_out"]  # fmt: skip
    text = render_text(found)
    assert text.index("! requests left late") < text.index("ttft")


def test_interrupted_run_says_so(tmp_path):
    found = summarize(run_dir(tmp_path, good(), status="running", pid=2**22 + 1).path)
    assert found.status == "interrupted"
    assert codes(found)[0] == "status_interrupted"


def test_unreadable_part_is_named(tmp_path):
    run = run_dir(tmp_path, good())
    (run.path / "requests" / "part-00001.parquet").write_bytes(b"PAR1 torn")
    found = summarize(run.path)
    assert found.attempts == 1
    assert "part-00001.parquet" in found.cautions[0].text


def test_simulated_is_the_first_line(tmp_path):
    assert render_text(summarize(run_dir(tmp_path, good(), origin="simulated").path)).startswith(SIMULATED)


def test_reconcile_is_shown(tmp_path):
    check = {"tier": "host", "client_tokens": 640, "server_tokens": 600, "verdict": "differs", "reason": ""}
    text = render_text(summarize(run_dir(tmp_path, good(), reconcile=[check]).path))
    assert "640 tok" in text
    assert "differs" in text


def test_objective(tmp_path):
    run = run_dir(tmp_path, good())
    assert summarize(run.path).goodput is None
    assert summarize(run.path, "ttft<10ms").goodput.met == 0
    with pytest.raises(UsageError):
        summarize(run.path, "nonsense")


def test_no_run(tmp_path):
    with pytest.raises(StoreError, match=r"run\.json"):
        summarize(tmp_path)


def test_loop_lag_of_too_few_samples_is_no_caution(tmp_path):
    lag = {"loop_lag_p99_ns": 20 * MS, "samples": 40}
    assert "loop_lag" not in codes(summarize(run_dir(tmp_path, good(), client=lag).path))
    assert "loop_lag" in codes(summarize(run_dir(tmp_path, good(), client={**lag, "samples": 400}).path))


def test_host_hits_or_an_unknown_host_tier_are_no_device_only_load(tmp_path):
    def found(**tiers):
        row = attempt(0, 0, [(50, 2)], prompt_tokens=100, cached_tokens=40, device_tokens=40, **tiers)
        return codes(summarize(run_dir(tmp_path, row).path))

    assert "device_only" in found(host_tokens=0)
    assert "device_only" in found(host_tokens=0, storage_tokens=0)
    assert "device_only" not in found()
    assert "device_only" not in found(host_tokens=8)
    assert "device_only" not in found(host_tokens=0, storage_tokens=8)
