import pytest

from hicache_bench.errors import StoreError
from hicache_bench.store.parts import iter_attempts
from hicache_bench.store.writer import PartWriter
from tests.store.build import attempt


def test_rows_in_order_one_phase_and_torn_parts_named(tmp_path):
    writer = PartWriter(tmp_path, max_rows=2)
    writer.add([attempt(session=i, phase="measure" if i % 3 else "prime") for i in range(6)])
    writer.close()
    (tmp_path / "requests" / "part-00007.parquet").write_bytes(b"no")
    (tmp_path / "requests" / ".part-00008.parquet.tmp").write_bytes(b"")
    skipped = []
    tables = list(iter_attempts(tmp_path, ["session", "outcome"], "measure", skipped))
    assert [row for table in tables for row in table["session"].to_pylist()] == [1, 2, 4, 5]
    assert {tuple(table.column_names) for table in tables} == {("session", "outcome")}
    assert skipped == [".part-00008.parquet.tmp", "part-00007.parquet"]
    with pytest.raises(StoreError, match="no such columns"):
        list(iter_attempts(tmp_path, ["nope"], "measure", []))
    assert list(iter_attempts(tmp_path / "none", ["session"], "measure", [])) == []
