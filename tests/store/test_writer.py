import errno
import os
import signal
import subprocess
import sys
import textwrap

import pyarrow.parquet as pq
import pytest

from hicache_bench.errors import StoreError
from hicache_bench.store import files
from hicache_bench.store.reader import read_attempts, read_metrics, skipped_files
from hicache_bench.store.schema import MetricRow
from hicache_bench.store.writer import MetricsWriter, PartWriter
from tests.store.build import attempt


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_by_size(tmp_path):
    writer = PartWriter(tmp_path, max_rows=3, max_age_ns=10**15)
    writer.add([attempt(i) for i in range(2)])
    assert writer.paths == ()
    writer.add([attempt(i) for i in range(2, 8)])
    assert names(tmp_path / "requests") == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert writer.pending == 0
    assert read_attempts(tmp_path)["session"].to_pylist() == list(range(8))


def test_parts_by_age(tmp_path, monkeypatch):
    now = [0]
    monkeypatch.setattr("hicache_bench.store.writer.now_ns", lambda: now[0])
    writer = PartWriter(tmp_path, max_age_ns=10)
    writer.add([attempt(0)])
    now[0] = 9
    writer.flush_due()
    assert writer.pending == 1
    now[0] = 10
    writer.flush_due()
    assert writer.pending == 0
    now[0] = 15  # age starts anew with the next row
    writer.add([attempt(1)])
    assert writer.pending == 1


def test_close_writes_the_rest_and_nothing_makes_no_file(tmp_path):
    writer = PartWriter(tmp_path)
    writer.close()
    assert names(tmp_path / "requests") == []
    writer.add([attempt(0)])
    writer.close()
    assert names(tmp_path / "requests") == ["part-00000.parquet"]


def test_a_second_writer_never_overwrites(tmp_path):
    for i in range(2):
        writer = PartWriter(tmp_path)
        writer.add([attempt(i)])
        writer.close()
    assert read_attempts(tmp_path)["session"].to_pylist() == [0, 1]


def test_d25_schema_does_not_drift(tmp_path):
    writer = PartWriter(tmp_path, max_rows=2)
    writer.add([attempt(i, outcome="http", status=404) for i in range(2)])  # tiers and instants all null
    writer.add([attempt(i, sent_ns=5, device_tokens=7, server_e2e_s=0.5, chunk_ns=[6], chunk_tokens=[1])
                for i in range(2)])  # fmt: skip
    writer.add([attempt(0, extra='{"new_key":1}')])
    writer.close()
    table = read_attempts(tmp_path)
    assert table["device_tokens"].to_pylist() == [None, None, 7, 7, None]
    assert table["extra"].to_pylist()[-1] == '{"new_key":1}'
    schemas = [pq.read_schema(path) for path in writer.paths]
    assert len(schemas) == 3
    assert all(schema.equals(schemas[0]) for schema in schemas)
    assert str(schemas[0].field("device_tokens").type) == "int64"
    assert str(schemas[0].field("server_e2e_s").type) == "double"


def test_row_size(tmp_path):
    """64 chunks with gaps of 20 ms ± 25 % stay near the entropy of their stamps (about 3 bytes each)."""
    import random

    rng, rows = random.Random(0), []
    for i in range(2000):
        sent = 10**15 + i * 30_000_000 + rng.randrange(10**6)
        stamps = [sent + rng.randrange(50_000_000, 200_000_000)]
        while len(stamps) < 64:
            stamps.append(stamps[-1] + round(20_000_000 * rng.lognormvariate(0, 0.25)))
        rows.append(attempt(i, scheduled_ns=sent - 100, sent_ns=sent, headers_ns=stamps[0] - 9000, done_ns=stamps[-1],
                            first_token_ns=stamps[0], first_content_ns=stamps[0], last_token_ns=stamps[-1],
                            chunk_ns=stamps, chunk_tokens=[1] * 64, request_id=f"r-{i:08d}",
                            output_digest=f"{rng.getrandbits(64):016x}"))  # fmt: skip
    writer = PartWriter(tmp_path)
    writer.add(rows)
    writer.close()
    assert writer.paths[0].stat().st_size / 2000 < 350


def test_metrics(tmp_path):
    writer = MetricsWriter(tmp_path, max_rows=2)
    writer.add([MetricRow(i, i, "engine", "m", {"a": "b"}, float(i), "counter") for i in range(5)])
    writer.close()
    assert names(tmp_path) == [f"server_metrics-0000{i}.parquet" for i in range(3)]
    assert read_metrics(tmp_path)["value"].to_pylist() == [0, 1, 2, 3, 4]
    assert read_metrics(tmp_path, ["name"]).column_names == ["name"]


def test_full_disk(tmp_path, monkeypatch):
    writer = PartWriter(tmp_path, max_rows=2)
    writer.add([attempt(0), attempt(1)])

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match=r"disk full: .*part-00001\.parquet needs .*KiB, .* free"):
        writer.add([attempt(2), attempt(3)])
    assert names(tmp_path / "requests") == ["part-00000.parquet"]
    assert writer.pending == 2
    monkeypatch.undo()
    writer.close()  # space came back: nothing was lost
    assert read_attempts(tmp_path)["session"].to_pylist() == [0, 1, 2, 3]


def test_full_disk_for_real(tmp_path):
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], capture_output=True,
                             check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here; test_full_disk covers the error path")
    try:
        writer = PartWriter(disk, max_rows=100)
        noise = [os.urandom(16).hex() for _ in range(5000)]
        with pytest.raises(StoreError, match="disk full"):
            writer.add([attempt(i, output_digest=digest) for i, digest in enumerate(noise)])
        kept = len(writer.paths)
        assert kept > 0
        assert names(disk / "requests") == [path.name for path in writer.paths]
        assert read_attempts(disk)["session"].to_pylist() == list(range(100 * kept))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_unwritable_folder_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the folder"):
        PartWriter(tmp_path / "file")


def test_sigkill_between_parts_leaves_earlier_ones(tmp_path):
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from hicache_bench.store.writer import PartWriter
        from tests.store.build import attempt
        writer = PartWriter(Path(sys.argv[1]), max_rows=10)
        writer.add([attempt(i) for i in range(20)])
        writer.add([attempt(99)])
        (Path(sys.argv[1]) / "requests" / ".part-00002.parquet.tmp").write_bytes(b"PAR1")
        print("written", flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, cwd=".") as child:
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
    table = read_attempts(tmp_path)
    assert table["session"].to_pylist() == list(range(20))
    assert skipped_files(table) == [".part-00002.parquet.tmp"]
