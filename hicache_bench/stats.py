"""Order statistics of plain samples; absent is None, never 0 or NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hicache_bench.errors import UsageError


def known(values: ArrayLike) -> NDArray[np.float64]:
    """The values as float64 without NaN (NaN stands for "not known" inside arrays)."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[~np.isnan(array)]


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """numerator / denominator; None when either is absent or the denominator is not positive."""
    if numerator is None or denominator is None or not denominator > 0:
        return None
    return float(numerator) / float(denominator)


def percentile(values: ArrayLike, q: float) -> float | None:
    """The q-th percentile (0..100) with linear interpolation; None without values.

    Raises UsageError for a q outside 0..100.
    """
    if not 0 <= q <= 100:
        raise UsageError(f"percentile {q} is outside 0..100")
    array = known(values)
    return float(np.percentile(array, q)) if array.size else None


@dataclass(frozen=True, slots=True)
class Summary:
    """n values in the unit of the sample; every figure is None when n is 0."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None


def summary(values: ArrayLike) -> Summary:
    """Summarise the known values of a sample."""
    array = known(values)
    if not array.size:
        return Summary(0)
    p50, p90, p99 = np.percentile(array, [50, 90, 99]).tolist()
    return Summary(int(array.size), float(array.mean()), p50, p90, p99, float(array.min()), float(array.max()))
