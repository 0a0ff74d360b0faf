"""Small tables of plain values as one Parquet file: what a sweep gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hicache_bench.errors import StoreError
from hicache_bench.store.files import write_atomic


def write_frame(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One column a key of the first row, types by their values (None: null). Raises StoreError."""
    try:
        table = pa.Table.from_pylist([dict(row) for row in rows])
    except pa.ArrowException as error:
        raise StoreError(f"{path}: rows do not make a table: {error}") from error
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, bytes(sink.getvalue()))


def read_frame(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file. Raises StoreError when it is missing or damaged."""
    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    return rows
