"""A comparison for people and programs: text, markdown, CSV, JSON (schema: `compare`)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import msgspec
from tabulate import tabulate

from hicache_bench.analysis.compare import Cell, Comparison, Line
from hicache_bench.analysis.decompose import Cost, Estimate
from hicache_bench.analysis.figures import FIGURE
from hicache_bench.analysis.measured import Slice
from hicache_bench.analysis.text import SIMULATED, format_figure
from hicache_bench.analysis.verdict import Delta
from hicache_bench.errors import UsageError
from hicache_bench.units import format_count, format_ns, format_percent

WORDS = {"better": "better", "worse": "worse", "same": "same", "unclear": "~", None: ""}
_CHARS = 40

Table = Callable[[Sequence[Sequence[str]], Sequence[str]], str]


def render_json(found: Sequence[Comparison]) -> str:
    """One object for one comparison, else `{"comparisons": [...]}`; absent and unbounded numbers are null."""
    whole = found[0] if len(found) == 1 else {"comparisons": list(found)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def render_text(found: Sequence[Comparison], metrics: Sequence[str] = ()) -> str:
    """Tables for a terminal; rows that are absent or 0 on all sides, or repeat another, are left out."""
    return "\n\n".join(_sections(item, metrics, _plain, lambda title: title) for item in found)


def render_markdown(found: Sequence[Comparison], metrics: Sequence[str] = ()) -> str:
    """The same as GitHub markdown."""
    return "\n\n".join(_sections(item, metrics, _github, lambda title: f"### {title}") for item in found)


def render_csv(found: Sequence[Comparison], metrics: Sequence[str] = ()) -> str:
    """One line for each shown row and NEW set; plain numbers in the unit of the row, empty where absent."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("title", "metric", "unit", "family", "base_set", "new_set", "base", "new", "change", "low", "high",
                     "p", "p_rank", "n_base", "n_new", "basis", "verdict", "within"))  # fmt: skip
    for item in found:
        for line in shown(item, metrics):
            for number, delta in enumerate(line.deltas, 1):
                writer.writerow((
                    item.title, line.metric, line.unit, line.family, item.sets[0].name, item.sets[number].name,
                    line.cells[0].value, line.cells[number].value, delta.size, delta.low, delta.high, delta.p,
                    delta.p_rank, delta.n_base, delta.n_new, delta.basis, delta.verdict, delta.within,
                ))  # fmt: skip
    return out.getvalue().rstrip("\n")


def shown(found: Comparison, metrics: Sequence[str] = ()) -> list[Line]:
    """The rows worth showing that fit one of the `metrics` (globs, such as `ttft*`; none: all).

    Raises UsageError for a glob that fits no row there is.
    """
    for text in metrics:
        if not any(fnmatchcase(name, text) for name in FIGURE):
            raise UsageError(f"--metric {text!r} fits no row; there are {', '.join(FIGURE)}")
    values = {line.metric: [cell.value for cell in line.cells] for line in found.lines}
    return [
        line for line in found.lines
        if any(cell.value for cell in line.cells)
        and (not metrics or any(fnmatchcase(line.metric, text) for text in metrics))
        and not ((twin := FIGURE[line.metric].twin) and values.get(twin) == values[line.metric])
    ]  # fmt: skip


def _sections(found: Comparison, metrics: Sequence[str], table: Table, heading: Callable[[str], str]) -> str:
    parts = [
        heading(found.title) if found.title else "",
        _head(found),
        "\n".join(f"! {text}" for text in found.cautions),
        _figures(found, metrics, table),
        _settings(found, table),
        _tiers(found, table),
        _costs(found, table),
        _mix(found, table),
        "\n".join(f"* {text}" for text in found.footnotes),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(found: Comparison) -> str:
    lines = [SIMULATED] if found.origin == "simulated" else []
    for number, item in enumerate(found.sets):
        runs = item.runs[0] if item.n == 1 else f"{item.n} runs"
        name = "" if item.n == 1 and item.name == item.runs[0] else f"{item.name}: "
        lines.append(f"{'new ' if number else 'base'} {name}{runs}, {format_count(item.requests)} attempts")
    return "\n".join([*lines, found.basis_text])


def _names(found: Comparison) -> list[str]:
    """Short column names: run names are too long for one."""
    names = [item.name for item in found.sets]
    return ["base", "new"] if len(names) == 2 else names


def _figures(found: Comparison, metrics: Sequence[str], table: Table) -> str:
    several = len(found.sets) > 2
    names = _names(found)
    headers = ["figure", names[0]]
    for number, name in enumerate(names[1:], 1):
        mark = f" [{number}]" if several else ""
        headers += [name, f"change{mark}", "95 % interval", "p", "n", "verdict"]
    lines = shown(found, metrics)
    return table([_row(line) for line in lines], headers) if lines else ""


def _row(line: Line) -> list[str]:
    cells = [line.metric, _cell(line, line.cells[0])]
    for cell, delta in zip(line.cells[1:], line.deltas, strict=True):
        cells += [_cell(line, cell), _change(line, delta.size), _interval(line, delta), _p(delta.p),
                  f"{delta.n_base} v {delta.n_new}", _word(delta)]  # fmt: skip
    return cells


def _cell(line: Line, cell: Cell) -> str:
    text = format_figure(line.unit, cell.value)
    if cell.spread is None:
        return text
    return f"{text} ± {100 * cell.spread:.1f}{'' if line.unit == 'ratio' else '%'}"


def _change(line: Line, size: float | None) -> str:
    if size is None:
        return "-"
    return f"{100 * size:+.2f} pt" if line.unit == "ratio" else f"{100 * size:+.1f}%"


def _interval(line: Line, delta: Delta) -> str:
    if delta.low is None or delta.high is None:
        return "-"
    return f"{_change(line, delta.low)} .. {_change(line, delta.high)}"


def _p(p: float | None) -> str:
    return "-" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001"


def _word(delta: Delta) -> str:
    word = WORDS[delta.verdict]
    return f"{word} ({delta.within} within run)" if delta.within else word


def _settings(found: Comparison, table: Table) -> str:
    rows = [[("asked: " if item.asked else "") + item.name, *(_clip(value) for value in item.values)]
            for item in found.settings]  # fmt: skip
    return table(rows, ["server setting", *_names(found)]) if rows else ""


def _clip(text: str | None) -> str:
    text = "-" if text is None else text
    return text if len(text) <= _CHARS else text[: _CHARS - 1] + "…"


def _tiers(found: Comparison, table: Table) -> str:
    rows = []
    for line in found.tiers:
        base = line.cells[0].p50_ns
        row = [line.tier]
        for number, cell in enumerate(line.cells):
            row += [format_count(cell.n), format_ns(cell.p50_ns)]
            if number:
                known = base and cell.p50_ns
                row.append(f"{100 * (cell.p50_ns / base - 1):+.1f}%" if known and cell.p50_ns and base else "-")
        rows.append(row)
    headers = ["ttft by tier"]
    for number, name in enumerate(_names(found)):
        headers += ["n", f"{name} p50", *(["change"] if number else [])]
    return table(rows, headers) if rows else ""


def _costs(found: Comparison, table: Table) -> str:
    rows = [[f"{name}: {cost.source}", format_count(cost.requests), _estimate(cost.ms_per_1k, "ms"),
             _estimate(cost.fixed_ms, "ms"), _pays(cost)]
            for name, costs in zip(_names(found), found.costs, strict=True) for cost in costs
            if cost.requests]  # fmt: skip
    return table(rows, ["ttft cost (estimate)", "n", "per 1k tokens", "fixed", "loading pays from"]) if rows else ""


def _estimate(found: Estimate | None, unit: str) -> str:
    return "-" if found is None else f"{found.value:.3g} {unit} ({found.low:.3g} .. {found.high:.3g})"


def _pays(cost: Cost) -> str:
    return cost.why or ("-" if cost.break_even_tokens is None else _estimate(cost.break_even_tokens, "tok"))


def _mix(found: Comparison, table: Table) -> str:
    rows = []
    for side, slices in zip(_names(found), found.mix, strict=True):
        if not any(part.device or part.host or part.storage for part in slices):
            continue
        rows += [[f"{side}: {name}", *(_share(part, name) for part in slices)]
                 for name in ("device", "host", "storage", "recomputed")
                 if any(getattr(part, name) for part in slices)]  # fmt: skip
    if not rows:
        return ""
    ends = next(slices for slices in found.mix if slices)
    return table(rows, ["prompt tokens over time", *(f"to {100 * part.end:.0f}%" for part in ends)])


def _share(part: Slice, name: str) -> str:
    share: float | None = getattr(part, name)
    return format_percent(share)


def _plain(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    return _tabulated(rows, headers, "simple")


def _github(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    safe = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return _tabulated(safe, [name.replace("|", "\\|") for name in headers], "github")


def _tabulated(rows: Sequence[Sequence[str]], headers: Sequence[str], style: str) -> str:
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers, tablefmt=style, colalign=align, disable_numparse=True)
