"""Rows of a run one part at a time, so that a run larger than memory can be reduced on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hicache_bench.store.reader import ATTEMPTS, PARTS, Table, checked_columns, of_phase, unfinished
from hicache_bench.store.schema import ATTEMPT_SCHEMA, upgrade


def iter_attempts(run_dir: Path, columns: Sequence[str], phase: str, skipped: list[str]) -> Iterator[Table]:
    """Tables of `columns` (of ATTEMPT_SCHEMA), the rows of one phase, one for each row group of each part.

    The order is the same for every choice of columns, so that columns read in two passes line up. Names of
    files that cannot be read are added to `skipped`, once a pass. Raises StoreError for an unknown column or a
    file of a newer schema.
    """
    wanted = list(dict.fromkeys([*checked_columns(columns, ATTEMPT_SCHEMA), "phase"]))
    folder = Path(run_dir) / ATTEMPTS
    skipped += unfinished(folder, PARTS)
    for path in sorted(folder.glob(PARTS)):
        try:
            # A part counts whole or not at all, as in `read_attempts`: half of one would shift a second pass.
            groups = list(_groups(path, wanted))
        except (OSError, pa.ArrowException):
            skipped.append(path.name)
            continue
        for group in groups:
            yield of_phase(upgrade(group, ATTEMPT_SCHEMA, wanted, str(path)), phase, columns)
    pa.default_memory_pool().release_unused()  # a run of millions of rows leaves hundreds of megabytes in it


def _groups(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, there)
