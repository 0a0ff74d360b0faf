"""Every figure of a run, in one table. A metric is a row here and one function of the measured rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.rows import Flags, Floats, Rows
from hicache_bench.analysis.windows import Window, measured, steady
from hicache_bench.clock import NS_PER_S
from hicache_bench.records import NOT_FAILURES
from hicache_bench.stats import ratio

TIERS = ("device", "host", "storage")

Unit = Literal["ns", "1/s", "tok/s", "ratio", "tokens", "requests"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`compute` gives an array with NaN for absent (scope request: one a row; chunk: all samples of all rows),
    or one number or None (scope run)."""

    name: str
    unit: Unit
    better: Literal["lower", "higher"]
    scope: Literal["request", "chunk", "run"]
    compute: Callable[[Rows], Floats | float | None]
    doc: str


def samples(metric: Metric, rows: Rows) -> Floats:
    """The samples of a request or chunk metric (NaN where absent)."""
    return np.asarray(metric.compute(rows), dtype=np.float64)


def value(metric: Metric, rows: Rows) -> float | None:
    """The number of a run metric."""
    found = metric.compute(rows)
    return None if found is None else float(found)


# --------------------------------------------------------------------------- one number a request


def _span(start: str, end: str) -> Callable[[Rows], Floats]:
    return lambda rows: rows.where_ok(rows[end] - (rows.due_ns if start == "due" else rows[start]))


def _service_span(end: str) -> Callable[[Rows], Floats]:
    """From the send, without the part of it spent on opening a connection."""

    def compute(rows: Rows) -> Floats:
        begin, finish = np.fmax(rows["connect_start_ns"], rows["sent_ns"]), np.fmin(rows["connected_ns"], rows[end])
        fresh = ~(np.isnan(rows["connect_start_ns"]) | np.isnan(rows["connected_ns"]))
        opening = np.where(fresh, np.fmax(finish - begin, 0), 0)
        return rows.where_ok(rows[end] - rows["sent_ns"] - opening)

    return compute


def _tpot(rows: Rows) -> Floats:
    after_first = np.where(rows["output_tokens"] >= 2, rows["output_tokens"] - 1, np.nan)
    return rows.where_ok((rows["last_token_ns"] - rows["first_token_ns"]) / after_first)


def _schedule_lag(rows: Rows) -> Floats:
    return rows["sent_ns"] - rows["scheduled_ns"]


def _seconds(column: str) -> Callable[[Rows], Floats]:
    return lambda rows: rows.where_ok(rows[column] * NS_PER_S)


# --------------------------------------------------------------------------- many numbers a request


def gaps(rows: Rows) -> tuple[NDArray[np.int32], Floats, NDArray[np.int32]]:
    """(row, gap ns, tokens) of every chunk of an ok row but its first, whose wait is TTFT (vllm#7242)."""
    row = rows.chunk_row
    at = np.flatnonzero((row[1:] == row[:-1]) & rows.ok[row[1:]]) + 1
    return row[at], rows.chunk_ns[at] - rows.chunk_ns[at - 1], rows.chunk_tokens[at]


def _chunk_gap(rows: Rows) -> Floats:
    return gaps(rows)[1]


def _itl(rows: Rows) -> Floats:
    _, gap, tokens = gaps(rows)
    return np.repeat(gap / np.maximum(tokens, 1), np.maximum(tokens, 0))


# --------------------------------------------------------------------------- one number a run


def total(values: Floats, mask: Flags | None = None) -> float | None:
    """Sum of the known values (of the masked rows); None when none is known."""
    chosen = values if mask is None else values[mask]
    known = chosen[~np.isnan(chosen)]
    return float(known.sum()) if known.size else None


def rate_over(column: str | None, find: Callable[[Rows], Window | None]) -> Callable[[Rows], float | None]:
    """Per second over a window, of ok rows by their end; `column` None counts requests."""

    def compute(rows: Rows) -> float | None:
        window = find(rows)
        if window is None:
            return None
        inside = rows.ok & (rows["done_ns"] >= window.start_ns) & (rows["done_ns"] <= window.end_ns)
        if column is None:
            amount: float | None = float(inside.sum())
        elif not inside.any():
            amount = 0.0
        else:
            amount = total(rows["prompt_tokens"] + rows["output_tokens"] if column == "total" else rows[column], inside)
        return ratio(amount, window.duration_ns / NS_PER_S)

    return compute


def tier_said(rows: Rows) -> Flags:
    """Rows whose tiers were said: some tier given, or nothing cached at all (sglang#26590)."""
    some = ~np.isnan(np.stack([rows[f"{tier}_tokens"] for tier in TIERS])).all(axis=0)
    return np.asarray(some | (rows["cached_tokens"] == 0), dtype=np.bool_)


def attributed(rows: Rows) -> Floats:
    """Cached tokens that a tier was named for, by row; 0 where none was."""
    return np.asarray(np.nansum(np.stack([rows[f"{tier}_tokens"] for tier in TIERS]), axis=0))


def _hit_ratio(rows: Rows) -> float | None:
    known = rows.ok & ~np.isnan(rows["cached_tokens"]) & ~np.isnan(rows["prompt_tokens"])
    return ratio(total(rows["cached_tokens"], known), total(rows["prompt_tokens"], known))


def _tier_ratio(tier: str) -> Callable[[Rows], float | None]:
    def compute(rows: Rows) -> float | None:
        known = rows.ok & tier_said(rows) & ~np.isnan(rows["prompt_tokens"])
        return ratio(total(rows[f"{tier}_tokens"], known), total(rows["prompt_tokens"], known))

    return compute


def _coverage(rows: Rows) -> float | None:
    return ratio(float((rows.ok & tier_said(rows)).sum()), float(rows.ok.sum()))


def _unattributed(rows: Rows) -> float | None:
    return total(np.fmax(rows["cached_tokens"] - attributed(rows), 0), rows.ok & ~np.isnan(rows["cached_tokens"]))


def _ideal(rows: Rows) -> float | None:
    prompt = np.where(np.isnan(rows["prompt_tokens"]), rows["planned_prompt_tokens"], rows["prompt_tokens"])
    known = rows.ok & ~np.isnan(rows["ideal_cached_tokens"]) & ~np.isnan(prompt)
    return ratio(total(rows["ideal_cached_tokens"], known), total(prompt, known))


def _share(pick: Callable[[Rows], Flags]) -> Callable[[Rows], float | None]:
    return lambda rows: ratio(float(pick(rows).sum()), rows.n)


def _count(pick: Callable[[Rows], Flags]) -> Callable[[Rows], float | None]:
    return lambda rows: float(pick(rows).sum())


def _failed(rows: Rows) -> Flags:
    return ~rows.outcome(*NOT_FAILURES)


def _short(rows: Rows) -> Flags:
    missing = (rows["ignore_eos"] == 1) & (rows["output_tokens"] < rows["planned_output_tokens"])
    return np.asarray(rows.ok & missing, dtype=np.bool_)


METRICS: tuple[Metric, ...] = (
    Metric("ttft", "ns", "lower", "request", _span("due", "first_token_ns"),
           "first token after the scheduled instant (after the send where nothing was scheduled)"),
    Metric("ttft_service", "ns", "lower", "request", _service_span("first_token_ns"),
           "first token after the send, without opening a connection"),
    Metric("ttfo", "ns", "lower", "request", _span("due", "first_content_ns"),
           "first visible content after the scheduled instant"),
    Metric("connect", "ns", "lower", "request", _span("connect_start_ns", "connected_ns"),
           "opening a fresh connection; absent on a reused one"),
    Metric("itl", "ns", "lower", "chunk", _itl,
           "per token: a chunk's gap spread over its tokens; tokens of the first chunk have none"),
    Metric("chunk_gap", "ns", "lower", "chunk", _chunk_gap, "between one chunk with tokens and the next"),
    Metric("tpot", "ns", "lower", "request", _tpot, "(last - first token) / (tokens - 1); absent under two tokens"),
    Metric("e2e", "ns", "lower", "request", _span("due", "done_ns"), "end of the answer after the scheduled instant"),
    Metric("e2e_service", "ns", "lower", "request", _service_span("done_ns"),
           "end of the answer after the send, without opening a connection"),
    Metric("schedule_lag", "ns", "lower", "request", _schedule_lag,
           "send after the scheduled instant, whatever the outcome"),
    Metric("server_queue", "ns", "lower", "request", _seconds("server_queue_s"), "queueing, as the server says"),
    Metric("prefetch_wait", "ns", "lower", "request", _seconds("prefetch_wait_s"),
           "waiting for storage, as the server says"),
    Metric("requests_per_s", "1/s", "higher", "run", rate_over(None, measured),
           "ok requests ended in the measured phase"),
    Metric("input_per_s", "tok/s", "higher", "run", rate_over("prompt_tokens", measured), "their prompt tokens"),
    Metric("output_per_s", "tok/s", "higher", "run", rate_over("output_tokens", measured), "their output tokens"),
    Metric("total_per_s", "tok/s", "higher", "run", rate_over("total", measured), "their prompt and output tokens"),
    Metric("requests_per_s_steady", "1/s", "higher", "run", rate_over(None, steady), "the same in the steady state"),
    Metric("input_per_s_steady", "tok/s", "higher", "run", rate_over("prompt_tokens", steady), "in the steady state"),
    Metric("output_per_s_steady", "tok/s", "higher", "run", rate_over("output_tokens", steady), "in the steady state"),
    Metric("total_per_s_steady", "tok/s", "higher", "run", rate_over("total", steady), "in the steady state"),
    Metric("hit_ratio", "ratio", "higher", "run", _hit_ratio, "cached / prompt tokens"),
    Metric("hit_device", "ratio", "higher", "run", _tier_ratio("device"), "device / prompt tokens, tiers said"),
    Metric("hit_host", "ratio", "higher", "run", _tier_ratio("host"), "host / prompt tokens, tiers said"),
    Metric("hit_storage", "ratio", "higher", "run", _tier_ratio("storage"), "storage / prompt tokens, tiers said"),
    Metric("tier_coverage", "ratio", "higher", "run", _coverage, "ok requests whose tiers were said"),
    Metric("unattributed", "tokens", "lower", "run", _unattributed, "cached tokens without a tier"),
    Metric("ideal_hit_ratio", "ratio", "higher", "run", _ideal, "what an unbounded cache would serve, by the plan"),
    Metric("success_rate", "ratio", "higher", "run", _share(lambda rows: rows.ok), "ok / all attempts"),
    Metric("error_rate", "ratio", "lower", "run", _share(_failed), "failures / all attempts"),
    Metric("shed_rate", "ratio", "lower", "run", _share(lambda rows: rows.outcome("shed")), "shed / all attempts"),
    Metric("empty_answers", "requests", "lower", "run", _count(lambda rows: rows.outcome("empty")),
           "complete answers without a token"),
    Metric("short_answers", "requests", "lower", "run", _count(_short),
           "ignore_eos was on and fewer tokens came than planned"),
)  # fmt: skip

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
LATENCIES: tuple[Metric, ...] = tuple(metric for metric in METRICS if metric.scope != "run")
