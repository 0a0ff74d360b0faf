"""What a token costs by where it comes from: a regression of TTFT on recomputed and loaded tokens. An estimate.

TTFT (from the send) = wait + recompute · recomputed tokens + for host and storage each: a fixed cost when
anything is loaded + load · loaded tokens. Least squares over the ok requests of the measured phase whose tiers are
known; intervals from drawing blocks of consecutive sessions with replacement. The client sees token counts
and TTFT only, so queueing is in the wait on average, and a load that overlaps a recomputation shows as cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.measured import Detail
from hicache_bench.analysis.rows import Floats
from hicache_bench.analysis.within import alone
from hicache_bench.clock import NS_PER_MS

RESAMPLES = 500
FEWEST_REQUESTS = 50
_TERMS = ("wait", "recomputed", "host_fixed", "host", "storage_fixed", "storage")
_LEAST_SPREAD = 1e-4
"""A term that the other terms explain to this part of its square sum cannot be told from them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Cost:
    """`ms_per_1k` tokens of one source (recomputed, host, storage) and `fixed_ms` of any load from it; None
    where the requests do not tell it apart. `break_even_tokens`: from this length on loading takes less time than
    recomputing; 0 when it always does; None when it never does or it is not known, as `why` says."""

    source: str
    requests: int
    ms_per_1k: Estimate | None
    fixed_ms: Estimate | None
    break_even_tokens: Estimate | None
    why: str


@dataclass(frozen=True, slots=True)
class Normal:
    """Sums of the regression by block: `xx` [blocks, terms, terms], `xy` [blocks, terms]; `used` counts the
    requests with such tokens, in the order recomputed, host, storage; `requests` all of them."""

    xx: NDArray[np.float64]
    xy: NDArray[np.float64]
    used: tuple[int, int, int]
    requests: int


def sums_of(detail: Detail) -> Normal | None:
    """The regression's sums of one run; None with too few sessions."""
    side = alone(detail)
    ttft, tokens = detail.durations["ttft_service"], detail.tokens
    recomputed = tokens["prompt"] - tokens["cached"]
    host, storage = np.nan_to_num(tokens["host"]), np.nan_to_num(tokens["storage"])
    # Tiers that were not said must not count as nothing loaded.
    said = (tokens["cached"] == 0) | (np.nan_to_num(tokens["device"]) + host + storage == tokens["cached"])
    known = detail.ok & said & ~np.isnan(ttft) & ~np.isnan(recomputed)
    if side is None:
        return None
    xx, xy = np.zeros((side.blocks, 6, 6)), np.zeros((side.blocks, 6))
    rows = np.flatnonzero(known)
    # 16 bits: numpy sorts those by counting.
    rows = rows[np.argsort(side.every[rows].astype(np.int16), kind="stable")]
    edges = np.searchsorted(side.every[rows], np.arange(side.blocks + 1))
    for block in range(side.blocks):
        at = rows[edges[block] : edges[block + 1]]
        # Thousands of tokens and milliseconds: the terms are then of one size, and the sums well conditioned.
        h, s = host[at].astype(np.float64) / 1000, storage[at].astype(np.float64) / 1000
        x = np.column_stack((np.ones(at.size), recomputed[at] / 1000, h > 0, h, s > 0, s)).astype(np.float64)
        xx[block], xy[block] = x.T @ x, x.T @ (ttft[at].astype(np.float64) / NS_PER_MS)
    used = tuple(int((item[known] > 0).sum()) for item in (recomputed, host, storage))
    return Normal(xx, xy, (used[0], used[1], used[2]), rows.size)


def costs(parts: Sequence[Normal | None]) -> tuple[Cost, ...]:
    """Costs of recomputing, loading from host and from storage over the runs of one set."""
    known = [part for part in parts if part is not None]
    if sum(part.requests for part in known) < FEWEST_REQUESTS:
        return ()
    xx, xy = np.concatenate([part.xx for part in known]), np.concatenate([part.xy for part in known])
    terms = _separable(xx.sum(axis=0))
    rng = np.random.default_rng(0)
    draws = np.vstack((np.ones(len(xx)), rng.multinomial(len(xx), np.full(len(xx), 1 / len(xx)), RESAMPLES)))
    found = _solve(np.einsum("rb,bij->rij", draws, xx), draws @ xy, terms)
    used = [sum(part.used[i] for part in known) for i in range(3)]
    recompute = found.get("recomputed")
    first = Cost("recomputed", used[0], _estimate(recompute), None, None,
                 "" if recompute is not None else "recomputed tokens do not vary enough to tell")  # fmt: skip
    return (first, *(_tier(tier, used[i], found, recompute) for i, tier in enumerate(("host", "storage"), 1)))


def _tier(tier: str, used: int, found: dict[str, Floats], recompute: Floats | None) -> Cost:
    slope, fixed = found.get(tier), found.get(f"{tier}_fixed")
    if slope is None:
        why = "too few requests loaded from it" if used < FEWEST_REQUESTS else "loaded tokens do not vary enough"
        return Cost(tier, used, None, None, None, why)
    length, why = _break_even(slope, fixed, recompute)
    return Cost(tier, used, _estimate(slope), _estimate(fixed), length, why)


def _break_even(slope: Floats, fixed: Floats | None, recompute: Floats | None) -> tuple[Estimate | None, str]:
    """Where fixed + slope · n = recompute · n."""
    if recompute is None:
        return None, "the cost of recomputing is not known"
    saved = recompute - slope
    if saved[0] <= 0:
        return None, "loading a token takes as long as recomputing it: no length pays"
    if fixed is None:
        return None, "the fixed cost of a load is not known: loaded lengths do not vary enough"
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.where(saved > 0, np.maximum(fixed, 0) / saved * 1000, np.inf)
    return _estimate(length), "" if length[0] > 0 else "loading pays at any length"


def _estimate(found: Floats | None) -> Estimate | None:
    if found is None:
        return None
    low, high = np.quantile(found[1:], (0.025, 0.975), method="inverted_cdf").tolist()
    return Estimate(float(found[0]), low, high)


def _separable(xx: NDArray[np.float64]) -> list[int]:
    """Terms in order, without those that are empty or that the ones before explain."""
    order = [_TERMS.index(name) for name in ("wait", "recomputed", "host", "storage", "host_fixed", "storage_fixed")]
    chosen: list[int] = []
    for term in order:
        if xx[term, term] <= 0:
            continue
        if _TERMS[term] not in ("wait", "recomputed") and xx[term - term % 2, term - term % 2] < FEWEST_REQUESTS:
            continue
        inner = xx[np.ix_(chosen, chosen)]
        cross = xx[chosen, term]
        left = xx[term, term] - (cross @ np.linalg.pinv(inner) @ cross if chosen else 0)
        if left > _LEAST_SPREAD * xx[term, term]:
            chosen.append(term)
    return chosen


def _solve(xx: NDArray[np.float64], xy: NDArray[np.float64], terms: list[int]) -> dict[str, Floats]:
    """Term → coefficients [resamples + 1]."""
    inner = xx[:, terms][:, :, terms]
    answer = np.einsum("rij,rj->ri", np.linalg.pinv(inner, hermitian=True), xy[:, terms])
    return {_TERMS[term]: answer[:, i] for i, term in enumerate(terms)}
