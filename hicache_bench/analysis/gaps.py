"""Inter-token latencies of a run as counts in fine logarithmic bins: a run has more tokens than memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.figures import POINTS
from hicache_bench.analysis.metrics import gaps
from hicache_bench.analysis.rows import Floats, Rows
from hicache_bench.analysis.slo import Bound, keeps
from hicache_bench.store.parts import iter_attempts
from hicache_bench.store.reader import instants, lists, words

BINS_PER_E = 400
"""Bins a factor of e: each is 0.25 % wide, and percentiles are interpolated inside."""
LOWEST_NS = 1_000.0
N_BINS = 9_600
"""1 µs to 7 hours; what is outside counts in the first or last bin."""
EXACT = 2_000_000
"""Up to this many tokens percentiles come from the samples themselves, as `show` has them."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """`counts` [blocks + 1, N_BINS] and `sums` [blocks + 1] in nanoseconds, by block of rows; the last block
    holds the rows of no block. `exact` are all samples, None above EXACT of them. `good` tells which rows kept
    the ITL bounds, None without any."""

    counts: NDArray[np.float64]
    sums: Floats
    exact: NDArray[np.float32] | None
    good: NDArray[np.bool_] | None

    def points(self) -> dict[str, float | None]:
        """p50, p90, p99 and mean over all blocks, in nanoseconds; None without a sample."""
        whole = self.counts.sum(axis=0)
        if not whole.any():
            return dict.fromkeys(POINTS)
        if self.exact is not None:
            found = np.percentile(self.exact, (50, 90, 99)).tolist()
        else:
            found = [float(quantile(whole, q)[0]) for q in (50, 90, 99)]
        return dict(zip(POINTS, [*found, float(self.sums.sum() / whole.sum())], strict=True))


def bin_of(values: NDArray[np.floating]) -> NDArray[np.int32]:
    """The bin of each value in nanoseconds."""
    number = np.log(np.maximum(values, LOWEST_NS) / LOWEST_NS) * BINS_PER_E
    return np.asarray(np.minimum(number, N_BINS - 1), dtype=np.int32)


def histogram(values: NDArray[np.floating], block: NDArray[np.int32], blocks: int) -> NDArray[np.float64]:
    """Counts [blocks, N_BINS] of values whose block is 0..blocks - 1."""
    flat = block.astype(np.int64) * N_BINS + bin_of(values)
    return np.bincount(flat, minlength=blocks * N_BINS).reshape(blocks, N_BINS).astype(np.float64)


def quantile(counts: NDArray[np.float64], q: float, first_bin: int = 0) -> Floats:
    """The q-th percentile (0..100) of each row of counts [n, bins], in nanoseconds, interpolated in the bin.

    Column 0 is bin `first_bin`.
    """
    counts = np.atleast_2d(counts)
    below = np.cumsum(counts, axis=1)
    target = below[:, -1] * q / 100
    at = np.minimum((below < target[:, None]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(counts.shape[0])
    inside = counts[rows, at]
    part = np.divide(target - (below[rows, at] - inside), inside, out=np.full(at.shape, 0.5), where=inside > 0)
    return np.asarray(LOWEST_NS * np.exp((first_bin + at + part) / BINS_PER_E))


def read_gaps(
    run: Path, bounds: Sequence[Bound] = (), block: NDArray[np.int32] | None = None, blocks: int = 0
) -> Gaps:
    """One pass over the chunk columns of the measured phase. `block` gives the block of each row, -1 for none."""
    counts, sums = np.zeros((blocks + 1, N_BINS)), np.zeros(blocks + 1)
    exact: list[NDArray[np.float32]] | None = []
    good: list[NDArray[np.bool_]] = []
    first = kept = 0
    for table in iter_attempts(run, ("outcome", "output_tokens", "chunk_ns", "chunk_tokens"), "measure", []):
        rows = _view(table)
        row, gap, tokens = gaps(rows)
        one = gap / np.maximum(tokens, 1)
        weight = np.maximum(tokens, 0)
        mine = np.zeros(rows.n, dtype=np.int32) if block is None else block[first : first + rows.n]
        mine = np.where(mine < 0, blocks, mine)[row] if blocks else np.zeros(row.size, dtype=np.int32)
        flat = mine.astype(np.int64) * N_BINS + bin_of(one)
        counts += np.bincount(flat, weights=weight, minlength=counts.size).reshape(counts.shape)
        sums += np.bincount(mine, weights=gap * (tokens > 0), minlength=sums.size)
        kept += int(weight.sum())
        if exact is not None:
            exact = [*exact, np.repeat(one, weight).astype(np.float32)] if kept <= EXACT else None
        if bounds:
            good.append(keeps(rows, tuple(bounds)))
        first += rows.n
    whole = np.concatenate(exact) if exact else None
    return Gaps(counts, sums, whole, np.concatenate(good) if good else None)


def _view(table: object) -> Rows:
    """Rows of which only outcomes and chunks are known."""
    outcome = words(table, "outcome")
    lengths, stamps = lists(table, "chunk_ns")
    token_lengths, tokens = lists(table, "chunk_tokens")
    if not np.array_equal(lengths, token_lengths):  # as in `rows_of`
        lengths, stamps, tokens = np.zeros_like(lengths), stamps[:0], tokens[:0]
    origin = int(stamps[0]) if stamps.size else 0
    counted, known = instants(table, "output_tokens")
    return Rows(
        n=outcome.size, origin_ns=origin,
        cols={"output_tokens": np.where(known, counted, np.nan)}, text={"outcome": outcome},
        ended={str(name): np.asarray(outcome == name, dtype=np.bool_) for name in set(outcome)},
        chunk_row=np.repeat(np.arange(outcome.size, dtype=np.int32), lengths),
        chunk_ns=(stamps - origin).astype(np.float64), chunk_tokens=tokens.astype(np.int32),
        window=None, loop=None, concurrency=None,
    )  # fmt: skip
