"""One master and its workers, against the simulated server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.locust.processes import (
    CLOSED,
    INSTALLED,
    LONG,
    ROOT,
    ended,
    entries,
    free_port,
    locust,
    measuring,
    start,
    stored,
    two_workers,
    until,
)

pytestmark = pytest.mark.skipif(not INSTALLED, reason="Locust is not installed")


def test_workers_share_one_plan_and_their_rows_meet_in_one_run(sim_url, tmp_path):
    done = locust(tmp_path, sim_url, CLOSED, *two_workers())
    assert done.code == 0, done.output
    rows, meta = done.rows(), done.meta
    assert meta["status"] == "complete"
    assert len({(row["session"], row["turn"]) for row in rows}) == len(rows) == 40
    workers = meta["locust"]["workers"]
    assert [worker["rows"] for worker in workers] == [worker["requests"] for worker in workers]
    assert sum(worker["rows"] for worker in workers) == meta["issued"] == 40
    assert len({worker["pid"] for worker in workers}) == 2
    for worker in workers:
        assert worker["corrected_ns"] == 0, "processes of one machine share the clock"
        assert abs(worker["offset_ns"]) <= worker["uncertainty_ns"] + 10**6
        assert worker["drift_ns"] is not None
    assert entries(done.output)["E2E"] == 40


@pytest.mark.slow
def test_one_plan_gives_the_same_prompts_as_the_other_engine(sim_url, tmp_path):
    """The digest is the plan's; the content is the nonce's. Two workers or one asyncio loop: the same requests."""
    both = []
    for name, workers in (("one", ()), ("two", two_workers())):
        (tmp_path / name).mkdir()
        done = locust(tmp_path / name, sim_url, CLOSED, "--nonce", name, *workers)
        both.append((done.meta["plan_digest"], {(r["session"], r["turn"], r["prompt_tokens"]) for r in done.rows()}))
    (tmp_path / "w.toml").write_text(CLOSED)
    subprocess.run([sys.executable, "-m", "hicache_bench", "run", str(tmp_path / "w.toml"), "--url", sim_url,
                    "--results", str(tmp_path / "ours")], check=True, capture_output=True, cwd=ROOT)
    (ours,) = (tmp_path / "ours").iterdir()
    assert both[0] == both[1]
    assert both[0][0] == json.loads((ours / "run.json").read_text())["plan_digest"]


@pytest.mark.slow
def test_a_killed_worker_loses_little_and_the_run_says_so(sim_url, tmp_path):
    process = start(tmp_path, sim_url, LONG.replace('"60s"', '"15s"'), "--headless", "--only-summary", *two_workers())
    meta = until(lambda: measuring(tmp_path))
    until(lambda: stored(tmp_path) > 20)
    victim = meta["locust"]["workers"][1]
    time.sleep(3)
    os.kill(victim["pid"], signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    done = ended(process, tmp_path)
    after = done.meta
    lost = {worker["id"]: worker["lost"] for worker in after["locust"]["workers"]}
    assert [worker for worker, gone in lost.items() if gone] == [victim["id"]]
    (warning,) = [warning for warning in after["warnings"] if warning["code"] == "worker_lost"]
    assert victim["id"] in warning["text"]
    assert "not reported" in warning["text"]
    assert after["status"] == "aborted", "a run without a share of its plan is not complete"
    its_rows = [row for row in done.rows() if row["session"] % 2 == 1]
    assert killed_ns - max(row["done_ns"] for row in its_rows) < 5 * 10**9
    others = [row for row in done.rows() if row["session"] % 2 == 0]
    assert max(row["done_ns"] for row in others) > killed_ns + 2 * 10**9, "the others went on"


@pytest.mark.slow
def test_a_late_worker_is_refused(sim_url, tmp_path):
    port = free_port()
    process = start(tmp_path, sim_url, LONG.replace('"60s"', '"10s"'), "--headless", "--only-summary",
                    *two_workers(port))
    until(lambda: measuring(tmp_path))
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles/prefix_reuse.py"), "--worker",
               "--master-port", str(port)]
    late = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=60)
    assert "Got quit message" in late.stderr
    done = ended(process, tmp_path)
    assert "is refused" in done.output
    assert done.meta["status"] == "complete"
    assert len(done.meta["locust"]["workers"]) == 2


@pytest.mark.slow
def test_fewer_users_than_workers_are_refused(sim_url, tmp_path):
    done = locust(tmp_path, sim_url, CLOSED, "-u", "1", *two_workers())
    assert done.code == 2, done.output
    assert "1 users for 2 workers" in done.output
    assert done.meta["status"] == "aborted"


@pytest.mark.slow
def test_workers_of_their_own_need_no_option_but_the_master(sim_url, tmp_path):
    """As on another machine: the worker is told the server, the plan and the start; its results come back."""
    port = str(free_port())
    master = start(tmp_path, sim_url, CLOSED, "--headless", "--only-summary", "--master", "--master-bind-host",
                   "127.0.0.1", "--master-bind-port", port, "--expect-workers", "1")
    worker = subprocess.run([sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles/prefix_reuse.py"),
                             "--worker", "--master-port", port], cwd=tmp_path, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=90)
    done = ended(master, tmp_path)
    assert (worker.returncode, done.code) == (0, 0), worker.stderr + done.output
    assert len(done.rows()) == 40
    assert done.meta["status"] == "complete"
