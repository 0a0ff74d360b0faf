"""The recorder process: rows survive the client, a dying recorder is an error and never silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from hicache_bench.errors import StoreError
from hicache_bench.recording import Recorder, complete
from hicache_bench.records import Attempt, Exchange, WireRequest
from hicache_bench.store.reader import read_attempts
from tests.scripted import DONE, event, native

REQUEST = WireRequest("/generate", b"", "generate", True)


def item(i: int = 0, tokens: int = 3):
    reads = [(1000 + 10 * n, event(native("x" * n, n, finish="length" if n == tokens else None)))
             for n in range(1, tokens + 1)]
    row = Attempt(i, 0, 0, "s", "unique", "", "measure", "generate", True, scheduled_ns=900)
    exchange = Exchange(sent_ns=950, headers_ns=1000, status=200, content_type="text/event-stream",
                        reads=[*reads, (2000, DONE)], done_ns=2001)
    return row, REQUEST, exchange


def test_complete_fills_the_row_from_the_raw_log():
    row = complete(*item())
    assert (row.outcome, row.first_token_ns, row.last_token_ns, row.output_tokens) == ("ok", 1010, 1030, 3)
    assert (row.sent_ns, row.done_ns, row.scheduled_ns, row.status) == (950, 2001, 900, 200)
    assert row.chunk_ns == [1010, 1020, 1030]
    assert row.token_source == "server"
    assert row.body_bytes > 100


def test_unsent_row_has_no_body_size():
    row, request, _ = item()
    row = complete(row, request, Exchange(failure=("shed", "limit")))
    assert (row.outcome, row.body_bytes, row.sent_ns, row.error) == ("shed", None, None, "limit")


def test_extra_fields_are_kept_as_json():
    row, request, exchange = item(tokens=1)
    answer = native("x", 1, finish="length")
    answer["meta_info"]["new_field"] = 7
    exchange.reads[0] = (1010, event(answer))
    assert msgspec.json.decode(complete(row, request, exchange).extra) == {"new_field": 7}


def test_rows_reach_the_disk_and_totals_come_back(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.wait_ready()
    for i in range(1000):
        recorder.put(*item(i))
    progress = recorder.close()
    table = read_attempts(tmp_path)
    assert progress.rows == table.num_rows == 1000
    assert progress.outcomes == {"ok": 1000}
    assert sorted(table.column("session").to_pylist()) == list(range(1000))
    assert recorder.max_backlog_bytes > 0


CLIENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from hicache_bench.recording import Recorder
from tests.test_recording import item
recorder = Recorder(Path({folder!r}))
recorder.wait_ready()
for i in range(200):
    recorder.put(*item(i))
time.sleep(0.5)
print("sent", flush=True)
time.sleep(60)
"""


def test_sigkill_of_the_client_loses_no_finished_request(tmp_path):
    root = os.getcwd()
    client = subprocess.Popen([sys.executable, "-c", CLIENT.format(root=root, folder=str(tmp_path))],
                              stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "sent\n"
    client.send_signal(signal.SIGKILL)
    client.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if read_attempts(tmp_path).num_rows == 200:
                break
        except StoreError:
            pass
        time.sleep(0.1)
    assert read_attempts(tmp_path).num_rows == 200


def test_rows_are_written_while_the_run_goes_on(tmp_path):
    """A killed machine keeps what is older than a few seconds."""
    recorder = Recorder(tmp_path)
    recorder.wait_ready()
    recorder.put(*item())
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("requests/part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert read_attempts(tmp_path).num_rows == 1
    recorder.close()


def test_killed_recorder_is_an_error(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.wait_ready()
    recorder._process.kill()
    recorder._process.wait()
    recorder.put(*item())
    with pytest.raises(StoreError):
        recorder.close()


def test_unwritable_folder_is_an_error_that_names_it(tmp_path):
    target = tmp_path / "file"
    target.write_text("in the way")
    recorder = Recorder(target)
    recorder.put(*item())
    with pytest.raises(StoreError, match="file"):
        recorder.close()
