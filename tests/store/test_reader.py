import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hicache_bench.errors import StoreError
from hicache_bench.store.reader import instants, lists, numbers, read_attempts, read_metrics, skipped_files, words
from hicache_bench.store.schema import ATTEMPT_SCHEMA, SCHEMA_VERSION, VERSION_KEY, rows_to_table
from hicache_bench.store.writer import PartWriter
from tests.store.build import attempt


def write(folder, *rows):
    writer = PartWriter(folder, max_rows=2)
    writer.add(rows)
    writer.close()


def test_no_parts_are_no_rows(tmp_path):
    assert read_attempts(tmp_path).num_rows == 0
    assert read_attempts(tmp_path).schema.names == ATTEMPT_SCHEMA.names
    assert read_metrics(tmp_path).num_rows == 0


def test_columns_and_phase(tmp_path):
    write(tmp_path, attempt(0, phase="prime"), attempt(1), attempt(2, phase="warmup"), attempt(3))
    table = read_attempts(tmp_path, ["session"], phase="measure")
    assert table.column_names == ["session"]
    assert table["session"].to_pylist() == [1, 3]
    assert read_attempts(tmp_path, ["phase", "session"], phase="prime").to_pylist() == [
        {"phase": "prime", "session": 0}]  # fmt: skip


def test_unknown_column(tmp_path):
    with pytest.raises(StoreError, match="speed"):
        read_attempts(tmp_path, ["speed"])


def test_unreadable_files_are_skipped_and_named(tmp_path):
    write(tmp_path, attempt(0))
    whole = (tmp_path / "requests" / "part-00000.parquet").read_bytes()
    (tmp_path / "requests" / "part-00001.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "requests" / "part-00002.parquet").write_bytes(b"")
    (tmp_path / "requests" / "part-00003.parquet").write_bytes(whole)
    table = read_attempts(tmp_path, phase="measure")
    assert table.num_rows == 2
    assert skipped_files(table) == ["part-00001.parquet", "part-00002.parquet"]


def test_versions_mix(tmp_path):
    write(tmp_path, attempt(0, retractions=1))
    folder = tmp_path / "requests"
    old = rows_to_table([attempt(1)]).drop_columns(["retractions"]).replace_schema_metadata({VERSION_KEY: b"0"})
    pq.write_table(old, folder / "part-00001.parquet")
    assert read_attempts(tmp_path)["retractions"].to_pylist() == [1, None]
    newer = old.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION + 1).encode()})
    pq.write_table(newer, folder / "part-00002.parquet")
    with pytest.raises(StoreError, match=r"part-00002.*upgrade"):
        read_attempts(tmp_path)


def test_columns_as_arrays(tmp_path):
    write(
        tmp_path,
        attempt(0, sent_ns=2**60 + 1, chunk_ns=[1, 2], chunk_tokens=[3, 4], ignore_eos=True, error="x"),
        attempt(1), attempt(2, chunk_ns=[5], chunk_tokens=[6], ignore_eos=False),
    )  # fmt: skip
    table = read_attempts(tmp_path)
    values, known = instants(table, "sent_ns")
    assert (values[0], known.tolist()) == (2**60 + 1, [True, False, False])
    assert numbers(table, "ignore_eos")[0] == 1
    assert math.isnan(numbers(table, "ignore_eos")[1])
    assert words(table, "error").tolist() == ["x", None, None]
    lengths, flat = lists(table, "chunk_tokens")
    assert (lengths.tolist(), flat.tolist()) == ([2, 0, 1], [3, 4, 6])
    part = table.slice(1)
    assert [x.tolist() for x in lists(part, "chunk_ns")] == [[0, 1], [5]]


def test_null_lists_have_no_length():
    table = pa.table({"c": pa.array([[1], None, [2, 3]], pa.list_(pa.int64()))})
    lengths, flat = lists(table, "c")
    assert np.array_equal(lengths, [1, 0, 2])
    assert np.array_equal(flat, [1, 2, 3])
