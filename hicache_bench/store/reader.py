"""Rows of a run directory back as tables, and table columns as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hicache_bench.errors import StoreError
from hicache_bench.store.schema import ATTEMPT_SCHEMA, METRIC_SCHEMA, upgrade

Table: TypeAlias = Any
"""A pyarrow.Table, named here so that the layers above need no pyarrow import."""

_SKIPPED_KEY = b"hicache_bench.skipped"

ATTEMPTS, PARTS = "requests", "part-*.parquet"
"""Where the rows of attempts lie in a run directory."""


def read_attempts(run_dir: Path, columns: Sequence[str] | None = None, phase: str | None = None) -> Table:
    """All parts of `requests/` in order, as a table of ATTEMPT_SCHEMA (`columns` of it, `phase` of it).

    Files that cannot be read are left out and named by `skipped_files`. No part at all gives no rows.
    Raises StoreError for an unknown column or a file of a newer schema.
    """
    wanted = checked_columns(columns, ATTEMPT_SCHEMA)
    needed = wanted if phase is None else list(dict.fromkeys([*wanted, "phase"]))
    table = _read(Path(run_dir) / ATTEMPTS, PARTS, needed, ATTEMPT_SCHEMA)
    return table if phase is None else of_phase(table, phase, wanted)


def read_metrics(run_dir: Path, columns: Sequence[str] | None = None) -> Table:
    """All samples of `server_metrics*.parquet`, as a table of METRIC_SCHEMA; errors as `read_attempts`."""
    return _read(Path(run_dir), "server_metrics*.parquet", checked_columns(columns, METRIC_SCHEMA), METRIC_SCHEMA)


def skipped_files(table: Table) -> list[str]:
    """Names of files that belong to this table but could not be read (a killed writer, a damaged copy)."""
    raw = (table.schema.metadata or {}).get(_SKIPPED_KEY, b"[]")
    return msgspec.json.decode(raw, type=list[str])


def of_phase(table: Table, phase: str, columns: Sequence[str]) -> Table:
    """`columns` of the rows of one phase; the table has its `phase` column."""
    return table.filter(pc.equal(table["phase"].cast(pa.string()), phase)).select(list(columns))


def unfinished(folder: Path, pattern: str) -> list[str]:
    """Names of parts that a killed writer left unfinished."""
    return [item.name for item in sorted(folder.glob(f".{pattern}.tmp"))]


def checked_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    """The columns asked for, all of them for None. Raises StoreError for one that the schema does not have."""
    unknown = sorted(set(columns or ()) - set(schema.names))
    if unknown:
        raise StoreError(f"no such columns: {unknown}; there are {sorted(schema.names)}")
    return list(schema.names if columns is None else columns)


def _read(folder: Path, pattern: str, columns: list[str], target: pa.Schema) -> pa.Table:
    tables: list[pa.Table] = []
    skipped = unfinished(folder, pattern)
    for path in sorted(folder.glob(pattern)):
        try:
            file = pq.ParquetFile(path)
            table = file.read([name for name in columns if name in file.schema_arrow.names])
        except (OSError, pa.ArrowException):
            skipped.append(path.name)
            continue
        tables.append(upgrade(table, target, columns, str(path)))
    fields = pa.schema([target.field(name) for name in columns], metadata=target.metadata)
    whole = pa.concat_tables(tables) if tables else fields.empty_table()
    notes = {**(target.metadata or {}), _SKIPPED_KEY: msgspec.json.encode(skipped)}
    return whole.replace_schema_metadata(notes)


# --------------------------------------------------------------------------- columns as arrays


def instants(table: Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(values, known): an integer column; values are 0 where not known."""
    known = pc.is_valid(table[name]).to_numpy()
    values = pc.fill_null(table[name], 0).to_numpy()
    return np.asarray(values, dtype=np.int64), np.asarray(known, dtype=np.bool_)


def numbers(table: Table, name: str) -> NDArray[np.float64]:
    """A numeric or boolean column as float64; NaN where not known."""
    return np.asarray(table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)


def words(table: Table, name: str) -> NDArray[np.object_]:
    """A text column as objects; None where not known."""
    return np.asarray(table[name].cast(pa.string()).to_numpy(zero_copy_only=False), dtype=np.object_)


def lists(table: Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(lengths, values): a list column, its values end to end; a null list has length 0."""
    column = table[name]
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return np.asarray(lengths, dtype=np.int64), np.asarray(pc.list_flatten(column).to_numpy(), dtype=np.int64)
