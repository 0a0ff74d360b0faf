"""Rows to Parquet parts, early and atomically: a killed run keeps every part written before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.errors import StoreError
from hicache_bench.records import Attempt
from hicache_bench.store.files import write_atomic
from hicache_bench.store.schema import MetricRow, metrics_to_table, rows_to_table, write_options

_MAX_AGE_NS = 3 * NS_PER_S


class _Parts:
    """Numbered files `<stem>NNNNN.parquet` of one folder; never overwrites one that is there."""

    def __init__(self, folder: Path, stem: str, to_table: Callable[[Any], pa.Table], max_rows: int,
                 max_age_ns: int) -> None:  # fmt: skip
        self.folder, self.stem, self.to_table = folder, stem, to_table
        self.max_rows, self.max_age_ns = max_rows, max_age_ns
        self.buffer: list[Any] = []
        self.oldest_ns: int | None = None
        self.written: list[Path] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StoreError(f"cannot make the folder {folder}: {exc.strerror or exc}") from exc
        there = [int(p.stem[len(stem) :]) for p in folder.glob(f"{stem}*.parquet") if p.stem[len(stem) :].isdigit()]
        self.next = max(there, default=-1) + 1

    def add(self, rows: Iterable[Any]) -> None:
        self.buffer.extend(rows)
        if self.buffer and self.oldest_ns is None:
            self.oldest_ns = now_ns()
        self.flush_due()

    def flush_due(self) -> None:
        old = self.oldest_ns is not None and now_ns() - self.oldest_ns >= self.max_age_ns
        if old or len(self.buffer) >= self.max_rows:
            self.flush()

    def flush(self) -> None:
        while self.buffer:
            batch = self.buffer[: self.max_rows]
            path = self.folder / f"{self.stem}{self.next:05d}.parquet"
            write_atomic(path, _encode(self.to_table(batch)))
            del self.buffer[: len(batch)]
            self.next += 1
            self.written.append(path)
        self.oldest_ns = None


def _encode(table: pa.Table) -> bytes:
    # Encoded in memory first: the size is known before the disk is touched, and a failing disk never leaves
    # a half-written footer behind.
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **write_options(table.schema))
    return bytes(sink.getvalue())


class PartWriter:
    """Attempts to `<run>/requests/part-NNNNN.parquet`; `directory` is the run directory.

    A part is written when `max_rows` have gathered or the oldest row is `max_age_ns` old. Age is looked at
    in `add` and `flush_due` only, so an idle owner calls `flush_due` now and then. Writing blocks on fsync:
    keep it off the event loop, on one thread. Raises StoreError (rows not yet written stay buffered).
    """

    def __init__(self, directory: Path, *, max_rows: int = 20_000, max_age_ns: int = _MAX_AGE_NS) -> None:
        self._parts = _Parts(Path(directory) / "requests", "part-", rows_to_table, max_rows, max_age_ns)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The parts written so far."""
        return tuple(self._parts.written)

    @property
    def pending(self) -> int:
        """Rows not on disk yet."""
        return len(self._parts.buffer)

    def add(self, rows: Iterable[Attempt]) -> None:
        """Take finished attempts."""
        self._parts.add(rows)

    def flush_due(self) -> None:
        """Write if a part is due by age or size."""
        self._parts.flush_due()

    def flush(self) -> None:
        """Write what is buffered; nothing when empty."""
        self._parts.flush()

    def close(self) -> None:
        """Write the rest."""
        self._parts.flush()


class MetricsWriter:
    """Metric samples to `<run>/server_metrics-NNNNN.parquet`, in parts under the same rules."""

    def __init__(self, directory: Path, *, max_rows: int = 200_000, max_age_ns: int = 10 * NS_PER_S) -> None:
        self._parts = _Parts(Path(directory), "server_metrics-", metrics_to_table, max_rows, max_age_ns)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written so far."""
        return tuple(self._parts.written)

    def add(self, rows: Iterable[MetricRow]) -> None:
        """Take the samples of one scrape."""
        self._parts.add(rows)

    def flush_due(self) -> None:
        """Write if a part is due by age or size."""
        self._parts.flush_due()

    def flush(self) -> None:
        """Write what is buffered; nothing when empty."""
        self._parts.flush()

    def close(self) -> None:
        """Write the rest."""
        self._parts.flush()
