"""`gate.toml`: what must hold before NEW passes.

    min_runs = 5                    # a side; default 4, the fewest that can give a verdict
    allow = ["loop_lag"]            # caution codes that do not spoil a run here

    [metrics."ttft p50"]            # any row of `compare` but the client's
    worse_by = "5%"                 # relative to BASE; "2pt" (percentage points) for ratios
    max = "300ms"                   # or min: absolute, on NEW; "40%" for ratios, plain numbers for rates

    [[slo]]
    objective = "ttft<200ms,itl<50ms"
    min_share = "99%"               # of all requests of NEW
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_bench.analysis.figures import FIGURE, Figure
from hicache_bench.analysis.slo import parse_slo
from hicache_bench.errors import UsageError
from hicache_bench.units import parse_duration_ns
from hicache_bench.workload.decode import read_toml

MIN_RUNS = 4
_TOP = ("min_runs", "allow", "metrics", "slo")
_LIMITS = ("worse_by", "max", "min")
_SLO = ("objective", "min_share")


@dataclass(frozen=True, slots=True)
class Limit:
    """One threshold: `worse_by` (relative, or in points for a ratio), `max` or `min` (in the unit of the row) of a
    row, or the least share of requests that keep `slo`. `text` is the threshold as written."""

    metric: str
    kind: str
    value: float
    text: str
    slo: str | None = None

    @property
    def name(self) -> str:
        return f"{self.slo or self.metric} {self.kind} {self.text}"


@dataclass(frozen=True, slots=True)
class GateSpec:
    """A whole gate.toml."""

    limits: tuple[Limit, ...]
    min_runs: int
    allow: tuple[str, ...]


def load_gate(path: Path) -> GateSpec:
    """Read a gate.toml. Raises UsageError naming the file, the key and what is allowed."""
    found = read_toml(path)
    try:
        return parse_gate(found)
    except UsageError as exc:
        raise UsageError(f"{path}: {exc}") from None


def parse_gate(found: Mapping[str, Any]) -> GateSpec:
    """The decoded TOML as a GateSpec; errors as `load_gate`, without the file."""
    _only(found, _TOP, "the file")
    runs, allow = found.get("min_runs", MIN_RUNS), found.get("allow", [])
    if not isinstance(runs, int) or isinstance(runs, bool) or runs < 2:
        raise UsageError(f"min_runs = {runs!r}: a whole number of at least 2")
    if not isinstance(allow, list) or not all(isinstance(code, str) for code in allow):
        raise UsageError(f"allow = {allow!r}: a list of caution codes, such as [\"loop_lag\"]")
    limits = [*_metrics(found.get("metrics", {})), *_objectives(found.get("slo", []))]
    if not limits:
        raise UsageError('no threshold: write [metrics."ttft p50"] with worse_by = "5%", or [[slo]]')
    return GateSpec(tuple(limits), runs, tuple(allow))


def parse_share(text: Any, where: str) -> float:
    """`"5%"` → 0.05; plain numbers are refused, 5 could be either."""
    return _scaled(text, "%", where, "5%")


def _metrics(found: Any) -> list[Limit]:
    if not isinstance(found, Mapping):
        raise UsageError('metrics: tables, such as [metrics."ttft p50"]')
    allowed = [name for name, figure in FIGURE.items() if figure.family != "client"]
    limits: list[Limit] = []
    for name, entry in found.items():
        where = f'metrics."{name}"'
        if name not in allowed:
            raise UsageError(f"{where}: no such metric; allowed: {', '.join(allowed)}")
        if not isinstance(entry, Mapping) or not entry:
            raise UsageError(f"{where}: a table with one or more of {', '.join(_LIMITS)}")
        _only(entry, _LIMITS, where)
        limits += [_limit(FIGURE[name], kind, text, f"{where}.{kind}") for kind, text in entry.items()]
    return limits


def _limit(figure: Figure, kind: str, text: Any, where: str) -> Limit:
    if kind == "worse_by":
        points = figure.scale == "points"
        amount = _scaled(text, "pt" if points else "%", where, "2pt" if points else "5%")
    else:
        amount = _absolute(figure, text, where)
    return Limit(figure.name, kind, amount, str(text))


def _absolute(figure: Figure, text: Any, where: str) -> float:
    if figure.unit == "ratio":
        return parse_share(text, where)
    if figure.unit == "ns":
        if not isinstance(text, str):
            raise UsageError(f"{where} = {text!r}: a duration, such as \"300ms\"")
        try:
            return float(parse_duration_ns(text))
        except (UsageError, OverflowError) as exc:
            raise UsageError(f"{where}: {exc}") from None
    if isinstance(text, bool) or not isinstance(text, int | float) or not 0 <= text < float("inf"):
        raise UsageError(f"{where} = {text!r}: a number in {figure.unit}")
    return float(text)


def _objectives(found: Any) -> list[Limit]:
    if not isinstance(found, list):
        raise UsageError("slo: a list of tables; write [[slo]]")
    limits: list[Limit] = []
    for number, entry in enumerate(found, 1):
        where = f"slo[{number}]"
        if not isinstance(entry, Mapping):
            raise UsageError(f"{where}: a table; write [[slo]]")
        _only(entry, _SLO, where)
        if missing := [key for key in _SLO if key not in entry]:
            raise UsageError(f"{where}: {missing[0]} is missing; needed: {', '.join(_SLO)}")
        if not isinstance(entry["objective"], str):
            raise UsageError(f"{where}.objective: text, such as \"ttft<200ms\"")
        try:
            parse_slo(entry["objective"])
        except UsageError as exc:
            raise UsageError(f"{where}.objective: {str(exc).removeprefix('--slo: ')}") from None
        share = parse_share(entry["min_share"], f"{where}.min_share")
        limits.append(Limit("goodput", "min", share, str(entry["min_share"]), entry["objective"]))
    return limits


def _only(found: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    if unknown := [key for key in found if key not in allowed]:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; allowed: {', '.join(allowed)}")


def _scaled(text: Any, unit: str, where: str, example: str) -> float:
    number = text.strip().removesuffix(unit).strip() if isinstance(text, str) and text.strip().endswith(unit) else None
    try:
        amount = float(number) if number is not None else -1.0
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 100_000:
        raise UsageError(f"{where} = {text!r}: write it like {example!r}")
    return amount / 100
