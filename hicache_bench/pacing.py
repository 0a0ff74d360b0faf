"""When requests start: pure arrival schedules, whole before the clock starts.

Every schedule is a process of unit rate (evenly spaced, Poisson or gamma) mapped through the inverse of the
cumulated rate, so ramps keep the process they are made of, and nothing is clipped: the mean rate is the asked
one. All schedules are sorted int64 nanoseconds from the start of the measured phase.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError

Process = Literal["constant", "poisson", "gamma"]
Instants = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """A span in which the rate (per second) goes linearly from one value to another."""

    duration_ns: int
    rate_from: float
    rate_to: float


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The random generator of one purpose. Equal arguments give equal draws in every process; seed 0 is a
    seed like any other, and purposes never share draws."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(purpose.encode())]))


def count_schedule(process: Process, rate: float, n: int, *, seed: int, cv: float = 1.0) -> Instants:
    """`n` arrivals at `rate` per second. Raises UsageError when `rate` or `cv` is not positive."""
    _positive("rate", rate)
    unit = _PROCESSES[process](generator(seed, "arrivals"), n, _checked_cv(cv))
    return _to_ns(np.cumsum(unit) / rate)


def duration_schedule(
    process: Process, rate: float, duration_ns: int, *, seed: int, cv: float = 1.0
) -> Instants:
    """All arrivals at `rate` per second that fall before `duration_ns`."""
    _positive("rate", rate)
    return stages_schedule(process, (Stage(duration_ns, rate, rate),), seed=seed, cv=cv)


def stages_schedule(process: Process, stages: Sequence[Stage], *, seed: int, cv: float = 1.0) -> Instants:
    """All arrivals of consecutive stages and ramps. Rates may be zero inside a stage, not below."""
    if not stages:
        raise UsageError("load.stages is empty; give at least one stage with a duration and a rate")
    for stage in stages:
        if stage.duration_ns <= 0 or stage.rate_from < 0 or stage.rate_to < 0:
            raise UsageError(f"{stage}: a stage lasts longer than zero and its rates are not negative")
    spans = np.array([stage.duration_ns / NS_PER_S for stage in stages])
    starts = np.array([stage.rate_from for stage in stages])
    slopes = (np.array([stage.rate_to for stage in stages]) - starts) / spans
    areas = np.concatenate(([0.0], np.cumsum(spans * (starts + slopes * spans / 2))))
    unit = _unit_before(process, float(areas[-1]), generator(seed, "arrivals"), _checked_cv(cv))
    which = np.clip(np.searchsorted(areas, unit, side="right") - 1, 0, len(stages) - 1)
    inside = _invert(unit - areas[which], starts[which], slopes[which])
    begins = np.concatenate(([0.0], np.cumsum(spans)))[which]
    return _to_ns(begins + np.clip(inside, 0.0, spans[which]))


def trace_schedule(offsets_ns: Sequence[int] | Instants, speedup: float = 1.0) -> Instants:
    """Recorded offsets played `speedup` times faster; sorted, ties keep their order."""
    _positive("speedup", speedup)
    offsets = np.sort(np.asarray(offsets_ns, dtype=np.int64), kind="stable")
    return offsets if speedup == 1.0 else np.rint(offsets / speedup).astype(np.int64)


def _constant(rng: np.random.Generator, n: int, cv: float) -> _Floats:
    gaps = np.ones(n)
    gaps[:1] = 0.0  # an even schedule starts at once; a random one after its first gap
    return gaps


def _poisson(rng: np.random.Generator, n: int, cv: float) -> _Floats:
    return rng.standard_exponential(n)


def _gamma(rng: np.random.Generator, n: int, cv: float) -> _Floats:
    shape = 1.0 / cv**2
    return rng.standard_gamma(shape, n) / shape


_PROCESSES: dict[str, Callable[[np.random.Generator, int, float], _Floats]] = {
    "constant": _constant,
    "poisson": _poisson,
    "gamma": _gamma,
}


def _unit_before(process: Process, limit: float, rng: np.random.Generator, cv: float) -> _Floats:
    """The instants of a unit-rate process that are below `limit`."""
    if process == "constant":
        return np.arange(np.ceil(limit - 1e-9), dtype=np.float64)
    chunk = int(limit + 6 * max(1.0, cv) * limit**0.5) + 16
    times = np.cumsum(_PROCESSES[process](rng, chunk, cv))
    while times[-1] < limit:
        more = np.cumsum(_PROCESSES[process](rng, chunk, cv)) + times[-1]
        times = np.concatenate((times, more))
    return times[times < limit]


def _invert(area: _Floats, rate: _Floats, slope: _Floats) -> _Floats:
    """Time t with rate*t + slope*t²/2 = area, by the form of the root that stays exact when slope is 0."""
    root = rate + np.sqrt(np.maximum(rate**2 + 2 * slope * area, 0.0))
    return np.divide(2 * area, root, out=np.zeros_like(area), where=root > 0)


def _to_ns(seconds: _Floats) -> Instants:
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _checked_cv(cv: float) -> float:
    _positive("cv", cv)
    return cv


def _positive(name: str, value: float) -> None:
    if not value > 0 or not np.isfinite(value):
        raise UsageError(f"{name} = {value}: must be a number above 0")
