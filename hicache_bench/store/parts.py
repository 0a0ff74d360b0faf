"""Rows of a run one part at a time, so that a run larger than memory can be reduced on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hicache_bench.errors import StoreError
from hicache_bench.store.reader import Table
from hicache_bench.store.schema import ATTEMPT_SCHEMA, upgrade


def iter_attempts(run_dir: Path, columns: Sequence[str], phase: str, skipped: list[str]) -> Iterator[Table]:
    """Tables of `columns` (of ATTEMPT_SCHEMA), the rows of one phase, one for each row group of each part.

    The order is the same for every choice of columns, so that columns read in two passes line up. Names of
    files that cannot be read are added to `skipped`, once a pass. Raises StoreError for an unknown column or a
    file of a newer schema.
    """
    unknown = sorted(set(columns) - set(ATTEMPT_SCHEMA.names))
    if unknown:
        raise StoreError(f"no such columns: {unknown}; there are {sorted(ATTEMPT_SCHEMA.names)}")
    folder = Path(run_dir) / "requests"
    skipped += [item.name for item in sorted(folder.glob(".part-*.parquet.tmp"))]
    wanted = list(dict.fromkeys([*columns, "phase"]))
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            # A part counts whole or not at all, as in `read_attempts`: half of one would shift a second pass.
            groups = list(_groups(path, wanted))
        except (OSError, pa.ArrowException):
            skipped.append(path.name)
            continue
        for group in groups:
            table = upgrade(group, ATTEMPT_SCHEMA, wanted, str(path))
            yield table.filter(pc.equal(table["phase"].cast(pa.string()), phase)).select(list(columns))
    pa.default_memory_pool().release_unused()  # a run of millions of rows leaves hundreds of megabytes in it


def _groups(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, there)
