"""Runs that end badly keep what they measured and say what happened in a line."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server
from hicache_bench.store.reader import read_attempts
from tests.cli.invoke import environment, finish, hcb, only_run, start, workload

LONG = "concurrency = 4\nduration = \"40s\""


def begin(folder, url, load=LONG, results=None):
    """A run under way with rows on disk; returns (process, run directory)."""
    results = results or folder / "r"
    process = start("run", workload(folder, load=load), "--url", url, "--results", results, "--no-reset")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if list(results.glob("*/requests/part-*.parquet")):
            return process, only_run(results)
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


def test_one_interrupt_drains_and_seals(tmp_path, sim_url):
    process, run = begin(tmp_path, sim_url)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "Ctrl-C again to stop at once" in done.err
    assert json.loads((run / "run.json").read_text())["status"] == "aborted"
    outcomes = read_attempts(run, phase="measure").column("outcome").to_pylist()
    assert outcomes
    assert set(outcomes) == {"ok"}


@pytest.mark.slow
def test_two_interrupts_cancel_what_is_in_flight(tmp_path):
    with spawn_server(SimConfig(prefill_tokens_per_s=0, decode_ms=200)) as server:
        process, run = begin(tmp_path, server.url)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert finish(process).code == 130
    assert json.loads((run / "run.json").read_text())["status"] == "aborted"
    assert "aborted" in read_attempts(run).column("outcome").to_pylist()


def test_killed_run_is_readable(tmp_path, sim_url):
    process, run = begin(tmp_path, sim_url)
    process.kill()
    process.communicate()
    shown = hcb("show", run, "--format", "json")
    assert shown.code == 0
    assert json.loads(shown.out)["status"] == "interrupted"
    assert json.loads(shown.out)["outcomes"]["ok"] > 0


def test_server_dying_in_the_middle_gives_typed_rows(tmp_path):
    with spawn_server(SimConfig(prefill_tokens_per_s=0, decode_ms=20)) as server:
        process, run = begin(tmp_path, server.url, "concurrency = 2\nduration = \"4s\"")
        os.kill(server.pid, signal.SIGKILL)
        done = finish(process)
    assert done.code == 0  # some requests were answered
    assert json.loads((run / "run.json").read_text())["status"] == "complete"
    outcomes = set(read_attempts(run).column("outcome").to_pylist())
    assert "ok" in outcomes
    assert outcomes & {"connect", "disconnect"}


def test_too_few_descriptors_is_said_before_the_load(tmp_path, sim_url):
    """D18: soft = hard = 80 and 200 sessions at a time."""
    args = ["run", workload(tmp_path, load="concurrency = 200\nrequests = 300"), "--url", sim_url, "--results",
            tmp_path / "r"]
    process = subprocess.Popen([sys.executable, "-m", "hicache_bench", *map(str, args)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)))
    done = finish(process)
    assert done.code == 2
    assert "ulimit -n" in done.err


@pytest.mark.slow
def test_full_disk_is_an_error_and_earlier_parts_stay(tmp_path, sim_url):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        process, run = begin(tmp_path, sim_url, results=disk)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        done = finish(process)
        assert done.code == 3
        assert "disk full" in done.err
        assert read_attempts(run).num_rows > 0
        shown = hcb("show", run)
        assert shown.code == 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_nothing_listening_is_one_line(tmp_path):
    done = hcb("run", workload(tmp_path), "--url", "http://127.0.0.1:1", "-q", "--results", tmp_path / "r")
    assert (done.code, done.out) == (3, "")
    assert done.err.count("\n") == 1
    assert "127.0.0.1:1" in done.err
    assert not (tmp_path / "r").exists()
