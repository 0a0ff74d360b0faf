"""The measured rows as numpy columns: the view every metric is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hicache_bench.store.reader import Table, instants, lists, numbers, words

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_INSTANTS = ("scheduled_ns", "sent_ns", "connect_start_ns", "connected_ns", "first_token_ns", "first_content_ns",
             "last_token_ns", "done_ns")  # fmt: skip
_NUMBERS = ("planned_prompt_tokens", "planned_output_tokens", "ideal_cached_tokens", "prompt_tokens",
            "output_tokens", "cached_tokens", "device_tokens", "host_tokens", "storage_tokens", "ignore_eos",
            "server_queue_s", "prefetch_wait_s")  # fmt: skip
_WORDS = ("stream", "outcome", "phase", "error", "token_source")

COLUMNS = (*_INSTANTS, *_NUMBERS, *_WORDS)
"""What `rows_of` reads of a table beside the chunks."""

LoopKind = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows. `cols` holds float64 columns with NaN for "not known"; instants are nanoseconds after
    `origin_ns`, so that differences are exact in float64. `window` is (start, end) of the measured phase on
    the same scale. `ended` tells, for each outcome that occurs, which rows ended so. `chunk_*` are flat over
    all rows, `chunk_row` is the row each chunk belongs to (32 bits: chunks are most of the memory).
    """

    n: int
    origin_ns: int
    cols: Mapping[str, Floats]
    text: Mapping[str, NDArray[np.object_]]
    ended: Mapping[str, Flags]
    chunk_row: NDArray[np.int32]
    chunk_ns: Floats
    chunk_tokens: NDArray[np.int32]
    window: tuple[float, float] | None
    loop: LoopKind | None
    concurrency: int | None

    def __getitem__(self, name: str) -> Floats:
        return self.cols[name]

    def outcome(self, *names: str) -> Flags:
        """Which rows ended with one of these outcomes."""
        found = np.zeros(self.n, dtype=np.bool_)
        for name in names:
            if name in self.ended:
                found |= self.ended[name]
        return found

    @property
    def ok(self) -> Flags:
        return self.outcome("ok")

    def where_ok(self, values: Floats) -> Floats:
        """`values` with NaN wherever the outcome is not ok."""
        return np.where(self.ok, values, np.nan)

    @property
    def due_ns(self) -> Floats:
        """The instant latency is charged from: the schedule, or the send where nothing was scheduled."""
        return np.where(np.isnan(self["scheduled_ns"]), self["sent_ns"], self["scheduled_ns"])


def rows_of(
    table: Table,
    *,
    phase: str | None = "measure",
    start_ns: int | None = None,
    end_ns: int | None = None,
    loop: LoopKind | None = None,
    concurrency: int | None = None,
) -> Rows:
    """View a table of attempts (all columns, or all but the chunks), of one phase only unless `phase` is None.
    Columns of words may be missing too, but `outcome`.

    Without `start_ns`/`end_ns` the window runs from the first scheduled or sent instant to the last done.
    `concurrency` is the number of workers of a closed loop.
    """
    if phase is not None:
        table = table.filter(words(table, "phase") == phase)
    columns = {name: instants(table, name) for name in _INSTANTS}
    smallest = [int(values[known].min()) for values, known in columns.values() if known.any()]
    origin = start_ns if start_ns is not None else min(smallest, default=0)
    cols: dict[str, Floats] = {
        name: np.where(known, (values - origin).astype(np.float64), np.nan)
        for name, (values, known) in columns.items()
    }
    cols |= {name: numbers(table, name) for name in _NUMBERS}
    none = np.zeros(table.num_rows, dtype=np.int64), np.zeros(0, dtype=np.int64)
    chunked = "chunk_ns" in table.column_names
    lengths, stamps = lists(table, "chunk_ns") if chunked else none
    token_lengths, tokens = lists(table, "chunk_tokens") if chunked else none
    if not np.array_equal(lengths, token_lengths):  # a damaged row must not shift the chunks of all others
        lengths, stamps, tokens = np.zeros_like(lengths), stamps[:0], tokens[:0]
    start = 0.0 if start_ns is not None else _edge(np.min, cols["scheduled_ns"], cols["sent_ns"])
    end = float(end_ns - origin) if end_ns is not None else _edge(np.max, cols["done_ns"], cols["last_token_ns"])
    text = {name: words(table, name) for name in _WORDS if name in table.column_names}
    return Rows(
        n=table.num_rows,
        origin_ns=origin,
        cols=cols,
        text=text,
        ended={str(name): np.asarray(text["outcome"] == name, dtype=np.bool_) for name in set(text["outcome"])},
        chunk_row=np.repeat(np.arange(table.num_rows, dtype=np.int32), lengths),
        chunk_ns=(stamps - origin).astype(np.float64),
        chunk_tokens=tokens.astype(np.int32),
        window=None if start is None or end is None else (start, end),
        loop=loop,
        concurrency=concurrency,
    )


def _edge(pick: Callable[[Floats], np.float64], *columns: Floats) -> float | None:
    known = np.concatenate([column[~np.isnan(column)] for column in columns])
    return float(pick(known)) if known.size else None
