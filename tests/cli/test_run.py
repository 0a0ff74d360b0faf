"""Whole runs through the command line against the simulated server."""

from __future__ import annotations

import json

import pytest

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server
from hicache_bench.store.reader import read_attempts
from tests.cli.invoke import hcb, only_run, scripted, strict_json, workload
from tests.scripted import json_answer

CASES = [("generate", "--stream"), ("generate", "--no-stream"), ("chat", "--no-stream")]
MORE = [("completions", "--stream"), ("completions", "--no-stream"), ("chat", "--stream")]


@pytest.mark.parametrize(("api", "stream"), [*CASES, *(pytest.param(*c, marks=pytest.mark.slow) for c in MORE)])
def test_happy_run(tmp_path, sim_url, api, stream):
    results = tmp_path / "r"
    done = hcb("run", workload(tmp_path), "--url", sim_url, "--results", results, "--api", api, stream,
               "--format", "json", "-q")
    assert (done.code, done.err) == (0, "")
    summary = strict_json(done.out)
    assert summary["outcomes"] == {"ok": 4}
    run = only_run(results)
    meta = strict_json((run / "run.json").read_text())
    assert (meta["status"], meta["start_state"], meta["origin"]) == ("complete", "cold", "simulated")
    assert {check["verdict"] for check in meta["reconcile"]} == {"equal"}
    table = read_attempts(run, phase="measure")
    assert set(table.column("api").to_pylist()) == {api}
    assert set(table.column("streamed").to_pylist()) == {stream == "--stream"}
    assert sum(table.column("device_tokens").to_pylist()) > 0
    assert set(table.column("output_tokens").to_pylist()) == {3}


def hits(run) -> float:
    table = read_attempts(run, phase="measure")
    return sum(table.column("cached_tokens").to_pylist()) / sum(table.column("prompt_tokens").to_pylist())


AGAIN = ("--reuse-prompts", "--no-reset", "--nonce", "again")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, sim_url):
    """Two ordinary runs of one workload, then two that repeat their prompts on purpose."""
    folder = tmp_path_factory.mktemp("runs")
    unique = '[[stream]]\nname = "u"\nkind = "unique"\nprompt_tokens = 321\noutput_tokens = 1\n'
    file = workload(folder, stream=unique)
    made = []
    for i, more in enumerate(((), (), AGAIN, AGAIN)):
        assert hcb("run", file, "--url", sim_url, "--results", folder / f"r{i}", "-q", *more).code == 0
        made.append(only_run(folder / f"r{i}"))
    return made


def test_second_run_is_cold_and_a_repeat_on_purpose_is_warm(runs):
    """D19: a nonce keeps runs apart; --reuse-prompts --no-reset with the same nonce hits what is there."""
    assert [hits(run) for run in runs[:3]] == [0, 0, 0]
    assert hits(runs[3]) > 0.95


def test_compare_same_plan_and_refuse_another(runs):
    same = hcb("compare", runs[0], runs[1], "--format", "json")
    assert same.code == 0
    assert strict_json(same.out)["lines"]
    other = hcb("compare", runs[0], runs[2])
    assert (other.code, other.out) == (2, "")
    assert "start state" in other.err
    forced = hcb("compare", runs[0], runs[2], "--force")
    assert forced.code == 0
    assert "forced: " in forced.out


def test_keys_reach_the_server_and_no_output(tmp_path):
    """D22: by environment, by file and in a header; nowhere on disk or on the terminal."""
    api, admin, custom = "sk-api-7f3a9", "sk-admin-55b2c", "s3cr3t-header-81"
    key_file = tmp_path / "admin.key"
    key_file.write_text(admin + "\n")
    results = tmp_path / "r"
    with spawn_server(SimConfig(prefill_tokens_per_s=0, decode_ms=0, api_key=api, admin_api_key=admin)) as server:
        done = hcb("run", workload(tmp_path), "--url", server.url, "--results", results, "--admin-key-file", key_file,
                   "--header", f"X-Api-Key: {custom}", HICACHE_BENCH_API_KEY=api)
        wrong = hcb("run", workload(tmp_path), "--url", server.url, "--results", tmp_path / "w",
                    HICACHE_BENCH_API_KEY="sk-wrong-key-00")
    assert done.code == 0
    assert json.loads((only_run(results) / "run.json").read_text())["start_state"] == "cold"
    assert wrong.code == 3
    assert "HICACHE_BENCH_API_KEY" in wrong.err
    written = b"".join(path.read_bytes() for path in results.rglob("*") if path.is_file())
    for secret in (api, admin, custom, "sk-wrong-key-00"):
        assert secret.encode() not in written
        assert secret not in done.out + done.err + wrong.out + wrong.err


def reduced(seen, *, generate, lacks=()):
    """A server of few routes."""
    path = seen.path.partition("?")[0]
    if path in lacks:
        return json_answer({"detail": "Not Found"}, 404)
    if path == "/tokenize":
        texts = seen.json()["prompt"]
        return json_answer({"tokens": [[10 + i] for i in range(len(texts))]})
    if path == "/flush_cache":
        return json_answer({"ok": True})
    return generate(seen) if path == "/generate" else json_answer({"detail": "Not Found"}, 404)


def test_every_request_failing_still_gives_a_whole_report(tmp_path):
    """D14: status 404 for all; exit 3, rows, nulls and no NaN."""
    results = tmp_path / "r"
    with scripted(lambda seen: reduced(seen, generate=lambda _: json_answer({"error": "nope"}, 404))) as server:
        done = hcb("run", workload(tmp_path, more="[reset]\ndevice_host = false\nstorage = false"), "--url", server.url,
                   "--results", results, "--format", "json")
    assert done.code == 3
    assert "every request failed" in done.err
    summary = strict_json(done.out)
    assert summary["outcomes"] == {"http": 4}
    assert summary["latency"]["ttft"]["p50"] is None
    assert read_attempts(only_run(results)).num_rows == 4
    strict_json((only_run(results) / "run.json").read_text())


@pytest.mark.parametrize(("on_failure", "code"), [("error", 3), ("warn", 3)])
def test_reset_that_is_refused_follows_on_failure(tmp_path, on_failure, code):
    results = tmp_path / "r"
    with scripted(lambda seen: reduced(seen, generate=lambda _: [b"\xff\x00garbage\r\n\r\n", "close"],
                                       lacks=("/flush_cache",))) as server:
        done = hcb("run", workload(tmp_path, more=f'[reset]\non_failure = "{on_failure}"'), "--url", server.url,
                   "--results", results)
    assert done.code == code
    run = only_run(results)
    meta = json.loads((run / "run.json").read_text())
    assert meta["status"] == ("failed" if on_failure == "error" else "complete")
    if on_failure == "error":
        assert "reset" in done.err
        assert hcb("show", run).code == 0
    else:
        assert {"reset_failed", "no_metrics"} <= {w["code"] for w in meta["warnings"]}
        assert set(read_attempts(run, phase="measure").column("outcome").to_pylist()) <= {"protocol", "disconnect"}


def test_plan_sends_no_generation_request(tmp_path):
    with scripted(lambda seen: reduced(seen, generate=lambda _: json_answer({}, 500))) as server:
        done = hcb("plan", workload(tmp_path), "--url", server.url, "--format", "json")
        assert not [seen for seen in server.seen if seen.method != "GET"]
        assert server.seen
    assert done.code == 0
    assert strict_json(done.out)["footprint"]["whole"]["requests"] == 4
