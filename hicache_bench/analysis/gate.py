"""Pass, fail or inconclusive: did NEW get worse than BASE, or worse than it may be?

The rows with `worse_by` are the family of the test: p is adjusted over them alone. Such a check fails when the
row is significantly worse (p below 0.05) *and* worse by more than the limit; it passes when the whole 95 %
interval is within the limit; anything between is inconclusive, and the reason says so. `max`, `min` and objectives
hold against the 95 % interval (Student's t) of NEW's runs: wholly inside passes, wholly outside fails. Missing or
spoiled evidence (a figure absent in a run, too few runs, a run that is not complete, a client that was too slow)
never passes, and never blames the server either: the gate is inconclusive then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hicache_bench.analysis.compare import read_and_compare
from hicache_bench.analysis.figures import FIGURE, Figure
from hicache_bench.analysis.gatefile import GateSpec, Limit
from hicache_bench.analysis.measured import RunFigures, add_gaps, load_run
from hicache_bench.analysis.replicates import ALPHA, CONFIDENCE
from hicache_bench.analysis.sets import RunSet
from hicache_bench.analysis.text import format_figure
from hicache_bench.analysis.verdict import Delta, Values, pairing, replicated
from hicache_bench.errors import EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_OK

Result = Literal["pass", "fail", "inconclusive"]
EXITS: dict[Result, int] = {"pass": EXIT_OK, "fail": EXIT_FAILED, "inconclusive": EXIT_INCONCLUSIVE}

SPOILERS = ("schedule_lag", "loop_lag", "client_cpu", "recorder_backlog", "unreadable", "no_rows", "all_failed")
"""Caution codes that make a run no evidence; so does any status but complete."""


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold (or one piece of evidence) and what became of it."""

    name: str
    result: Result
    reason: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """`result` is fail when any threshold failed on sound evidence, else inconclusive when any check is, else
    pass. `evidence` lists what makes the runs unfit to judge by; any entry makes the gate inconclusive."""

    result: Result
    base: str
    new: str
    checks: tuple[Check, ...]
    evidence: tuple[str, ...]
    cautions: tuple[str, ...]
    footnotes: tuple[str, ...]


def gate(base: RunSet, new: RunSet, spec: GateSpec, *, force: bool = False) -> GateResult:
    """Judge NEW by BASE. Raises UsageError where the sets are not comparable, unless `force`."""
    found, (before, after) = read_and_compare((base, new), force=force)
    deltas = _deltas(before, after, spec)
    objectives = dict.fromkeys(limit.slo for limit in spec.limits if limit.slo is not None)
    kept = {slo: [_with_objective(run, slo) for run in after] for slo in objectives}
    evidence = tuple(_evidence(base.name, before, spec)) + tuple(_evidence(new.name, after, spec))
    checks = tuple(
        _relative(limit, deltas[limit.metric]) if limit.kind == "worse_by" else
        _absolute(limit, [run.values for run in after] if limit.slo is None else kept[limit.slo])
        for limit in spec.limits
    )  # fmt: skip
    return GateResult(_result(checks, evidence), base.name, new.name, checks, evidence, found.cautions, found.footnotes)


def _result(checks: Sequence[Check], evidence: Sequence[str]) -> Result:
    results = {check.result for check in checks}
    if evidence:
        return "inconclusive"
    order: tuple[Result, ...] = ("fail", "inconclusive")
    return next((item for item in order if item in results), "pass")


def _deltas(base: Sequence[RunFigures], new: Sequence[RunFigures], spec: GateSpec) -> Mapping[str, Delta]:
    names = [limit.metric for limit in spec.limits if limit.kind == "worse_by"]
    figures = [replace(FIGURE[name], family="primary") for name in dict.fromkeys(names)]
    pairs = pairing(base, new)
    one, two = (base, new) if pairs is None else (pairs.base, pairs.new)
    return replicated([run.values for run in one], [run.values for run in two], blocked=pairs is not None,
                      figures=figures)  # fmt: skip


def _with_objective(run: RunFigures, slo: str) -> Values:
    figures, detail = load_run(run.run, slo)
    return add_gaps(figures, detail, slo)[0].values


def _evidence(name: str, runs: Sequence[RunFigures], spec: GateSpec) -> Iterator[str]:
    if len(runs) < spec.min_runs:
        yield f"{name} has {len(runs)} runs, min_runs is {spec.min_runs}"
    for run in runs:
        codes = [item for item in run.cautions if item.code not in spec.allow]
        if run.status != "complete" and f"status_{run.status}" not in spec.allow:
            yield f"{run.name} is {run.status}"
        yield from (f"{run.name}: {item.text} (code {item.code})" for item in codes if item.code in SPOILERS)


def _relative(limit: Limit, delta: Delta) -> Check:
    return Check(limit.name, *_worse_by(FIGURE[limit.metric], limit, delta))


def _worse_by(figure: Figure, limit: Limit, delta: Delta) -> tuple[Result, str]:
    if delta.size is None or delta.p is None:
        return "inconclusive", delta.why or "no difference between the sets is known"
    sign = 1 if figure.better == "lower" else -1
    worse = sign * delta.size
    text = f"{_amount(figure, delta.size)}, p {delta.p:.3f}"
    if delta.p < ALPHA and worse > limit.value:
        return "fail", f"{text}: worse by more than {limit.text}"
    if delta.low is None or delta.high is None:
        return "inconclusive", f"{text}: no interval with so few runs"
    text = f"{text}, 95 % interval {_amount(figure, delta.low)} .. {_amount(figure, delta.high)}"
    most = max(sign * delta.low, sign * delta.high)
    if most <= limit.value:
        return "pass", f"{text}: worse by no more than {limit.text}"
    return "inconclusive", f"{text}: could be worse by more than {limit.text}; measure more runs"


def _absolute(limit: Limit, runs: Sequence[Values]) -> Check:
    return Check(limit.name, *_beyond(FIGURE[limit.metric], limit, [run.get(limit.metric) for run in runs]))


def _beyond(figure: Figure, limit: Limit, values: Sequence[float | None]) -> tuple[Result, str]:
    known = [item for item in values if item is not None]
    if len(known) < len(values):
        return "inconclusive", f"absent in {len(values) - len(known)} of {len(values)} runs"
    if len(known) < 2:
        return "inconclusive", f"{format_figure(figure.unit, known[0])} in one run: no interval"
    low, high = _interval(known)
    text = f"{format_figure(figure.unit, float(np.mean(known)))} (95 % interval {format_figure(figure.unit, low)} .. " \
           f"{format_figure(figure.unit, high)})"  # fmt: skip
    inside, outside = (high <= limit.value, low > limit.value) if limit.kind == "max" else (
        low >= limit.value, high < limit.value)  # fmt: skip
    if inside:
        return "pass", f"{text} is within {limit.kind} {limit.text}"
    return ("fail", f"{text} is beyond {limit.kind} {limit.text}") if outside else (
        "inconclusive", f"{text} is on both sides of {limit.kind} {limit.text}; measure more runs")  # fmt: skip


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean of at least two runs."""
    from scipy.stats import t

    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    middle = float(np.mean(values))
    return middle - half, middle + half


def _amount(figure: Figure, size: float) -> str:
    return f"{100 * size:+.2f} pt" if figure.scale == "points" else f"{100 * size:+.1f}%"
