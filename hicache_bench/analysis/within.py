"""One run a side: how far the figures of *these two runs* differ, by a block bootstrap over sessions and time.

Requests of one run are no replicates: they share the server's state, its drift and its cache. Sessions, in the
order they began, are cut into blocks of consecutive ones, and blocks are drawn with replacement; so turns stay with
their session and neighbours with each other. With the same plan on both sides only requests that both answered
count, and the same blocks are drawn on both sides (paired by session and turn): what the plan itself varies
cancels. Nothing here sees what differs from one run to the next, so no verdict follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.figures import FIGURES, POINTS, Figure
from hicache_bench.analysis.gaps import Gaps, histogram, quantile
from hicache_bench.analysis.measured import Detail
from hicache_bench.analysis.rows import Floats

MOST_BLOCKS = 40
FEWEST_BLOCKS = 10
RESAMPLES = 1_000

Blocks = NDArray[np.int32]
_SUMS = {"hit_ratio": ("cached", "prompt"), "hit_device": ("device", "prompt"), "hit_host": ("host", "prompt"),
         "hit_storage": ("storage", "prompt")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """One run with its rows in `blocks` blocks: `block` for figures of answers, `every` for shares of all
    attempts; -1 is in none. They differ when paired: an answer counts only when the other side has it too."""

    detail: Detail
    block: Blocks
    every: Blocks
    blocks: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Difference new - base (log or points) over the rows compared, its 95 % interval and p within the runs."""

    difference: float
    low: float
    high: float
    p: float


def pair(base: Detail, new: Detail) -> tuple[Side, Side, int] | None:
    """(base, new, matched answers) of two runs of one plan; None with too few sessions in common."""
    sessions = np.intersect1d(_distinct(base.session), _distinct(new.session), assume_unique=True)
    cut = _session_blocks(base.session, base.due_ns, sessions)
    if cut is None:
        return None
    one, two = np.flatnonzero(base.ok), np.flatnonzero(new.ok)
    _, at, of = np.intersect1d(_keys(base)[one], _keys(new)[two], return_indices=True)
    return _side(base, sessions, cut, one[at]), _side(new, sessions, cut, two[of]), int(at.size)


def alone(detail: Detail) -> Side | None:
    """One run cut by its own sessions; None with too few of them."""
    sessions = _distinct(detail.session)
    cut = _session_blocks(detail.session, detail.due_ns, sessions)
    return None if cut is None else _side(detail, sessions, cut, np.arange(detail.ok.size))


def spreads(base: Side, new: Side, gaps: tuple[Gaps, Gaps], *, paired: bool) -> dict[str, Spread]:
    """Row name → Spread. Rates are one number a run, so they have none; nor have rows without data."""
    rng = np.random.default_rng(0)
    draws_base = _draw(rng, base.blocks)
    draws_new = draws_base if paired else _draw(rng, new.blocks)
    found: dict[str, Spread] = {}
    sides = ((base, gaps[0], draws_base), (new, gaps[1], draws_new))
    for metric in dict.fromkeys(figure.metric for figure in FIGURES if figure.family != "client"):
        points = [figure for figure in FIGURES if figure.metric == metric]
        one, two = (_resampled(metric, points, *side) for side in sides)
        if one is None or two is None:
            continue
        for figure, before, after in zip(points, one, two, strict=True):
            spread = _spread(figure, before, after)
            found |= {} if spread is None else {figure.name: spread}
    return found


def _keys(detail: Detail) -> NDArray[np.int64]:
    return np.asarray(detail.session * 2**20 + detail.turn)


def _distinct(names: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted and once each; by sorting, which is ten times as fast here as the hash table of np.unique."""
    ordered = np.sort(names)
    first = np.concatenate((np.ones(min(1, ordered.size), dtype=np.bool_), ordered[1:] != ordered[:-1]))
    return np.asarray(ordered[first])


def _session_blocks(session: NDArray[np.int64], due_ns: Floats, names: NDArray[np.int64]) -> Blocks | None:
    """The block of each of the sessions `names` (sorted): cut into equally many by the order of first instants."""
    n_blocks = min(MOST_BLOCKS, names.size)
    if n_blocks < FEWEST_BLOCKS:
        return None
    at = np.searchsorted(names, session)
    there = names[np.minimum(at, names.size - 1)] == session
    begin = np.full(names.size, np.inf)
    np.minimum.at(begin, at[there], np.nan_to_num(due_ns[there], nan=np.inf))
    rank = np.empty(names.size, dtype=np.int64)
    rank[np.argsort(begin, kind="stable")] = np.arange(names.size)
    return (rank * n_blocks // names.size).astype(np.int32)


def _side(detail: Detail, names: NDArray[np.int64], cut: Blocks, answers: NDArray[np.int64]) -> Side:
    at = np.minimum(np.searchsorted(names, detail.session), names.size - 1)
    every = np.where(names[at] == detail.session, cut[at], -1).astype(np.int32)
    block = np.full(every.size, -1, dtype=np.int32)
    block[answers] = every[answers]
    return Side(detail, block, every, int(cut.max()) + 1)


def _draw(rng: np.random.Generator, n_blocks: int) -> Floats:
    """How often each block is drawn, [RESAMPLES + 1, blocks]; row 0 is every block once: the estimate."""
    drawn = rng.multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), RESAMPLES)
    return np.vstack((np.ones(n_blocks), drawn))


def _resampled(metric: str, points: list[Figure], side: Side, gaps: Gaps, draws: Floats) -> list[Floats] | None:
    """The figure of each point in every resample; None for a metric without rows here."""
    n_blocks = side.blocks
    if metric == "itl":
        whole = gaps.exact is not None and not gaps.counts[n_blocks:].any()
        known_points = gaps.points() if whole else {}
        exact = [known_points.get(str(item.point)) for item in points]
        return _of_counts(points, gaps.counts[:n_blocks], gaps.sums[:n_blocks], draws, exact)
    if metric in side.detail.durations:
        found = side.detail.durations[metric]
        known = (side.block >= 0) & ~np.isnan(found)
        values = found[known].astype(np.float64)
        sums = np.bincount(side.block[known], weights=values, minlength=n_blocks).astype(np.float64)
        answers = dict(zip(POINTS, np.percentile(values, (50, 90, 99)).tolist(), strict=False)) if values.size else {}
        exact = [answers.get(str(item.point)) for item in points]
        return _of_counts(points, histogram(values, side.block[known], n_blocks), sums, draws, exact)
    ratio = _ratio(metric, side)
    if ratio is None:
        return None
    above, below = draws @ ratio[0], draws @ ratio[1]
    return [np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)]


def _of_counts(points: list[Figure], counts: Floats, sums: Floats, draws: Floats,
               exact: list[float | None]) -> list[Floats] | None:  # fmt: skip
    """The figure of each point in every resample; scaled so that the estimate is `exact` where that is known,
    since bins answer a percentile between two samples in another way."""
    filled = np.flatnonzero(counts.any(axis=0))
    if not filled.size:
        return None
    first = int(filled[0])
    # Only the bins in use: an empty run of bins at either end says nothing.
    trimmed = draws @ counts[:, first : int(filled[-1]) + 1]
    total = draws @ counts.sum(axis=1)
    mean = np.divide(draws @ sums, total, out=np.full(total.shape, np.nan), where=total > 0)
    found = [mean if item.point == "mean" else quantile(trimmed, float(str(item.point)[1:]), first) for item in points]
    scales = [1.0 if point is None else point / values[0] for values, point in zip(found, exact, strict=True)]
    return [values * scale for values, scale in zip(found, scales, strict=True)]


def _ratio(metric: str, side: Side) -> tuple[Floats, Floats] | None:
    """(numerator, denominator) of a share by block."""
    detail = side.detail
    if metric in _SUMS:
        upper, lower = (detail.tokens[name] for name in _SUMS[metric])
        known = (side.block >= 0) & detail.ok & ~np.isnan(upper) & ~np.isnan(lower)
        block, above, below = side.block[known], upper[known].astype(np.float64), lower[known].astype(np.float64)
    else:
        flags = {"error_rate": detail.failed, "shed_rate": detail.shed, "goodput": detail.good}.get(metric)
        if flags is None:
            return None
        known = side.every >= 0
        block, above, below = side.every[known], flags[known].astype(np.float64), np.ones(int(known.sum()))
    if not block.size:
        return None
    return (np.bincount(block, weights=above, minlength=side.blocks).astype(np.float64),
            np.bincount(block, weights=below, minlength=side.blocks).astype(np.float64))  # fmt: skip


def _spread(figure: Figure, base: Floats, new: Floats) -> Spread | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = new - base if figure.scale == "points" else np.log(new) - np.log(base)
    known = shift[1:][np.isfinite(shift[1:])]
    if not np.isfinite(shift[0]) or known.size < RESAMPLES // 2:
        return None
    low, high = np.percentile(known, (2.5, 97.5)).tolist()
    share = min(float((known <= 0).mean()), float((known >= 0).mean()))
    return Spread(float(shift[0]), low, high, min(1.0, max(2 * share, 2 / known.size)))
