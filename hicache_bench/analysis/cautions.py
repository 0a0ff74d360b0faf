"""What may spoil a run, as values that travel with its figures and say what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hicache_bench.analysis.metrics import BY_NAME, attributed, samples, tier_said, total, value
from hicache_bench.analysis.rows import Rows
from hicache_bench.clock import NS_PER_MS
from hicache_bench.stats import percentile
from hicache_bench.units import format_bytes, format_count, format_ns, format_percent

LAG_LIMIT_NS = 10 * NS_PER_MS
CPU_LIMIT = 0.9
LAG_SAMPLES = 100
"""Fewer lag samples than this (2 s of them) have no p99 worth a warning."""
BACKLOG_LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Caution:
    """A stable `code`, what was seen, and what to do about it."""

    code: str
    text: str
    advice: str = ""


def cautions(rows: Rows, meta: Mapping[str, Any], status: str, unreadable: Sequence[str]) -> tuple[Caution, ...]:
    """All of them, worst first: what spoils every figure, then what spoils some, then what the run noted."""
    stored = meta.get("warnings")
    noted = [_stored(item) for item in stored] if isinstance(stored, list) else []
    found = [*_whole(rows, status, unreadable), *_client(rows, meta), *_answers(rows, meta), *noted]
    return tuple({(item.code, item.text): item for item in found}.values())


def _stored(item: Any) -> Caution:
    if not isinstance(item, Mapping):
        return Caution("note", str(item))
    return Caution(str(item.get("code", "note")), str(item.get("text", "")), str(item.get("advice") or ""))


def _whole(rows: Rows, status: str, unreadable: Sequence[str]) -> Iterator[Caution]:
    if status != "complete":
        yield Caution(f"status_{status}", f"the run is {status}", "the figures cover what was stored until then")
    if unreadable:
        yield Caution("unreadable", f"left out, not readable: {', '.join(unreadable)}", "their rows are missing here")
    if not rows.n:
        yield Caution("no_rows", "no measured request is stored", "see the events and warnings of the run")
    elif not rows.outcome("ok", "empty").any():
        yield Caution("all_failed", f"none of {format_count(rows.n)} attempts succeeded", "see the error table")


def _client(rows: Rows, meta: Mapping[str, Any]) -> Iterator[Caution]:
    lag = percentile(samples(BY_NAME["schedule_lag"], rows), 99)
    if lag is not None and lag > LAG_LIMIT_NS:
        yield Caution("schedule_lag", f"requests left late: schedule lag p99 {format_ns(lag)}",
                      "this client was too slow; lower the rate or give it more CPU")  # fmt: skip
    client = meta.get("client")
    health: Mapping[str, Any] = client if isinstance(client, Mapping) else {}
    if _over(health.get("loop_lag_p99_ns"), LAG_LIMIT_NS) and not _under(health.get("samples"), LAG_SAMPLES):
        simulated = meta.get("origin") == "simulated"
        shared = "; it shares this machine with the built-in server" if simulated else ""
        yield Caution("loop_lag", f"the event loop was late: p99 {format_ns(health['loop_lag_p99_ns'])}{shared}",
                      "latencies include this client's own delay; lower the load or give it more CPU")  # fmt: skip
    if _over(health.get("cpu_fraction"), CPU_LIMIT):
        yield Caution("client_cpu", f"this client used {format_percent(health['cpu_fraction'])} of one core",
                      "it may have been the bottleneck")  # fmt: skip
    if _over(health.get("recorder_backlog_bytes"), BACKLOG_LIMIT_BYTES):
        yield Caution("recorder_backlog", "the recorder fell behind by "
                      + format_bytes(health["recorder_backlog_bytes"]), "give the client more CPU")  # fmt: skip
    if shed := int(rows.outcome("shed").sum()):
        yield Caution("shed", f"{format_count(shed)} of {format_count(rows.n)} requests shed: more in flight than "
                      "the limit", "raise the limit or lower the rate")  # fmt: skip


def _answers(rows: Rows, meta: Mapping[str, Any]) -> Iterator[Caution]:
    ok = rows.ok
    said = int((ok & tier_said(rows)).sum())
    if said < int(ok.sum()):
        yield Caution("tier_coverage", f"{said} of {int(ok.sum())} answers said their tiers",
                      "tier figures cover those only; ask for cached token details")  # fmt: skip
    if over := int((ok & (attributed(rows) > rows["cached_tokens"])).sum()):
        yield Caution("tier_sum", f"in {over} answers the tiers add up to more than the cached tokens",
                      "do not trust the tier figures of this server")  # fmt: skip
    cached = total(rows["cached_tokens"], ok)
    lower = [total(rows[f"{tier}_tokens"], ok) for tier in ("host", "storage")]
    if cached and lower[0] == 0 and not lower[1]:
        yield Caution("device_only", "nothing was served from host or storage: what this load reuses stays on the "
                      "device", "to see the lower tiers, add unique prompts (fill), groups or sessions")  # fmt: skip
    if meta.get("start_state") == "cold" and (excess := _beyond_ideal(rows)):
        yield Caution("not_cold", f"the start was cold, yet {format_count(excess)} more prompt tokens were cached "
                      "than the plan's own sharing explains",
                      "earlier runs or other traffic filled the cache; reset it or use a new nonce")  # fmt: skip
    if meta.get("reuse_prompts") is True and cached:
        yield Caution("reused_prompts", "prompts are the same in every run of this workload",
                      "a warm cache from an earlier run may serve them")  # fmt: skip
    if short := value(BY_NAME["short_answers"], rows):
        yield Caution("short_answers", f"{format_count(short)} answers are shorter than planned though ignore_eos was "
                      "on", "output figures are below the plan")  # fmt: skip
    if empty := value(BY_NAME["empty_answers"], rows):
        yield Caution("empty_answers", f"{format_count(empty)} answers had no token", "they are in no latency figure")
    estimated = int(np.sum(rows.text["token_source"][ok] == "estimated"))
    if estimated:
        yield Caution("estimated_tokens", f"the server did not count the tokens of {format_count(estimated)} answers",
                      "counted as one token a chunk")  # fmt: skip


def _beyond_ideal(rows: Rows) -> float:
    """Cached tokens above what the plan's prefixes allow (bug D19); an unknown ideal allows none."""
    cached, ideal = total(rows["cached_tokens"], rows.ok), total(rows["ideal_cached_tokens"], rows.ok)
    return max(0.0, (cached or 0.0) - (ideal or 0.0))


def _under(number: Any, limit: int) -> bool:
    return isinstance(number, int) and number < limit


def _over(number: Any, limit: float) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number > limit
