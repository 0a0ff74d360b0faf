"""From runs to words: one difference a row, with size, interval, p, n, and better, worse, same or unclear.

A word needs significance *and* size. Primary rows (`figures`) are one max-T family (`replicates`). Secondary
rows are another, opened only once a primary row has a word: so a comparison of equals shows any word at all in
at most 5 % of cases, and where something did change, the other rows may say where. Several NEW sets against one
BASE multiply p by their number (Bonferroni). `same` needs the whole interval within the floor; anything else
is unclear. One run a side never has a word: see `within`.

Measured (benchmarks/judge.py, 5 runs a side unless said): any word on equal builds in 1.9 % of 1,000 pairs at 3 %
spread (standard deviation) from run to run; 5 % more TTFT found in 94 % where 5 runs span 3 %, in 26 % where their
standard deviation is 3 % (57 % with TTFT p50 as the only primary row; no valid test can exceed 62 %, Student's t on
that row alone), in 90 % with 8 interleaved pairs that share that drift. When all runs of one side come first, drift
between runs counts as a difference: 15 % false words; `compare` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hicache_bench.analysis.figures import FIGURES, Figure
from hicache_bench.analysis.measured import RunFigures
from hicache_bench.analysis.replicates import ALPHA, FEWEST_BLOCKS, Tested, judge_family, smallest_p
from hicache_bench.analysis.within import Spread

Verdict = Literal["better", "worse", "same", "unclear"]
Basis = Literal["runs", "pairs of runs", "within run", "none"]
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Delta:
    """One row of one NEW set against BASE.

    `size`, `low`, `high` (95 % interval): new / base - 1, or new - base for ratios. `p` is adjusted over the
    family, except within a run; `p_rank` is the row's own exact rank test, unadjusted. `verdict` is None for client
    rows. `within` is lower or higher when one run a side clearly differs from the other; `why` explains unclear.
    """

    size: float | None
    low: float | None
    high: float | None
    p: float | None
    p_rank: float | None
    n_base: int
    n_new: int
    basis: Basis
    verdict: Verdict | None
    within: Literal["lower", "higher"] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Runs of both sides in the order in which they belong together."""

    base: tuple[RunFigures, ...]
    new: tuple[RunFigures, ...]
    by: str


def pairing(base: Sequence[RunFigures], new: Sequence[RunFigures]) -> Pairing | None:
    """Pairs of runs by plan (each plan once a side) or by time (neighbours, one of each side); None unless
    there are FEWEST_BLOCKS of them."""
    if len(base) != len(new) or len(base) < FEWEST_BLOCKS:
        return None
    plans = [{str(run.meta.get("plan_digest")): run for run in side} for side in (base, new)]
    if set(plans[0]) == set(plans[1]) and len(plans[0]) == len(base):
        order = sorted(plans[0])
        return Pairing(tuple(plans[0][key] for key in order), tuple(plans[1][key] for key in order), "plan")
    known = [(run.meta.get("started_wall_ns"), side, i) for side, runs in enumerate((base, new))
             for i, run in enumerate(runs)]  # fmt: skip
    if len(plans[0]) != 1 or not all(isinstance(item[0], int) for item in known):
        return None
    line = sorted(known, key=lambda item: (item[0], item[1]))
    pairs = list(zip(line[::2], line[1::2], strict=True))
    if any(one[1] == two[1] for one, two in pairs):
        return None
    ordered = [sorted(both, key=lambda item: item[1]) for both in pairs]
    return Pairing(tuple(base[one[2]] for one, _ in ordered), tuple(new[two[2]] for _, two in ordered), "time")


def replicated(
    base: Sequence[Values], new: Sequence[Values], *, blocked: bool = False, contrasts: int = 1,
    floor: float | None = None, figures: Sequence[Figure] = FIGURES,
) -> dict[str, Delta]:  # fmt: skip
    """Row name → Delta for several runs a side, one mapping of row values a run. With `blocked`, run i of both
    sides belong together. `floor` replaces the floors of relative rows."""
    found: dict[str, Delta] = {}
    opened = False
    least = smallest_p(len(base), len(new), len(base) if blocked else 0) * contrasts
    for family in ("primary", "secondary"):
        rows = [figure for figure in figures if figure.family == family]
        usable = [figure for figure in rows if not _unusable(figure, base, new)]
        tested = judge_family(_matrix(usable, base), _matrix(usable, new), blocked=blocked)
        judged = dict(zip((figure.name for figure in usable), tested, strict=True))
        for figure in rows:
            result, why = judged.get(figure.name), _unusable(figure, base, new)
            if result is None:
                found[figure.name] = _plain(figure, base, new, "unclear", why)
            else:
                found[figure.name] = _judge(figure, result, (len(base), len(new)), blocked, contrasts, floor, least,
                                            opened or family == "primary")  # fmt: skip
        opened = any(item.verdict in ("better", "worse") for item in found.values())
    for figure in figures:
        if figure.family == "client":
            found[figure.name] = _plain(figure, base, new, None, "")
    return found


def within_run(
    spreads: Mapping[str, Spread], base: Values, new: Values, floor: float | None = None
) -> dict[str, Delta]:
    """Row name → Delta for one run a side."""
    found: dict[str, Delta] = {}
    for figure in FIGURES:
        spread = spreads.get(figure.name)
        if figure.family == "client" or spread is None:
            verdict: Verdict | None = None if figure.family == "client" else "unclear"
            found[figure.name] = _plain(figure, [base], [new], verdict, "one run a side")
            continue
        size, low, high = (_size(figure, x) for x in (spread.difference, spread.low, spread.high))
        clear = (spread.low > 0 or spread.high < 0) and abs(size) >= _floor(figure, floor)
        word: Literal["lower", "higher"] | None = ("higher" if size > 0 else "lower") if clear else None
        found[figure.name] = Delta(size, low, high, spread.p, None, 1, 1, "within run", "unclear", word,
                                   "one run a side")  # fmt: skip
    return found


def _judge(figure: Figure, result: Tested, n: tuple[int, int], blocked: bool, contrasts: int, floor: float | None,
           least: float, opened: bool) -> Delta:  # fmt: skip
    size = _size(figure, result.difference)
    low, high = (None if x is None else _size(figure, x) for x in (result.low, result.high))
    p, limit = min(1.0, result.p * contrasts), _floor(figure, floor)
    verdict: Verdict = "unclear"
    why = ""
    if p < ALPHA and abs(size) >= limit and opened:
        verdict = "better" if (size < 0) == (figure.better == "lower") else "worse"
    elif low is not None and high is not None and least < ALPHA and -limit <= low and high <= limit:
        verdict = "same"
    elif least >= ALPHA:
        why = f"too few runs: the smallest p that {n[0]} and {n[1]} runs can give is {least:.2g}"
    elif p >= ALPHA:
        why = "not significant, and the interval is wider than the floor"
    elif abs(size) < limit:
        why = f"smaller than the floor of {_percent(figure, limit)}"
    else:
        why = "a secondary row, and no primary row changed"
    return Delta(size, low, high, p, result.p_rank, *n, "pairs of runs" if blocked else "runs", verdict, None, why)


def _plain(figure: Figure, base: Sequence[Values], new: Sequence[Values], verdict: Verdict | None, why: str) -> Delta:
    """A size without a test."""
    one, two = centre(figure, base), centre(figure, new)
    size = None
    if one is not None and two is not None:
        size = two - one if figure.scale == "points" else two / one - 1 if one > 0 else None
    return Delta(size, None, None, None, None, len(base), len(new), "none", verdict, None, why)


def _unusable(figure: Figure, base: Sequence[Values], new: Sequence[Values]) -> str:
    """Why a row cannot be tested; empty when it can."""
    for side, runs in (("base", base), ("new", new)):
        values = [run.get(figure.name) for run in runs]
        if missing := sum(item is None for item in values):
            return f"absent in {missing} of {len(values)} {side} runs"
        if figure.scale == "relative" and any(item is not None and item <= 0 for item in values):
            return f"zero in some {side} runs"
    return ""


def _matrix(figures: Sequence[Figure], runs: Sequence[Values]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    values = np.array([[run[figure.name] for run in runs] for figure in figures], dtype=np.float64)
    values = values.reshape(len(figures), len(runs))
    relative = np.array([figure.scale == "relative" for figure in figures], dtype=np.bool_)
    values[relative] = np.log(values[relative])
    return values


def centre(figure: Figure, runs: Sequence[Values]) -> float | None:
    """The value of a set: the geometric mean of its runs, the mean for ratios; None where no run has it."""
    values = [item for run in runs if (item := run.get(figure.name)) is not None]
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    if figure.scale == "points" or min(values) <= 0:
        return float(np.mean(values))
    return math.exp(float(np.mean(np.log(values))))


def spread_of(figure: Figure, runs: Sequence[Values]) -> float | None:
    """Standard deviation of the runs, relative or in points; None with fewer than two."""
    values = [item for run in runs if (item := run.get(figure.name)) is not None]
    if len(values) < 2:
        return None
    deviation, middle = float(np.std(values, ddof=1)), float(np.mean(values))
    return deviation if figure.scale == "points" else deviation / middle if middle > 0 else None


def _size(figure: Figure, difference: float) -> float:
    return difference if figure.scale == "points" else math.expm1(difference)


def _floor(figure: Figure, floor: float | None) -> float:
    return floor if floor is not None and figure.scale == "relative" else figure.floor


def _percent(figure: Figure, limit: float) -> str:
    return f"{100 * limit:g} {'points' if figure.scale == 'points' else '%'}"
