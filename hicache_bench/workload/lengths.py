"""Lengths and pauses: a constant or a distribution, drawn by the array."""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from hicache_bench.units import parse_duration_ns
from hicache_bench.workload.decode import Duration, need


class Uniform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="dist", tag="uniform"):
    """Whole numbers from `min` to `max`, both possible, all equally likely."""

    min: int
    max: int

    def __post_init__(self) -> None:
        need(self.min >= 0, "min", self.min, "must be at least 0")
        need(self.max >= self.min, "max", self.max, f"must be at least min ({self.min})")


class LogNormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="dist", tag="lognormal"):
    """exp(normal), given by its median or its mean. `min` and `max` limit each draw, which moves the mean."""

    sigma: float
    median: float | None = None
    mean: float | None = None
    min: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        need((self.median is None) != (self.mean is None), "median", self.median, "give median or mean, one")
        need(self.sigma >= 0, "sigma", self.sigma, "must be at least 0")
        centre = self.median if self.median is not None else self.mean
        need(centre is not None and centre > 0, "median", centre, "must be above 0")
        need(self.min >= 0, "min", self.min, "must be at least 0")
        need(self.max is None or self.max >= self.min, "max", self.max, f"must be at least min ({self.min})")

    @property
    def mu(self) -> float:
        if self.median is not None:
            return math.log(self.median)
        return math.log(self.mean or 1.0) - self.sigma**2 / 2


class Empirical(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="dist", tag="empirical"):
    """One of `values`, by `weights` (default: equal)."""

    values: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        need(len(self.values) > 0, "values", self.values, "must not be empty")
        need(min(self.values) >= 0, "values", self.values, "must all be at least 0")
        if self.weights is not None:
            need(len(self.weights) == len(self.values), "weights", self.weights, "one weight a value")
            fine = min(self.weights) >= 0 and sum(self.weights) > 0
            need(fine, "weights", self.weights, "must not be negative, nor all zero")


MOST_TOKENS = 2**31 - 1
"""No length is drawn above this: SGLang counts tokens in 32 bits, and so do its clients."""

Length: TypeAlias = int | Uniform | LogNormal | Empirical


class UniformPause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="dist", tag="uniform"):
    """Any duration from `min` to `max`."""

    min: Duration
    max: Duration

    def __post_init__(self) -> None:
        need(self.max >= self.min, "max", int(self.max), f"must be at least min ({int(self.min)} ns)")


class ExponentialPause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="dist",
                       tag="exponential"):
    """Memoryless pauses of the given mean."""

    mean: Duration


class LogNormalPause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="dist",
                     tag="lognormal"):
    """exp(normal) around a median, no longer than `max`."""

    median: Duration
    sigma: float
    max: Duration | None = None

    def __post_init__(self) -> None:
        need(self.median > 0, "median", int(self.median), "must be above 0")
        need(self.sigma >= 0, "sigma", self.sigma, "must be at least 0")


Pause: TypeAlias = str | UniformPause | ExponentialPause | LogNormalPause


def check_length(key: str, length: Length, least: int = 1) -> None:
    """For `__post_init__`: no draw may be below `least`."""
    lowest = length if isinstance(length, int) else (
        min(length.values) if isinstance(length, Empirical) else length.min)
    need(lowest >= least, key, lowest, f"must be at least {least}")
    highest = length if isinstance(length, int) else (
        max(length.values) if isinstance(length, Empirical) else max(length.min, length.max or 0))
    need(highest <= MOST_TOKENS, key, highest, f"must be at most {MOST_TOKENS}")


def check_pause(key: str, pause: Pause) -> None:
    """For `__post_init__`: a constant pause must be a duration."""
    if isinstance(pause, str):
        try:
            parse_duration_ns(pause)
        except Exception as error:
            raise ValueError(f"{key} = {pause!r}: {error}") from None


def draw_lengths(length: Length, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`n` draws, int64."""
    if isinstance(length, int):
        return np.full(n, length, dtype=np.int64)
    if isinstance(length, Uniform):
        return rng.integers(length.min, length.max, size=n, endpoint=True, dtype=np.int64)
    if isinstance(length, Empirical):
        weights = None
        if length.weights is not None:
            weights = np.array(length.weights) / sum(length.weights)
        return rng.choice(np.array(length.values, dtype=np.int64), size=n, p=weights)
    drawn = np.rint(rng.lognormal(length.mu, length.sigma, n))
    return np.clip(drawn, length.min, length.max).astype(np.int64)


def draw_pauses_ns(pause: Pause, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`n` pauses, int64 nanoseconds."""
    if isinstance(pause, str):
        return np.full(n, parse_duration_ns(pause), dtype=np.int64)
    if isinstance(pause, UniformPause):
        return rng.integers(pause.min, pause.max, size=n, endpoint=True, dtype=np.int64)
    if isinstance(pause, ExponentialPause):
        return np.rint(rng.exponential(float(pause.mean), n)).astype(np.int64)
    drawn = rng.lognormal(math.log(pause.median), pause.sigma, n)
    return np.rint(np.minimum(drawn, pause.max if pause.max is not None else np.inf)).astype(np.int64)


def mean_length(length: Length) -> float:
    """The expected draw, used to size plans (the limits of a lognormal are not reckoned in)."""
    if isinstance(length, int):
        return float(length)
    if isinstance(length, Uniform):
        return (length.min + length.max) / 2
    if isinstance(length, Empirical):
        return float(np.average(length.values, weights=length.weights))
    mean = math.exp(length.mu + length.sigma**2 / 2)
    return min(max(mean, length.min), length.max if length.max is not None else math.inf)
