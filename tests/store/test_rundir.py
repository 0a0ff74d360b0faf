import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hicache_bench.errors import StoreError, UsageError
from hicache_bench.store.rundir import RunDir, find_run, list_runs

DEAD_PID = 2**22 + 1  # above the kernel's largest


def make(root, name="w", **meta):
    run = RunDir.create(root, name)
    run.write_json("run.json", {"status": "complete", **meta})
    return run


def test_create_names(tmp_path):
    run = RunDir.create(tmp_path / "new" / "results", "prefix_reuse")
    assert re.fullmatch(r"\d{8}T\d{6}Z-prefix_reuse-[0-9a-f]{4}", run.path.name)
    assert RunDir.create(tmp_path, "../we ird/..").path.parent == tmp_path


def test_create_never_overwrites(tmp_path, monkeypatch):
    monkeypatch.setattr("hicache_bench.store.rundir.secrets.token_hex", lambda n: "6f3a")
    monkeypatch.setattr("hicache_bench.store.rundir.datetime", _Noon)
    first = RunDir.create(tmp_path, "w")
    (first.path / "keep").write_text("x")
    with pytest.raises(StoreError, match="no free run directory"):
        RunDir.create(tmp_path, "w")
    assert (first.path / "keep").read_text() == "x"


class _Noon:
    @staticmethod
    def now(tz):
        from datetime import datetime

        return datetime(2026, 11, 29, 12, tzinfo=tz)


def test_create_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the run directory"):
        RunDir.create(tmp_path / "file", "w")


def test_json_round_trip_without_secrets_and_nan(tmp_path):
    run = make(tmp_path, argv=["run", "--api-key", "k1"], path=Path("a/b"), lag=math.nan, sizes=np.arange(2),
               one=np.int64(7))  # fmt: skip
    meta = run.meta
    assert meta["schema_version"] == 1
    assert meta["argv"] == ["run", "--api-key", "***"]
    assert (meta["path"], meta["lag"], meta["sizes"], meta["one"]) == ("a/b", None, [0, 1], 7)
    assert "k1" not in (run.path / "run.json").read_text()
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    run = make(tmp_path, n=1)

    def broken(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hicache_bench.store.files.os.fsync", broken)
    with pytest.raises(StoreError, match=r"run\.json: Input/output error"):
        run.write_json("run.json", {"n": 2})
    assert run.meta["n"] == 1
    assert len(list(run.path.iterdir())) == 1


def test_meta_refuses_what_it_cannot_read(tmp_path):
    run = RunDir.create(tmp_path, "w")
    with pytest.raises(StoreError, match=r"cannot read .*run\.json"):
        _ = run.meta
    for text, says in (("{", "damaged"), ("[]", "no run description"), ('{"schema_version": 2}', "upgrade")):
        (run.path / "run.json").write_text(text)
        with pytest.raises(StoreError, match=says):
            _ = run.meta


def test_events_survive_a_torn_line(tmp_path):
    run = RunDir.create(tmp_path, "w")
    assert run.read_events() == []
    run.append_event("flush", took_ns=5, api_key="k1")
    with open(run.path / "events.jsonl", "ab") as file:
        file.write(b'{"kind": "torn", "x')
    assert [event["kind"] for event in run.read_events()] == ["flush"]
    run.append_event("settle")
    events = run.read_events()
    assert [event["kind"] for event in events] == ["flush", "settle"]
    assert events[0]["took_ns"] == 5
    assert events[0]["api_key"] == "***"
    assert {"t_ns", "wall_ns"} <= set(events[1])


def test_status_of_a_dead_process(tmp_path):
    assert make(tmp_path, status="running", pid=DEAD_PID).status == "interrupted"
    assert make(tmp_path, status="running").status == "interrupted"
    assert make(tmp_path, status="failed", pid=DEAD_PID).status == "failed"
    assert make(tmp_path, status="running", pid=os.getpid(), started_wall_ns=time.time_ns()).status == "running"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_reused_process_number_is_not_the_run(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        an_hour_ago = time.time_ns() - 3600 * 10**9
        assert make(tmp_path, status="running", pid=child.pid, started_wall_ns=an_hour_ago).status == "interrupted"
        child.stdin.close()


def test_find(tmp_path):
    assert list_runs(tmp_path / "missing") == []
    for name in ("20260101T000000Z-a-0001", "20260101T000001Z-b-0002", "20260102T000000Z-a-0003", "no-run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"schema_version": 1, "status": "complete"}))
    (tmp_path / "20260103T000000Z-unstarted-0004").mkdir()
    assert [run.path.name[-4:] for run in list_runs(tmp_path)] == ["0001", "0002", "0003"]
    assert find_run(tmp_path, "latest").path.name.endswith("0003")
    assert find_run(tmp_path, "20260102").path.name.endswith("0003")
    assert find_run(tmp_path, "0002").path.name.endswith("0002")
    assert find_run(tmp_path, str(tmp_path / "no-run")).path.name == "no-run"
    assert RunDir.open(tmp_path / "no-run").path.name == "no-run"
    assert RunDir.open("latest", tmp_path).path.name.endswith("0003")
    with pytest.raises(UsageError, match="fits 2 runs"):
        find_run(tmp_path, "20260101T00000")
    for text in ("2027", "", "/"):
        with pytest.raises(UsageError, match="3 runs there"):
            find_run(tmp_path, text)
    with pytest.raises(UsageError, match="no run 'latest'"):
        find_run(tmp_path / "missing", "latest")


def test_latest_of_one_second_is_the_one_made_last(tmp_path):
    for i, name in enumerate(("20260101T000000Z-a-ffff", "20260101T000000Z-a-0000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text('{"schema_version": 1}')
        (tmp_path / name / "workload.toml").write_text("")
        os.utime(tmp_path / name / "workload.toml", ns=(i * 10**9, i * 10**9))
    assert find_run(tmp_path, "latest").path.name.endswith("0000")
