"""Two runs side by side: point estimates, refused where the runs are not comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hicache_bench.analysis.metrics import LATENCIES, METRICS
from hicache_bench.analysis.summary import RunSummary, summarize
from hicache_bench.analysis.text import SIMULATED, format_figure, table
from hicache_bench.errors import StoreError, UsageError
from hicache_bench.stats import ratio
from hicache_bench.store.rundir import RunDir

POINT_ESTIMATE = "point estimates from one run a side: differences may be noise"

_MUST_AGREE = (("plan_digest", "plan digest"), ("loop", "loop kind"), ("origin", "origin"),
               ("start_state", "start state"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of both runs. `change` is (new - base) / base; `arrow` is better, worse, same, or None where
    a side is absent."""

    metric: str
    unit: str
    base: float | None
    new: float | None
    change: float | None
    arrow: str | None


@dataclass(frozen=True, slots=True)
class FlagChange:
    """A server setting that differs; None where a side does not have it."""

    flag: str
    base: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """`footnotes` name what makes the comparison doubtful; `cautions` are those of the runs themselves."""

    base: str
    new: str
    origin: str | None
    lines: tuple[Line, ...]
    flags: tuple[FlagChange, ...]
    cautions: tuple[str, ...]
    footnotes: tuple[str, ...]


def compare(base: RunDir, new: RunDir, *, force: bool = False) -> Comparison:
    """Compare two runs.

    Raises UsageError naming every difference in plan digest, loop kind, origin or start state, unless
    `force`, which turns them into footnotes.
    """
    one, two = summarize(base.path), summarize(new.path)
    differences = _differences(one.meta, two.meta)
    if differences and not force:
        raise UsageError(f"{one.run} and {two.run} are not comparable: {'; '.join(differences)}; "
                         "use --force to compare them all the same")  # fmt: skip
    return Comparison(
        base=one.run,
        new=two.run,
        origin=one.meta.get("origin"),
        lines=_lines(one, two),
        flags=_flags(base, new),
        cautions=tuple(f"{side}: {item.text}" for side, run in (("base", one), ("new", two)) for item in run.cautions),
        footnotes=(POINT_ESTIMATE, *(f"forced: {text}" for text in differences)),
    )


def render_json(found: Comparison) -> str:
    """The comparison as JSON; absent figures are null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def render_text(found: Comparison) -> str:
    """The comparison as text; figures absent on both sides are left out."""
    rows = [
        [line.metric, format_figure(line.unit, line.base), format_figure(line.unit, line.new), _change(line),
         line.arrow or "-"]
        for line in found.lines if not (line.base is None and line.new is None)
    ]  # fmt: skip
    head = [SIMULATED] if found.origin == "simulated" else []
    parts = ["\n".join([*head, f"base {found.base}", f"new  {found.new}"])]
    parts.append("\n".join(f"! {text}" for text in found.cautions))
    parts.append(table(rows, ["figure", "base", "new", "change", ""]))
    if found.flags:
        flags = [[item.flag, _short(item.base), _short(item.new)] for item in found.flags]
        parts.append(table(flags, ["server setting", "base", "new"]))
    parts.append("\n".join(f"* {text}" for text in found.footnotes))
    return "\n\n".join(part for part in parts if part)


def _differences(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    found = []
    for key, title in _MUST_AGREE:
        if base.get(key) != new.get(key):
            found.append(f"{title} {base.get(key)} against {new.get(key)}")
        elif base.get(key) is None:
            found.append(f"{title} unknown in both")
    return found


def _lines(base: RunSummary, new: RunSummary) -> tuple[Line, ...]:
    lines = [
        _line(f"{metric.name} {point}", metric.unit, metric.better, getattr(base.latency[metric.name], point),
              getattr(new.latency[metric.name], point))
        for metric in LATENCIES for point in ("p50", "p99")
    ]  # fmt: skip
    lines += [
        _line(metric.name, metric.unit, metric.better, base.figures[metric.name], new.figures[metric.name])
        for metric in METRICS if metric.scope == "run"
    ]  # fmt: skip
    return tuple(lines)


def _line(name: str, unit: str, better: str, base: float | None, new: float | None) -> Line:
    if base is None or new is None:
        return Line(name, unit, base, new, None, None)
    arrow = "same" if new == base else "better" if (new < base) == (better == "lower") else "worse"
    return Line(name, unit, base, new, ratio(new - base, base), arrow)


def _change(line: Line) -> str:
    return "-" if line.change is None else f"{100 * line.change:+.1f}%"


def _flags(base: RunDir, new: RunDir) -> tuple[FlagChange, ...]:
    one, two = _server_flags(base), _server_flags(new)
    names = sorted(set(one) | set(two))
    return tuple(FlagChange(name, one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name))


def _server_flags(run: RunDir) -> Mapping[str, Any]:
    try:
        server = run.read_json("server.json")
    except StoreError:
        return {}
    flags = server.get("flags") if isinstance(server, Mapping) else None
    return flags if isinstance(flags, Mapping) else {}


def _short(item: Any) -> str:
    text = "-" if item is None else item if isinstance(item, str) else msgspec.json.encode(item).decode()
    return text if len(text) <= 40 else text[:39] + "…"
