"""A run in figures, computed anew from its rows: nothing derived is ever stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hicache_bench.analysis.cautions import Caution, cautions
from hicache_bench.analysis.metrics import (
    LATENCIES,
    METRICS,
    TIERS,
    attributed,
    samples,
    tier_said,
    total,
    value,
)
from hicache_bench.analysis.rows import LoopKind, Rows, rows_of
from hicache_bench.analysis.slo import Goodput, goodput, parse_slo
from hicache_bench.analysis.tiers import ttft_by_tier
from hicache_bench.analysis.windows import Window, measured, steady
from hicache_bench.errors import UsageError
from hicache_bench.records import OUTCOMES
from hicache_bench.stats import Summary, ratio, summary
from hicache_bench.store.reader import read_attempts, skipped_files
from hicache_bench.store.rundir import RunDir
from hicache_bench.units import format_ns

TOP_ERRORS = 10


@dataclass(frozen=True, slots=True)
class TierUse:
    """Where the prompt tokens of ok requests came from; sums in tokens, None where nothing was said."""

    stream: str
    requests: int
    prompt_tokens: float | None
    cached_tokens: float | None
    device_tokens: float | None
    host_tokens: float | None
    storage_tokens: float | None
    unattributed_tokens: float | None
    coverage: float | None
    hit_ratio: float | None
    ideal_hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """How often attempts ended with this outcome and message."""

    outcome: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything `show` prints. `latency` and `ttft_by_tier` in nanoseconds; `figures` are the run metrics by
    name in the units of `analysis.metrics.METRICS`; absent is None throughout."""

    run: str
    status: str
    meta: dict[str, Any]
    cautions: tuple[Caution, ...]
    attempts: int
    outcomes: dict[str, int]
    latency: dict[str, Summary]
    figures: dict[str, float | None]
    window: Window | None
    steady: Window | None
    tiers: tuple[TierUse, ...]
    ttft_by_tier: dict[str, Summary]
    goodput: Goodput | None
    errors: tuple[ErrorLine, ...]
    token_sources: dict[str, int]
    reconcile: list[dict[str, Any]] = field(default_factory=list)


def load_rows(run: RunDir) -> tuple[Rows, list[str]]:
    """(measured rows, unreadable files) of a run, with the window and loop its run.json names."""
    meta, table = run.meta, read_attempts(run.path)
    load = meta.get("load")
    rows = rows_of(
        table,
        start_ns=_int(meta.get("measure_start_ns")),
        end_ns=_int(meta.get("measure_end_ns")),
        loop=loop_kind(meta),
        concurrency=_int(load.get("concurrency")) if isinstance(load, Mapping) else None,
    )
    return rows, skipped_files(table)


def loop_kind(meta: Mapping[str, Any]) -> LoopKind | None:
    """open, closed, or None where run.json does not say."""
    kind = meta.get("loop")
    return "open" if kind == "open" else "closed" if kind == "closed" else None


def load_text(meta: Mapping[str, Any]) -> str | None:
    """The load in a few characters, as it is asked for: `c=8 n=400`, `r=8/s poisson 60s`; None where not stored."""
    load = meta.get("load")
    if not isinstance(load, Mapping):
        return None
    concurrency, rate, arrival = _int(load.get("concurrency")), load.get("rate"), load.get("arrival")
    if concurrency is not None:
        parts = [f"c={concurrency}"]
    elif load.get("staged"):
        parts = ["stages", str(arrival)]
    elif arrival == "trace":
        parts = ["recorded times"]
    else:
        parts = [f"r={rate:g}/s", str(arrival)] if isinstance(rate, int | float) else []
    duration, requests = _int(load.get("duration_ns")), _int(load.get("requests"))
    parts += [f"d={format_ns(duration)}"] if duration is not None else []
    parts += [f"n={requests}"] if requests is not None else []
    return " ".join(parts) or None


def summarize(run_dir: Path, slo: str | None = None) -> RunSummary:
    """Summarise a run directory; any run with a run.json, even without a row. `slo` overrides the stored one.

    Raises StoreError for a directory that is no run or is of a newer schema, UsageError for a bad `slo`.
    """
    run = RunDir(Path(run_dir))
    meta, status = run.meta, run.status
    rows, unreadable = load_rows(run)
    checks = meta.get("reconcile")
    return RunSummary(
        run=run.path.name,
        status=status,
        meta=meta,
        cautions=cautions(rows, meta, status, unreadable),
        attempts=rows.n,
        outcomes=_outcomes(rows),
        latency={metric.name: summary(samples(metric, rows)) for metric in LATENCIES},
        figures={metric.name: value(metric, rows) for metric in METRICS if metric.scope == "run"},
        window=measured(rows),
        steady=steady(rows),
        tiers=_tiers(rows),
        ttft_by_tier=ttft_by_tier(rows),
        goodput=_goodput(rows, slo, meta),
        errors=_errors(rows),
        token_sources=dict(Counter(str(word) for word in rows.text["token_source"][rows.ok] if word is not None)),
        reconcile=list(checks) if isinstance(checks, list) else [],
    )


def render_json(found: RunSummary) -> str:
    """The summary as JSON; absent figures are null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def render_text(found: RunSummary) -> str:
    """The summary as compact tables for a terminal."""
    from hicache_bench.analysis.text import render  # tabulate is needed for text only

    return render(found)


def _int(number: Any) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _outcomes(rows: Rows) -> dict[str, int]:
    counts = Counter(str(word) for word in rows.text["outcome"])
    ordered = [*OUTCOMES, *sorted(set(counts) - set(OUTCOMES))]
    return {name: counts[name] for name in ordered if counts[name]}


def _tiers(rows: Rows) -> tuple[TierUse, ...]:
    """The whole first, then each stream."""
    streams = rows.text["stream"]
    names = sorted({str(name) for name in streams})
    everything = _tier_use("all", rows, np.ones(rows.n, dtype=np.bool_))
    return (everything, *(_tier_use(name, rows, streams == name) for name in names))


def _tier_use(stream: str, rows: Rows, among: Any) -> TierUse:
    ok = rows.ok & among
    cached = rows["cached_tokens"]
    prompt = np.where(np.isnan(rows["prompt_tokens"]), rows["planned_prompt_tokens"], rows["prompt_tokens"])
    both = ok & ~np.isnan(cached) & ~np.isnan(rows["prompt_tokens"])
    planned = ok & ~np.isnan(rows["ideal_cached_tokens"]) & ~np.isnan(prompt)
    return TierUse(
        stream=stream,
        requests=int(ok.sum()),
        prompt_tokens=total(rows["prompt_tokens"], ok),
        cached_tokens=total(cached, ok),
        **{f"{tier}_tokens": total(rows[f"{tier}_tokens"], ok) for tier in TIERS},
        unattributed_tokens=total(np.fmax(cached - attributed(rows), 0), ok & ~np.isnan(cached)),
        coverage=ratio(float((ok & tier_said(rows)).sum()), float(ok.sum())),
        hit_ratio=ratio(total(cached, both), total(rows["prompt_tokens"], both)),
        ideal_hit_ratio=ratio(total(rows["ideal_cached_tokens"], planned), total(prompt, planned)),
    )


def _goodput(rows: Rows, slo: str | None, meta: Mapping[str, Any]) -> Goodput | None:
    if slo is not None:
        return goodput(rows, parse_slo(slo))
    stored = meta.get("slo")
    text = ",".join(f"{k}<{v}" for k, v in stored.items()) if isinstance(stored, Mapping) else stored
    try:
        return goodput(rows, parse_slo(text)) if isinstance(text, str) and text else None
    except UsageError:
        return None  # an objective of another version must not hide the other figures


def _errors(rows: Rows) -> tuple[ErrorLine, ...]:
    failed = ~rows.outcome("ok", "empty", "shed")
    outcomes, messages = rows.text["outcome"][failed], rows.text["error"][failed]
    pairs = Counter((str(a), str(b) if b is not None else "") for a, b in zip(outcomes, messages, strict=True))
    return tuple(ErrorLine(outcome, text, n) for (outcome, text), n in pairs.most_common(TOP_ERRORS))


