"""Service level objectives: `ttft<200ms,itl<50ms,e2e<2s`, and the share of requests that keep them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hicache_bench.analysis.metrics import BY_NAME, gaps, samples
from hicache_bench.analysis.rows import Flags, Rows
from hicache_bench.analysis.windows import measured
from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.stats import ratio
from hicache_bench.units import parse_duration_ns

ALLOWED = ("ttft", "ttft_service", "ttfo", "itl", "tpot", "e2e", "e2e_service")

_BOUND = re.compile(r"\s*([^<\s]*)\s*<\s*([^<=]+?)\s*")


@dataclass(frozen=True, slots=True)
class Bound:
    """`metric` must stay under `limit_ns` in a request."""

    metric: str
    limit_ns: int


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that were ok and kept every bound: `met` of `n` issued or shed, `per_s` in the measured phase."""

    slo: str
    met: int
    n: int
    share: float | None
    per_s: float | None


def parse_slo(text: str) -> tuple[Bound, ...]:
    """`"ttft<200ms,itl<50ms"` → bounds. Raises UsageError naming the part and what is allowed."""
    bounds: dict[str, Bound] = {}
    for part in text.split(","):
        match = _BOUND.fullmatch(part)
        if match is None:
            raise UsageError(f"--slo: {part.strip()!r} is not METRIC<DURATION; write it like ttft<200ms,itl<50ms")
        name, limit = match.groups()
        if name not in ALLOWED:
            raise UsageError(f"--slo: no metric {name!r} in {part.strip()!r}; allowed: {', '.join(ALLOWED)}")
        if name in bounds:
            raise UsageError(f"--slo: {name} is given twice")
        try:
            bounds[name] = Bound(name, parse_duration_ns(limit))
        except (UsageError, OverflowError) as exc:
            raise UsageError(f"--slo: {part.strip()!r}: {exc}") from None
    return tuple(bounds.values())


def format_slo(bounds: tuple[Bound, ...]) -> str:
    """The bounds in exact form, which `parse_slo` reads back."""
    return ",".join(f"{bound.metric}<{_exact(bound.limit_ns)}" for bound in bounds)


def keeps(rows: Rows, bounds: tuple[Bound, ...]) -> Flags:
    """Which rows are ok and under every bound. A request without the figure does not keep the bound, except
    that one with fewer than two tokens (chunks) has no TPOT (ITL) to break. ITL is a request's mean.
    """
    good = rows.ok
    for bound in bounds:
        if bound.metric == "itl":
            row, gap, tokens = gaps(rows)
            spent = np.bincount(row, weights=gap, minlength=rows.n)
            counted = np.bincount(row, weights=tokens, minlength=rows.n)
            good = good & (spent < bound.limit_ns * np.maximum(counted, 1))
        else:
            figure = samples(BY_NAME[bound.metric], rows)
            exempt = (rows["output_tokens"] < 2) if bound.metric == "tpot" else np.zeros(rows.n, dtype=np.bool_)
            good = good & ((figure < bound.limit_ns) | exempt)
    return good


def goodput(rows: Rows, bounds: tuple[Bound, ...]) -> Goodput:
    """Count over all rows of the measured phase: a shed or failed request is one that missed."""
    met, window = int(keeps(rows, bounds).sum()), measured(rows)
    per_s = None if window is None else ratio(met, window.duration_ns / NS_PER_S)
    return Goodput(format_slo(bounds), met, rows.n, ratio(met, rows.n), per_s)


def _exact(limit_ns: int) -> str:
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if limit_ns and limit_ns % scale == 0:
            return f"{limit_ns // scale}{unit}"
    return f"{limit_ns}ns"
