"""The tier suites against a real SGLang with device, host and storage tier."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def run(sglang, folder, *words):
    env = {**os.environ, "HICACHE_BENCH_ADMIN_KEY": sglang.admin_key}
    return subprocess.run([sys.executable, "-m", "hicache_bench", *words, "--url", sglang.url, "--results", folder,
                           "--format", "json"], capture_output=True, text=True, env=env, timeout=1500, check=False)


def test_every_case_that_applies_passes(sglang, tmp_path):
    done = run(sglang, tmp_path, "verify")
    result = json.loads(done.stdout)
    verdicts = {case["name"]: case["verdict"] for case in result["cases"]}
    assert done.returncode == 0, done.stderr
    assert {"l1", "l2", "l3", "clear", "salt", "flush_keeps_l3"} <= {
        name for name, verdict in verdicts.items() if verdict == "pass"}
    assert result["origin"] == "real"


def test_calibrate_agrees_with_the_page_arithmetic(sglang, tmp_path):
    done = run(sglang, tmp_path, "calibrate", "--no-host")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    page = found["grid"]["tokens"]
    assert found["grid"]["rule"] == "L-1"
    assert all(one["match"] == (one["tokens"] - 1) // page * page for one in found["lengths"])
    assert all(equal == of > 0 for equal, of in found["fidelity"].values())
