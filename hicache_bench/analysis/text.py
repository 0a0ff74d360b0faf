"""The summary of a run as text tables: spoilers first, a unit on every number, `-` where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from hicache_bench.analysis.metrics import BY_NAME
from hicache_bench.analysis.summary import RunSummary, TierUse, load_text
from hicache_bench.stats import Summary
from hicache_bench.units import format_count, format_ns, format_percent

SIMULATED = "SIMULATED server: these figures are not measurements of real hardware"
_MESSAGE_CHARS = 100
_RATES = (("requests", "requests_per_s"), ("input", "input_per_s"), ("output", "output_per_s"),
          ("total", "total_per_s"))  # fmt: skip
_ALWAYS = ("ttft", "itl", "tpot", "e2e")


def render(found: RunSummary) -> str:
    """All sections that have something to say."""
    sections = [
        _head(found), _cautions(found), _outcomes(found), _errors(found), _latency(found), _throughput(found),
        _by_tier(found), _tiers(found), _goodput(found), _reconcile(found),
    ]  # fmt: skip
    return "\n\n".join(section for section in sections if section)


def format_figure(unit: str, number: float | None) -> str:
    """A figure of a metric in its unit, scaled for people."""
    if number is None:
        return "-"
    return _FORMATS[unit](number)


_FORMATS: dict[str, Callable[[float], str]] = {
    "ns": format_ns,
    "ratio": format_percent,
    "1/s": lambda number: f"{number:,.2f} /s",
    "tok/s": lambda number: f"{number:,.0f} tok/s",
    "tokens": lambda number: f"{format_count(number)} tok",
    "requests": lambda number: f"{format_count(number)} req",
}


def table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """Left column names, the rest right-aligned; numbers stay the text they are."""
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers, tablefmt="simple", colalign=align if rows else None, disable_numparse=True)


def _head(found: RunSummary) -> str:
    meta = found.meta
    server: Mapping[str, Any] = found_server if isinstance(found_server := meta.get("server"), Mapping) else {}
    facts = [
        f"run {found.run}", f"status {found.status}", f"workload {_or(meta.get('workload'))}",
        f"plan {_or(meta.get('plan_digest'))}", f"loop {_or(meta.get('loop'))} {load_text(meta) or ''}".rstrip(),
        f"start {_or(meta.get('start_state'))}", f"seed {_or(meta.get('seed'))}",
    ]  # fmt: skip
    lines = [SIMULATED] if meta.get("origin") == "simulated" else []
    lines += [" · ".join(facts), f"server {_or(server.get('model'))} · SGLang {_or(server.get('version'))}"]
    if isinstance(tags := meta.get("tags"), Mapping) and tags:
        lines.append("tags " + ", ".join(f"{key}={text}" for key, text in tags.items()))
    return "\n".join(lines)


def _or(item: Any) -> str:
    return "-" if item is None else str(item)


def _cautions(found: RunSummary) -> str:
    return "\n".join(f"! {item.text}" + (f"; {item.advice}" if item.advice else "") for item in found.cautions)


def _outcomes(found: RunSummary) -> str:
    counts = ", ".join(f"{name} {format_count(n)}" for name, n in found.outcomes.items()) or "none"
    return f"attempts {format_count(found.attempts)}: {counts}"


def _errors(found: RunSummary) -> str:
    rows = [[line.outcome, format_count(line.count), _clip(line.message)] for line in found.errors]
    if not rows:
        return ""
    return tabulate(rows, ["outcome", "count", "message"], tablefmt="simple", disable_numparse=True,
                    colalign=("left", "right", "left"))  # fmt: skip


def _clip(message: str) -> str:
    line = " ".join(message.split()) or "-"
    return line if len(line) <= _MESSAGE_CHARS else line[: _MESSAGE_CHARS - 1] + "…"


def _spread(name: str, found: Summary) -> list[str]:
    figures = (found.p50, found.p90, found.p99, found.mean, found.max)
    return [name, format_count(found.n), *map(format_ns, figures)]


def _latency(found: RunSummary) -> str:
    rows = [_spread(name, item) for name, item in found.latency.items() if item.n or name in _ALWAYS]
    return table(rows, ["latency", "n", "p50", "p90", "p99", "mean", "max"])


def _throughput(found: RunSummary) -> str:
    rows = []
    for title, name in _RATES:
        unit, steady = BY_NAME[name].unit, found.figures[f"{name}_steady"]
        rows.append([title, format_figure(unit, found.figures[name]), format_figure(unit, steady)])
    spans = [format_ns(window.duration_ns) if window else "none" for window in (found.window, found.steady)]
    lines = [table(rows, ["throughput", f"whole ({spans[0]})", f"steady ({spans[1]})"])]
    if found.steady is not None:
        lines.append(f"steady: {found.steady.how}")
    return "\n".join(lines)


def _by_tier(found: RunSummary) -> str:
    rows = [_spread(name, item) for name, item in found.ttft_by_tier.items()]
    return table(rows, ["ttft by tier", "n", "p50", "p90", "p99", "mean", "max"]) if rows else ""


def _tiers(found: RunSummary) -> str:
    if not found.attempts:
        return ""
    # With one stream only, its line would repeat the first one.
    uses = found.tiers[:1] if len(found.tiers) == 2 else found.tiers
    headers = ["stream", "req", "prompt tok", "device", "host", "storage", "no tier", "hit", "ideal hit", "tiers said"]
    return table([_tier_row(use) for use in uses], headers)


def _tier_row(use: TierUse) -> list[str]:
    def part(tokens: float | None) -> str:
        if tokens is None:
            return "-"
        share = tokens / use.prompt_tokens if use.prompt_tokens else None
        return f"{format_count(tokens)} tok ({format_percent(share)})"

    parts = map(part, (use.device_tokens, use.host_tokens, use.storage_tokens, use.unattributed_tokens))
    shares = map(format_percent, (use.hit_ratio, use.ideal_hit_ratio, use.coverage))
    return [use.stream, format_count(use.requests), format_count(use.prompt_tokens), *parts, *shares]


def _goodput(found: RunSummary) -> str:
    good = found.goodput
    if good is None:
        return ""
    return (f"goodput {good.slo}: {format_count(good.met)} of {format_count(good.n)} requests "
            f"({format_percent(good.share)}), {format_figure('1/s', good.per_s)}")  # fmt: skip


def _reconcile(found: RunSummary) -> str:
    rows = [
        [_or(check.get("tier")), _tokens(check.get("client_tokens")), _tokens(check.get("server_tokens")),
         " ".join(filter(None, (_or(check.get("verdict")), check.get("reason") and f"({check['reason']})")))]
        for check in found.reconcile if isinstance(check, Mapping)
    ]  # fmt: skip
    if not rows:
        return ""
    return tabulate(rows, ["all phases", "answers", "server counters", "verdict"], tablefmt="simple",
                    disable_numparse=True, colalign=("left", "right", "right", "left"))  # fmt: skip


def _tokens(number: Any) -> str:
    return f"{format_count(number)} tok" if isinstance(number, int | float) else "-"
