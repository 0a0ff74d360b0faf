"""Cost parameters from a measured run, and how well the simulator then predicts that run.

The model of one answer: TTFT = start + recompute * computed + host * from host + storage * from storage, where TTFT is
charged from the send and the queue the server names is taken off. Coefficients are never negative and are found by
least absolute deviations, since what queues and hiccups add is one-sided. Intervals are bootstrapped over requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.rows import Rows, rows_of
from hicache_bench.cachesim.costs import GB, Costs, IoPath, replace_costs
from hicache_bench.errors import Inconclusive
from hicache_bench.store.reader import read_attempts

Floats = NDArray[np.float64]

TERMS = ("start", "recompute", "host", "storage")
"""`start` in milliseconds, the others in milliseconds per 1000 tokens."""
FEWEST_ROWS = 20
FEWEST_CACHED = 5
"""Requests a tier must have served before anything is said about it."""
MOST_ROWS = 4000
RESAMPLES = 200
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Term:
    """One coefficient with its 95 % bootstrap interval; `value` None: the run does not tell, `n` says from how many
    requests."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Everything fitted. `decode_step_ms` and `decode_ms_per_request` come from the usual time between tokens
    against the requests under way; None: no request had two tokens. `rows` were used; `queue_known`: the server named
    its queue time, so that it could be taken off."""

    terms: tuple[Term, ...]
    decode_step_ms: float | None
    decode_ms_per_request: float | None
    rows: int
    queue_known: bool

    def __getitem__(self, name: str) -> float | None:
        return next(term.value for term in self.terms if term.name == name)


def fit_run(run_dir: Path, meta: Mapping[str, Any], seed: int = 0) -> Fit:
    """Fit the ok rows of the measured phase. Raises Inconclusive when too few of them say their tiers."""
    rows = rows_of(read_attempts(run_dir))
    design, ttft_ms, queue_known = _regressors(rows)
    if len(ttft_ms) < FEWEST_ROWS:
        raise Inconclusive(f"{run_dir.name}: {len(ttft_ms)} answers say their time to the first token and their tiers; "
                           f"at least {FEWEST_ROWS} are needed (ask for cached token details)")
    draw = np.random.default_rng(seed)
    if len(ttft_ms) > MOST_ROWS:
        kept = np.sort(draw.choice(len(ttft_ms), MOST_ROWS, replace=False))
        design, ttft_ms = design[kept], ttft_ms[kept]
    counts = (design > 0).sum(axis=0)
    known = [column for column in range(len(TERMS)) if counts[column] >= FEWEST_CACHED and
             (column == 0 or np.ptp(design[:, column]) > 0)]
    best = least_deviations(design[:, known], ttft_ms)
    picks = draw.integers(0, len(ttft_ms), (RESAMPLES, len(ttft_ms)))
    again = np.array([least_deviations(design[pick][:, known], ttft_ms[pick]) for pick in picks])
    low, high = np.percentile(again, (2.5, 97.5), axis=0)
    place = {column: number for number, column in enumerate(known)}
    terms = tuple(
        Term(name, float(best[place[c]]), float(low[place[c]]), float(high[place[c]]), int(counts[c]))
        if c in place else Term(name, None, None, None, int(counts[c])) for c, name in enumerate(TERMS))
    step, request = _decode(rows)
    return Fit(terms, step, request, len(ttft_ms), queue_known)


def least_deviations(design: Floats, values: Floats) -> Floats:
    """Coefficients, none negative, with the smallest sum of absolute deviations (reweighted least squares)."""
    weights = np.ones(len(values))
    found = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        found = _non_negative(design * weights[:, None], values * weights)
        off = np.abs(values - design @ found)
        floor = max(1e-3 * float(np.median(np.abs(values))), 1e-9)
        weights = 1.0 / np.sqrt(np.maximum(off, floor))
    return found


def _non_negative(design: Floats, values: Floats) -> Floats:
    """Least squares over the subset of columns that is best with no negative coefficient (at most 2^4 subsets)."""
    n = design.shape[1]
    gram, target = design.T @ design, design.T @ values
    best, least = np.zeros(n), 0.0
    for size in range(n, 0, -1):
        for subset in itertools.combinations(range(n), size):
            part = list(subset)
            try:
                solved = np.linalg.solve(gram[np.ix_(part, part)], target[part])
            except np.linalg.LinAlgError:
                continue
            if (solved < 0).any():
                continue
            gain = -float(target[part] @ solved)  # what is left of the squares, up to a constant
            if gain < least:
                best, least = np.zeros(n), gain
                best[part] = solved
        if size == n and least < 0:
            break  # nothing beats all columns
    return best


def _regressors(rows: Rows) -> tuple[Floats, Floats, bool]:
    """(n x 4 regressors: 1, thousands of tokens computed, from host, from storage; TTFT in ms; queue known)."""
    storage = np.nan_to_num(rows["storage_tokens"])
    computed = rows["prompt_tokens"] - rows["cached_tokens"]
    ttft_ns = rows["first_token_ns"] - rows["sent_ns"]
    queue_ns = rows["server_queue_s"] * 1e9
    said = rows.ok & ~np.isnan(computed) & ~np.isnan(rows["host_tokens"]) & ~np.isnan(ttft_ns)
    queue_known = bool(said.any() and not np.isnan(queue_ns[said]).any())
    if queue_known:
        # A wait for storage is part of the queue time, and is what the storage term is about.
        waited_ns = np.nan_to_num(rows["prefetch_wait_s"]) * 1e9
        ttft_ns = ttft_ns - np.maximum(queue_ns - waited_ns, 0)
    columns = (np.ones(rows.n), computed / 1000, rows["host_tokens"] / 1000, storage / 1000)
    return np.stack([column[said] for column in columns], axis=1), ttft_ns[said] / 1e6, queue_known


def _decode(rows: Rows) -> tuple[float | None, float | None]:
    """(ms a step, ms more for every request under way) from the usual gap between each request's tokens."""
    gap = _usual_gap_ms(rows)
    good = rows.ok & ~np.isnan(gap)
    if not good.any():
        return None, None
    starts, ends = np.sort(rows["first_token_ns"][good]), np.sort(rows["last_token_ns"][good])
    middle = (rows["first_token_ns"][good] + rows["last_token_ns"][good]) / 2
    running = (np.searchsorted(starts, middle, "right") - np.searchsorted(ends, middle, "left")).astype(np.float64)
    if np.ptp(running) == 0:
        return float(np.median(gap[good])), None
    step, request = least_deviations(np.stack([np.ones(len(running)), running], axis=1), gap[good])
    return float(step), float(request)


def _usual_gap_ms(rows: Rows) -> Floats:
    """Median milliseconds a token of each row; NaN with fewer than two chunks. The median leaves out the gaps in
    which another request's prefill came between."""
    found = np.full(rows.n, np.nan)
    if len(rows.chunk_row) < 2:
        return found
    inner = rows.chunk_row[1:] == rows.chunk_row[:-1]
    row = rows.chunk_row[1:][inner]
    gaps = (np.diff(rows.chunk_ns) / np.maximum(rows.chunk_tokens[1:], 1))[inner] / 1e6
    order = np.lexsort((gaps, row))
    row, gaps = row[order], gaps[order]
    owners, first, count = np.unique(row, return_index=True, return_counts=True)
    found[owners] = gaps[first + count // 2]
    return found


def fitted_costs(fit: Fit, base: Costs, name: str, source: str) -> Costs:
    """`base` with what was fitted put over it.

    The fitted terms add up, so loading is not overlapped with computing any more (`layers` 1), and what a page or a
    call costs is part of the rates. Bandwidths follow from `kv_bytes_per_token` of `base`: only together with it do
    they mean something. What comes from storage passes the host, so the storage rate is what it takes beyond that.
    """
    changes: dict[str, Any] = {"name": name, "source": source, "layers": 1, "attention_ms_per_1k_x_1k": 0.0}
    if fit["start"] is not None:
        changes["prefill_batch_ms"] = fit["start"]
    if fit["recompute"]:
        changes["prefill_tokens_per_s"] = 1e6 / fit["recompute"]
    if fit["host"] is not None:
        speed = _gb_per_s(fit["host"], base)
        changes["io"] = {key: IoPath(h2d_gb_per_s=speed, d2h_gb_per_s=path.d2h_gb_per_s, page_us=0, op_us=0)
                         for key, path in base.io.items()}
        changes["layout_page_us"] = {}
    if fit["storage"] is not None:
        changes |= {"storage_read_gb_per_s": _gb_per_s(max(fit["storage"] - (fit["host"] or 0.0), 0.0), base),
                    "storage_op_us": 0.0, "storage_page_us": 0.0}
    if fit.decode_step_ms is not None:
        changes |= {"decode_step_ms": fit.decode_step_ms, "decode_ms_per_request": fit.decode_ms_per_request or 0.0,
                    "decode_ms_per_1k_context": 0.0}
    return replace_costs(base, **changes)


def _gb_per_s(ms_per_1k: float, costs: Costs) -> float:
    """The bandwidth of so many milliseconds per 1000 tokens; 0 (infinitely fast) for no time at all."""
    return 1000 * costs.kv_bytes_per_token / (ms_per_1k / 1000) / GB if ms_per_1k > 0 else 0.0


def fit_table(fit: Fit) -> list[dict[str, Any]]:
    """The terms as plain rows."""
    return [dict(msgspec.to_builtins(term)) for term in fit.terms]
