"""`hicache-bench sim`: runs, sweeps and fits from the command line, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "workloads" / "smoke.toml"


def test_run_keeps_a_directory_that_show_list_and_compare_read(call, tmp_path):
    for ratio in ("1", "4"):
        code, out, _ = call("sim", "run", SMOKE, "--results", tmp_path, "-q", "--hicache-ratio", ratio,
                            "--max-total-tokens", "4096", "--page-size", "16", "--tag", f"ratio={ratio}")
        assert code == 0
        assert "SIMULATED" in out
    runs = sorted(str(path) for path in tmp_path.iterdir())
    code, out, _ = call("show", runs[0], "--results", tmp_path)
    assert code == 0
    assert "status complete" in out
    code, out, _ = call("list", "--results", tmp_path)
    assert code == 0
    assert out.count("smoke") >= 2
    code, out, _ = call("compare", *runs, "--results", tmp_path)
    assert code in (0, 4)
    assert "ttft" in out


def test_run_as_json_and_with_a_profile(call, tmp_path):
    code, out, _ = call("sim", "run", SMOKE, "--results", tmp_path, "-q", "--format", "json", "--profile",
                        "qwen3.6-hybrid-mamba", "--costs", "toy", "--cost", "decode_step_ms=1")
    assert code == 0
    assert json.loads(out)["outcomes"] == {"ok": 24}
    (run,) = tmp_path.iterdir()
    server = json.loads((run / "server.json").read_text())
    assert server["page_size"] == 128
    assert server["raw"]["costs"]["decode_step_ms"] == 1.0


def test_sweep_prints_and_keeps_its_points(call, tmp_path):
    code, out, err = call("sim", "sweep", SMOKE, "--results", tmp_path, "--hicache-ratio", "1,2", "--write-policy",
                          "write_through,write_back", "-j", "1", "--max-total-tokens", "4096", "--page-size", "16")
    assert code == 0
    assert "4/4" in err
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"sweep.parquet", "sweep.svg", "sweep.json"}
    rows = json.loads((folder / "sweep.json").read_text())["rows"]
    assert [(row["hicache_ratio"], row["write_policy"]) for row in rows] == [
        (1.0, "write_through"), (1.0, "write_back"), (2.0, "write_through"), (2.0, "write_back")]
    assert out.count("write_back") == 2
    code, out, _ = call("sim", "sweep", SMOKE, "--results", tmp_path, "--storage-tokens", "0,64k,unlimited", "-j", "1",
                        "-q", "--format", "json")
    assert code == 0
    assert [row["storage_tokens"] for row in json.loads(out)] == ["0", "64k", "unlimited"]


def test_fit_writes_costs_that_run_takes(call, tmp_path):
    prefixes = ROOT / "workloads" / "prefix_reuse.toml"
    call("sim", "run", prefixes, "--results", tmp_path, "-q", "-n", "100", "--max-total-tokens", "32k")
    costs = tmp_path / "costs.toml"
    code, out, _ = call("sim", "fit", "latest", "--results", tmp_path, "--out", costs)
    assert code == 0
    assert "recompute" in out
    assert "predicted" in out
    code, out, _ = call("sim", "run", SMOKE, "--results", tmp_path, "-q", "--costs", costs)
    assert code == 0
    code, out, _ = call("sim", "fit", "latest", "--results", tmp_path, "--out", costs, "--format", "json",
                        "--no-replay")
    assert code == 0
    assert json.loads(out)["compared"] == []


@pytest.mark.parametrize(("arguments", "message"), [
    (["--hicache-ratio", "0"], "host_ratio 0.0: a number above 0"),
    (["--hicache-ratio", "nan"], "host_ratio"),
    (["--page-size", "0"], "page_size 0: at least 1"),
    (["--max-total-tokens", "256"], "tokens"),
    (["--max-total-tokens", "0"], "device_tokens 0"),
    (["--profile", "gpt-9"], "no profile 'gpt-9'"),
    (["--write-policy", "write_never"], "write_through_selective"),
    (["--prefetch-policy", "psychic"], "best_effort, wait_complete, timeout"),
    (["--radix-eviction-policy", "mru"], "lru, lfu, slru, priority"),
    (["--hicache-io-backend", "warp"], "kernel, direct"),
    (["--hicache-mem-layout", "pile"], "layer_first"),
    (["--storage-tokens", "lots"], "--storage-tokens"),
    (["--storage-tokens", "1"], "at least a page"),
    (["--disable-hierarchical-cache", "--storage-tokens", "1M"], "without HiCache"),
    (["--chunked-prefill-size", "8"], "chunked_prefill_size 8"),
    (["--max-running-requests", "0"], "max_running_requests 0"),
    (["--costs", "nowhere.toml"], "neither a preset"),
    (["--cost", "speed=9"], "KEY=VALUE"),
    (["--cost", "decode_step_ms=fast"], "no number"),
    (["--cost", "decode_step_ms=-1"], "must be 0 or more"),
    (["--tag", "nothing"], "build=1234"),
])
def test_run_refuses_by_value_and_rule(call, tmp_path, arguments, message):
    code, _, err = call("sim", "run", SMOKE, "--results", tmp_path, "-q", *arguments)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "message"), [
    (["--hicache-ratio", "1,x"], "'x' is no number"),
    (["--hicache-ratio", ","], "at least one value"),
    (["--hicache-ratio", "1,0"], "host_ratio 0.0"),
    (["--page-size", "16,x"], "--page-size"),
])
def test_sweep_refuses_by_value_and_rule(call, tmp_path, arguments, message):
    code, _, err = call("sim", "sweep", SMOKE, "--results", tmp_path, "-q", "-j", "1", *arguments)
    assert code == 2
    assert message in err


def test_fit_needs_a_run(call, tmp_path):
    code, _, err = call("sim", "fit", "latest", "--results", tmp_path)
    assert code == 2
    assert "no run" in err


def test_negative_times_in_a_trace_are_refused(call, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": -5, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n')
    code, _, err = call("sim", "run", ROOT / "workloads" / "mooncake_conversation.toml", "--trace", trace,
                        "--results", tmp_path, "-q")
    assert code == 2
    assert "trace.jsonl:1" in err


def test_help_lists_the_subverbs(call):
    code, out, _ = call("sim", "--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in ("run", "sweep", "fit"))
