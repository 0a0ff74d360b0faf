"""`locust -f locustfiles/…` in one process, against the simulated server."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys

import pytest

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server
from hicache_bench.store.rundir import RunDir
from tests.locust.processes import (
    CLOSED,
    INSTALLED,
    LONG,
    ROOT,
    STAGED,
    ended,
    entries,
    locust,
    measuring,
    start,
    stored,
    until,
)

pytestmark = pytest.mark.skipif(not INSTALLED, reason="Locust is not installed")


@pytest.fixture(scope="module")
def closed(sim_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed")
    return locust(folder, sim_url, CLOSED, "--csv", str(folder / "stats"), "--html", str(folder / "report.html"))


def test_a_closed_plan_is_sent_whole_and_sealed(closed):
    assert closed.code == 0, closed.output
    rows = closed.rows()
    assert len(rows) == 40
    assert len({(row["session"], row["turn"]) for row in rows}) == 40
    assert {row["outcome"] for row in rows} == {"ok"}
    assert all(row["scheduled_ns"] <= row["sent_ns"] < row["first_token_ns"] <= row["done_ns"] for row in rows)
    assert all(sum(row["chunk_tokens"]) == row["output_tokens"] == 4 for row in rows)
    meta = closed.meta
    assert meta["status"] == "complete"
    assert meta["issued"] == 40
    assert meta["tags"] == {"engine": "locust"}
    (worker,) = meta["locust"]["workers"]
    assert (worker["rows"], worker["lost"]) == (40, False)
    assert "Traceback" not in closed.output


def test_live_turns_send_the_servers_own_answers_back(closed):
    later = [row for row in closed.rows() if row["stream"] == "chat" and row["turn"] == 2]
    assert later
    assert {row["prompt_tokens"] for row in later} == {64 + 4 + 16 + 4 + 16}


def test_locusts_statistics_have_our_entries(closed):
    found = entries(closed.output)
    for name in ("E2E", "TTFT", "ITL", "tokens device", "tokens computed", "tokens output"):
        assert found[name] == 40, name


def test_csv_and_html_are_written(closed):
    with (closed.folder / "stats_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    assert rows["E2E"]["Request Count"] == rows["Aggregated"]["Request Count"] == "40"
    assert "TTFT" in (closed.folder / "report.html").read_text()


@pytest.mark.slow
def test_users_and_run_time_replace_the_workloads(sim_url, tmp_path):
    done = locust(tmp_path, sim_url, CLOSED, "-u", "2", "-t", "1s")
    assert done.code == 0, done.output
    meta = done.meta
    assert meta["status"] == "complete"
    assert meta["load"] == {"concurrency": 2, "duration_ns": 10**9, "requests": None}
    # Locust's own timer may end the test some milliseconds before the plan's duration.
    assert meta["issue_end_ns"] - meta["measure_start_ns"] >= 0.9 * 10**9
    assert all(row["scheduled_ns"] <= meta["issue_end_ns"] for row in done.rows())


@pytest.mark.slow
def test_an_open_plan_keeps_its_schedule_and_sheds(sim_url, tmp_path):
    done = locust(tmp_path, sim_url, STAGED)
    assert done.code == 0, done.output
    rows, meta = done.rows(), done.meta
    assert "Shape test" in done.output
    assert meta["status"] == "complete"
    assert {row["outcome"] for row in rows} == {"ok", "shed"}
    assert len({row["session"] for row in rows}) == len(rows) == meta["requests"] == meta["issued"] + meta["shed"]
    plan = RunDir(done.run).read_json("plan.json")
    last = max(row["scheduled_ns"] for row in rows) - meta["measure_start_ns"]
    assert last == plan["last_arrival_ns"], "instants are the plan's own, not when they were reached"


@pytest.mark.slow
def test_ctrl_c_drains_and_seals_as_aborted(sim_url, tmp_path):
    process = start(tmp_path, sim_url, LONG, "--headless", "--only-summary")
    until(lambda: measuring(tmp_path) and stored(tmp_path))
    process.send_signal(signal.SIGINT)
    done = ended(process, tmp_path)
    assert done.meta["status"] == "aborted"
    assert done.meta["locust"]["workers"][0]["rows"] == len(done.rows()) > 0
    assert {row["outcome"] for row in done.rows()} == {"ok"}


@pytest.mark.slow
def test_a_killed_locust_leaves_a_readable_run(sim_url, tmp_path):
    process = start(tmp_path, sim_url, LONG, "--headless", "--only-summary")
    until(lambda: measuring(tmp_path) and stored(tmp_path))
    process.kill()
    done = ended(process, tmp_path)
    until(lambda: done.meta["status"] == "aborted")
    assert len(done.rows()) > 0


@pytest.mark.parametrize(("workload", "args", "code", "says"), [
    (CLOSED.replace("requests = 40", "requests = 0"), (), 2, "requests"),
    pytest.param(CLOSED, ("--rate", "fast"), 2, "rate", marks=pytest.mark.slow),
    pytest.param(CLOSED, ("--slo", "ttft<soon"), 2, "soon", marks=pytest.mark.slow),
    pytest.param(CLOSED, ("--host", "http://127.0.0.1:9"), 3, "127.0.0.1:9", marks=pytest.mark.slow),
])
def test_what_cannot_run_says_so_before_a_user_starts(sim_url, tmp_path, workload, args, code, says):
    done = locust(tmp_path, sim_url, workload, *args)
    assert done.code == code, done.output
    assert says in done.output
    assert "Traceback" not in done.output
    assert "Ramping" not in done.output


@pytest.mark.slow
def test_a_dying_server_makes_typed_failures(tmp_path):
    with spawn_server(SimConfig(prefill_tokens_per_s=0, decode_ms=5)) as server:
        process = start(tmp_path, server.url, LONG.replace('"60s"', '"8s"'), "--headless", "--only-summary")
        until(lambda: measuring(tmp_path) and stored(tmp_path))
    done = ended(process, tmp_path)
    assert done.code == 1, "Locust's exit code for failed requests"
    assert done.meta["status"] == "complete"
    failed = {row["outcome"] for row in done.rows()} - {"ok", "aborted"}
    assert failed
    assert failed <= {"connect", "disconnect"}
    for outcome in failed:
        assert f"RequestFailed('{outcome}" in done.output or f"{outcome}: " in done.output


def test_locusts_process_has_no_aiohttp_and_ours_no_locust():
    """Locust patches sockets; asyncio's client must not be in the same process, nor Locust in ours."""
    check = ("import sys, locust, hicache_bench.locust_user.user; "
             "sys.exit(' '.join(m for m in ('aiohttp', 'pyarrow', 'uvloop') if m in sys.modules))")
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True).stderr.strip() == ""
    check = ("import sys, hicache_bench.locust_user.companion, hicache_bench.locust_user.folding, "
             "hicache_bench.cli.main; sys.exit(' '.join(m for m in ('locust', 'gevent') if m in sys.modules))")
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True).stderr.strip() == ""
