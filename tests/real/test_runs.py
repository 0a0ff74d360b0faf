"""Whole runs against a real SGLang with device, host and storage tier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from hicache_bench.store.reader import read_attempts
from hicache_bench.store.rundir import RunDir

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]

SMALL = """
name = "small"
[load]
concurrency = 3
requests = 12
[prime]
enabled = true
[[stream]]
name = "prefix"
kind = "shared_prefix"
share = 2
groups = 2
prefix_tokens = 320
suffix_tokens = 32
output_tokens = 6
[[stream]]
name = "fresh"
kind = "unique"
share = 1
prompt_tokens = 200
output_tokens = 4
"""

CHAT = """
name = "chat"
[load]
concurrency = 1
requests = 8
[[stream]]
name = "chat"
kind = "multi_turn"
share = 1
turns = 4
first_tokens = 160
turn_tokens = 160
output_tokens = 1
"""

PRESSURE = """
name = "fill"
[load]
concurrency = 1
[[stream]]
name = "back"
kind = "shared_prefix"
count = 6
groups = 1
prefix_tokens = 640
suffix_tokens = 16
output_tokens = 2
[[stream]]
name = "fresh"
kind = "unique"
fill = 1.2
prompt_tokens = 480
output_tokens = 2
"""


def bench(sglang, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HICACHE_BENCH_ADMIN_KEY": sglang.admin_key}
    return subprocess.run([sys.executable, "-m", "hicache_bench", *args, "--url", sglang.url], capture_output=True,
                          text=True, env=environment, timeout=600, cwd=ROOT)


def measure(sglang, folder: Path, toml: str, *args: str):
    """Run a workload; returns (summary, run.json, measured rows)."""
    workload = folder / "w.toml"
    workload.write_text(toml)
    done = bench(sglang, "run", str(workload), "--results", str(folder / "results"), "--format", "json", *args)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    rows = read_attempts(run, phase="measure").to_pylist()
    return json.loads(done.stdout), RunDir.open(run).read_json("run.json"), rows


def assert_reconciled(meta) -> None:
    checks = {check["tier"]: check for check in meta["reconcile"]}
    assert set(checks) >= {"prompt", "cached", "device", "host", "storage"}
    assert {check["verdict"] for check in checks.values()} == {"equal"}, checks


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_every_api_gives_whole_rows(sglang, tmp_path, api, stream):
    _, meta, rows = measure(sglang, tmp_path, SMALL, "--api", api, stream)
    assert len(rows) == 12
    assert {row["outcome"] for row in rows} == {"ok"}
    assert meta["origin"] == "real"
    assert meta["start_state"] == "primed_cold"
    for row in rows:
        assert row["token_source"] == "server"
        assert row["output_tokens"] == row["planned_output_tokens"]
        assert (row["first_token_ns"] is not None) == (stream == "--stream")
        if stream == "--stream":
            assert sum(row["chunk_tokens"]) == row["output_tokens"]
            assert row["sent_ns"] < row["first_token_ns"] <= row["last_token_ns"] <= row["done_ns"]
        if api != "chat":
            assert row["prompt_tokens"] == row["planned_prompt_tokens"]
    hits = [row["cached_tokens"] for row in rows if row["stream"] == "prefix"]
    assert min(hits) > 0
    assert_reconciled(meta)


def test_mixed_is_served_from_all_three_tiers(sglang, tmp_path):
    _, meta, rows = measure(sglang, tmp_path, (ROOT / "workloads/mixed.toml").read_text(), "-n", "150")
    for tier in ("device", "host", "storage"):
        assert any((row[f"{tier}_tokens"] or 0) > 0 for row in rows), tier
    assert_reconciled(meta)


def test_sized_from_the_captured_capacity_and_pushed_out_of_the_device(sglang, tmp_path):
    _, meta, rows = measure(sglang, tmp_path, PRESSURE)
    fresh = [row for row in rows if row["stream"] == "fresh"]
    capacity = 4096
    assert len(fresh) == -(-int(1.2 * capacity) // 480)
    assert all(row["cached_tokens"] == 0 for row in fresh)
    assert_reconciled(meta)


def test_live_conversation_hits_what_it_should(sglang, tmp_path):
    """Equal turns and one output token: round k hits (k-1)/k of its prompt, less the page floor."""
    _, _, rows = measure(sglang, tmp_path, CHAT)
    assert len(rows) == 8
    for row in rows:
        assert row["cached_tokens"] == row["ideal_cached_tokens"], row
    last = [row for row in rows if row["turn"] == 3]
    assert all(row["cached_tokens"] / row["prompt_tokens"] == pytest.approx(3 / 4, abs=0.03) for row in last)


def test_second_run_is_cold_unless_prompts_are_reused(sglang, tmp_path):
    unprimed = SMALL.replace("enabled = true", "enabled = false")
    for name in "abc":
        (tmp_path / name).mkdir()
    _, _, first = measure(sglang, tmp_path / "a", unprimed, "--reuse-prompts")
    _, meta, again = measure(sglang, tmp_path / "b", unprimed, "--reuse-prompts", "--no-reset")
    _, _, cold = measure(sglang, tmp_path / "c", unprimed, "--no-reset")
    fresh = [[row["cached_tokens"] for row in rows if row["stream"] == "fresh"] for rows in (first, again, cold)]
    assert set(fresh[0]) == {0}
    assert min(fresh[1]) == 192  # floor(199 / 16) * 16
    assert set(fresh[2]) == {0}
    assert meta["start_state"] == "as_found"


def test_open_loop_keeps_its_schedule(sglang, tmp_path):
    toml = SMALL.replace("concurrency = 3", 'rate = "4/s"\narrival = "constant"')
    _, _, rows = measure(sglang, tmp_path, toml)
    due = sorted(row["scheduled_ns"] for row in rows)
    assert {later - earlier for earlier, later in pairwise(due)} == {250_000_000}


def test_capture_and_plan(sglang):
    captured = bench(sglang, "capture", "--format", "json")
    info = json.loads(captured.stdout)
    assert (info["origin"], info["hicache"], info["storage_backend"]) == ("real", True, "file")
    assert info["page_size"]
    assert info["host_tokens"] > info["device_tokens"]
    assert not sglang.admin_key or sglang.admin_key not in captured.stdout
    planned = bench(sglang, "plan", "workloads/pressure.toml", "--format", "json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["capacity"]["device_tokens"] == info["device_tokens"]
