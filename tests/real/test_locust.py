"""The locustfiles against a real SGLang with device, host and storage tier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_bench.store.reader import read_attempts
from tests.locust.processes import INSTALLED, two_workers
from tests.real.test_runs import CHAT, PRESSURE, SMALL, assert_reconciled

pytestmark = [pytest.mark.skipif(not INSTALLED, reason="Locust is not installed"), pytest.mark.real,
              pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def locust(sglang, folder: Path, file: str, toml: str, *args: str):
    """A headless run; returns (run.json, measured rows)."""
    (folder / "w.toml").write_text(toml)
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / f"locustfiles/{file}.py"), "--host", sglang.url,
               "--headless", "--only-summary", "--workload", "w.toml", "--results", "results", *args]
    environment = {**os.environ, "HICACHE_BENCH_ADMIN_KEY": sglang.admin_key, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").iterdir()
    return json.loads((run / "run.json").read_text()), read_attempts(run, phase="measure").to_pylist()


@pytest.mark.parametrize("api", ["generate", "chat"])
def test_prefix_reuse(sglang, tmp_path, api):
    meta, rows = locust(sglang, tmp_path, "prefix_reuse", SMALL, "--api", api)
    assert meta["status"] == "complete"
    assert meta["start_state"] == "primed_cold"
    assert [row["outcome"] for row in rows] == ["ok"] * 12
    assert all(row["sent_ns"] < row["first_token_ns"] <= row["last_token_ns"] <= row["done_ns"] for row in rows)
    assert min(row["cached_tokens"] for row in rows if row["stream"] == "prefix") > 0
    assert_reconciled(meta)


def test_multi_turn_hits_what_it_should(sglang, tmp_path):
    _, rows = locust(sglang, tmp_path, "multi_turn", CHAT)
    assert len(rows) == 8
    for row in rows:
        assert row["cached_tokens"] == row["ideal_cached_tokens"], row


def test_pressure_with_two_workers(sglang, tmp_path):
    meta, rows = locust(sglang, tmp_path, "pressure", PRESSURE, "-u", "2", *two_workers())
    assert len({row["session"] for row in rows}) == len(rows) == meta["requests"]
    assert [worker["lost"] for worker in meta["locust"]["workers"]] == [False, False]
    assert all(row["cached_tokens"] == 0 for row in rows if row["stream"] == "fresh")
    assert_reconciled(meta)
