"""Sets of runs side by side: refused where not comparable, with a verdict only where the runs allow one.

`render_json` (comparison_text) gives one object, or `{"comparisons": [...]}` with --row:

    title         "" or the value of --row
    basis         "runs", "pairs of runs" or "within run"; `basis_text` says it in words
    origin        "real" or "simulated"
    sets          [{name, runs: [names], n, requests}], the first is BASE
    lines         [{metric, unit, family, cells, deltas}]: cells [{value, spread, n}] one a set, deltas one a NEW
                  set, as verdict.Delta: size, low, high, p, p_rank, n_base, n_new, basis, verdict (better, worse,
                  same, unclear; null for client rows), within, why
    settings      [{name, asked, values}]: server settings that differ, one value a set
    tiers         [{tier, cells: [{n, p50_ns}]}]: TTFT by the tier that served the prompt
    costs         one list a set of decompose.Cost: {source, requests, ms_per_1k, fixed_ms, break_even_tokens, why};
                  the three numbers are {value, low, high} or null
    mix           one list a set of measured.Slice
    cautions      what may spoil runs, by run
    footnotes     what limits the comparison

Units: `ns` nanoseconds, `ratio` 0..1, `1/s`, `tok/s`. Absent, and unbounded ends of intervals, are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from hicache_bench.analysis.comparable import Setting, differences, settings
from hicache_bench.analysis.decompose import Cost, Normal, costs, sums_of
from hicache_bench.analysis.figures import FIGURES, Figure, with_primary
from hicache_bench.analysis.measured import Detail, RunFigures, Slice, add_gaps, load_run
from hicache_bench.analysis.replicates import ALPHA, runs_needed, smallest_p
from hicache_bench.analysis.sets import RunSet
from hicache_bench.analysis.tiers import TIER_CLASSES
from hicache_bench.analysis.verdict import Delta, centre, pairing, replicated, spread_of, within_run
from hicache_bench.analysis.within import FEWEST_BLOCKS, Side, alone, pair, spreads
from hicache_bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Cell:
    """The value of a row in one set: mean of its n runs (geometric unless a ratio) and their standard deviation
    (relative, or in points)."""

    value: float | None
    spread: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a cell a set, a delta a NEW set."""

    metric: str
    unit: str
    family: str
    cells: tuple[Cell, ...]
    deltas: tuple[Delta, ...]


@dataclass(frozen=True, slots=True)
class TierCell:
    """Requests of a tier class and their median TTFT (geometric mean of the runs' medians)."""

    n: int
    p50_ns: float | None


@dataclass(frozen=True, slots=True)
class TierLine:
    """TTFT of the requests that one tier class served (see `tiers.TIER_CLASSES`), a cell a set."""

    tier: str
    cells: tuple[TierCell, ...]


@dataclass(frozen=True, slots=True)
class SetSummary:
    """Which runs a column stands for; `requests` counts their attempts."""

    name: str
    runs: tuple[str, ...]
    n: int
    requests: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """See the module docstring."""

    title: str
    basis: str
    basis_text: str
    origin: str | None
    sets: tuple[SetSummary, ...]
    lines: tuple[Line, ...]
    settings: tuple[Setting, ...]
    tiers: tuple[TierLine, ...]
    costs: tuple[tuple[Cost, ...], ...]
    mix: tuple[tuple[Slice, ...], ...]
    cautions: tuple[str, ...]
    footnotes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A set read; `detail` only of a single run that is resampled, whose token gaps are still to be read."""

    name: str
    runs: tuple[RunFigures, ...]
    detail: Detail | None
    sums: tuple[Normal | None, ...]


@dataclass(frozen=True, slots=True)
class _Contrast:
    """BASE and one NEW set; `new` and `base` with every figure in them."""

    base: tuple[RunFigures, ...]
    new: tuple[RunFigures, ...]
    deltas: Mapping[str, Delta]
    basis: str
    text: str


def compare(
    sets: Sequence[RunSet], *, force: bool = False, floor: float | None = None, slo: str | None = None,
    primary: Sequence[str] = (), title: str = "",
) -> Comparison:  # fmt: skip
    """Compare NEW sets with the first one. `floor` replaces the floors of relative rows (0.02 is 2 %), `primary`
    the rows that are tested first: fewer of them, chosen before the runs are made, find smaller differences.

    Raises UsageError naming every difference that forbids it, unless `force`, which turns them into footnotes;
    UsageError too for fewer than two sets, a bad `slo` or an unknown row.
    """
    return read_and_compare(sets, force=force, floor=floor, slo=slo, primary=primary, title=title)[0]


def read_and_compare(
    sets: Sequence[RunSet], *, force: bool = False, floor: float | None = None, slo: str | None = None,
    primary: Sequence[str] = (), title: str = "",
) -> tuple[Comparison, list[tuple[RunFigures, ...]]]:  # fmt: skip
    """`compare`, and the runs of each set as they were read."""
    figures = with_primary(primary) if primary else FIGURES
    if len(sets) < 2:
        raise UsageError("two sets of runs are needed: BASE and NEW")
    forbidden = differences(sets)
    if forbidden and not force:
        raise UsageError(f"{' and '.join(item.name for item in sets)} are not comparable: {'; '.join(forbidden)}; "
                         "use --force to compare them all the same")  # fmt: skip
    single = all(len(item.runs) == 1 for item in sets)
    loaded = [_load(sets[0], slo, keep=single)]
    contrasts: list[_Contrast] = []
    for item in sets[1:]:
        other = _load(item, slo, keep=single)
        contrasts.append(_contrast(loaded[0], other, slo, floor, len(sets) - 1, figures))
        loaded.append(replace(other, runs=contrasts[-1].new, detail=None))
    loaded[0] = replace(loaded[0], runs=contrasts[0].base, detail=None)
    runs = [item.runs for item in loaded]
    origins = {str(run.meta.get("origin")) for item in runs for run in item}
    found = Comparison(
        title=title,
        basis=contrasts[0].basis,
        basis_text=contrasts[0].text,
        origin="simulated" if "simulated" in origins else next(iter(origins), None),
        sets=tuple(SetSummary(item.name, tuple(run.name for run in item.runs), len(item.runs),
                              sum(run.attempts for run in item.runs)) for item in loaded),
        lines=_lines(runs, contrasts, figures),
        settings=settings(sets),
        tiers=_tiers(runs),
        costs=tuple(costs(item.sums) for item in loaded),
        mix=tuple(_mix(item) for item in runs),
        cautions=tuple(f"{run.name}: {item.text}" for side in runs for run in side for item in run.cautions),
        footnotes=(*_footnotes(runs), *(f"forced: {text}" for text in forbidden)),
    )  # fmt: skip
    return found, runs


def _load(item: RunSet, slo: str | None, keep: bool) -> Loaded:
    """Each run is read and let go before the next, except one that is to be resampled."""
    runs: list[RunFigures] = []
    sums: list[Normal | None] = []
    detail: Detail | None = None
    for run in item.runs:
        figures, detail = load_run(run, slo)
        sums.append(sums_of(detail))
        runs.append(figures if keep else add_gaps(figures, detail, slo)[0])
    return Loaded(item.name, tuple(runs), detail if keep else None, tuple(sums))


def _contrast(base: Loaded, new: Loaded, slo: str | None, floor: float | None, contrasts: int,
              figures: Sequence[Figure]) -> _Contrast:  # fmt: skip
    if base.detail is not None and new.detail is not None:
        return _single(base, base.detail, new, new.detail, slo, floor)
    pairs = pairing(base.runs, new.runs)
    one, two = (base.runs, new.runs) if pairs is None else (pairs.base, pairs.new)
    deltas = replicated([run.values for run in one], [run.values for run in two], blocked=pairs is not None,
                        contrasts=contrasts, floor=floor, figures=figures)  # fmt: skip
    text = "the run is the replicate: exact permutation test over runs, p adjusted over the rows (max-T)"
    if pairs is not None:
        text = f"pairs of runs (by {pairs.by}): exact sign-flip test over pairs, p adjusted over the rows (max-T)"
    return _Contrast(base.runs, new.runs, deltas, "runs" if pairs is None else "pairs of runs", text)


def _single(base: Loaded, one: Detail, new: Loaded, two: Detail, slo: str | None, floor: float | None) -> _Contrast:
    digest = base.runs[0].meta.get("plan_digest")
    paired = pair(one, two) if digest is not None and digest == new.runs[0].meta.get("plan_digest") else None
    if paired is not None:
        sides: tuple[Side | None, Side | None] = paired[:2]
        how = f"paired by session and turn ({paired[2]:,} answers on both sides)"
    else:
        sides, how = (alone(one), alone(two)), "not paired"
    with ThreadPoolExecutor(2) as pool:  # numpy and the Parquet reader run side by side
        waiting = [pool.submit(add_gaps, item.runs[0], detail, slo, side.block if side else None,
                               side.blocks if side else 0)
                   for item, detail, side in zip((base, new), (one, two), sides, strict=True)]  # fmt: skip
        read = [item.result() for item in waiting]
    found = {}
    if sides[0] is not None and sides[1] is not None:
        whole = [replace(side, detail=item[1]) for side, item in zip(sides, read, strict=True) if side is not None]
        found = spreads(whole[0], whole[1], (read[0][2], read[1][2]), paired=paired is not None)
    else:
        how = f"too few sessions for intervals ({FEWEST_BLOCKS} are needed)"
    deltas = within_run(found, read[0][0].values, read[1][0].values, floor)
    return _Contrast((read[0][0],), (read[1][0],), deltas, "within run",
                     f"within run: block bootstrap over sessions and time, {how}")  # fmt: skip


def _lines(runs: Sequence[Sequence[RunFigures]], contrasts: Sequence[_Contrast],
           figures: Sequence[Figure]) -> tuple[Line, ...]:  # fmt: skip
    values = [[run.values for run in side] for side in runs]
    return tuple(
        Line(figure.name, figure.unit, figure.family,
             tuple(Cell(centre(figure, side), spread_of(figure, side),
                        sum(run.get(figure.name) is not None for run in side)) for side in values),
             tuple(item.deltas[figure.name] for item in contrasts))
        for figure in figures
    )  # fmt: skip


def _tiers(runs: Sequence[Sequence[RunFigures]]) -> tuple[TierLine, ...]:
    lines = (TierLine(tier, tuple(_tier_cell(side, tier) for side in runs)) for tier in TIER_CLASSES)
    return tuple(line for line in lines if any(cell.n for cell in line.cells))


def _tier_cell(side: Sequence[RunFigures], tier: str) -> TierCell:
    found = [run.tiers[tier] for run in side if tier in run.tiers]
    medians = [item.p50 for item in found if item.p50 is not None and item.p50 > 0]
    return TierCell(sum(item.n for item in found), float(np.exp(np.mean(np.log(medians)))) if medians else None)


def _mix(side: Sequence[RunFigures]) -> tuple[Slice, ...]:
    """The mean of the runs, slice by slice."""
    whole = [run.mix for run in side if run.mix]
    return tuple(
        Slice(group[0].start, group[0].end, sum(item.requests for item in group),
              *(_mean([getattr(item, name) for item in group]) for name in ("device", "host", "storage", "recomputed")))
        for group in zip(*whole, strict=True)
    )  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    known = [item for item in values if item is not None]
    return float(np.mean(known)) if known else None


def _footnotes(runs: Sequence[Sequence[RunFigures]]) -> list[str]:
    counts = [len(side) for side in runs]
    if max(counts) == 1:
        return [f"one run a side: intervals and p tell what differs between these two runs, not what will differ in "
                f"the next ones; for a verdict measure at least {runs_needed()} runs a side, interleaved"]  # fmt: skip
    notes: list[str] = []
    for n in sorted(set(counts[1:])):
        least = smallest_p(counts[0], n) * (len(counts) - 1)
        if least >= ALPHA:
            notes.append(f"{counts[0]} v {n} runs: the smallest p possible is {min(1, least):.2g}, so no verdict can "
                         f"be reached whatever the difference; {runs_needed()} runs a side are the fewest")  # fmt: skip
    if any(_apart(runs[0], side) for side in runs[1:]):
        notes.append("all runs of one side were made before all of the other: whatever drifted in between counts as a "
                     "difference; interleave the runs (A B B A ...)")  # fmt: skip
    return notes


def _apart(base: Sequence[RunFigures], new: Sequence[RunFigures]) -> bool:
    starts = [[run.meta.get("started_wall_ns") for run in side] for side in (base, new)]
    known = [[item for item in side if isinstance(item, int)] for side in starts]
    return all(known) and (max(known[0]) < min(known[1]) or max(known[1]) < min(known[0]))
