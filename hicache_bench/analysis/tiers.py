"""Which tier served what: TTFT by tier, and the answers' token sums against the server's own counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.metrics import BY_NAME, TIERS, attributed, samples, tier_said, total
from hicache_bench.analysis.rows import Rows, rows_of
from hicache_bench.sglang.scrape import Sample
from hicache_bench.stats import Summary, summary
from hicache_bench.store.reader import Table

TIER_CLASSES = ("cold", "device", "host", "storage", "mixed", "unknown")

CACHED = "sglang:cached_tokens_total"
PROMPT = "sglang:prompt_tokens_total"
REQUESTS = "sglang:num_requests_total"

Verdict = Literal["equal", "differs", "inconclusive"]
Samples: TypeAlias = Iterable[Sample] | Mapping[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True, slots=True)
class Check:
    """One sum, as the answers and as the server's counters say it, in tokens; `reason` when inconclusive.

    `tier` is device, host or storage, `cached` for their sum, `prompt` for prompt tokens.
    """

    tier: str
    client_tokens: int | None
    server_tokens: int | None
    verdict: Verdict
    reason: str = ""


def tier_class(rows: Rows) -> NDArray[np.object_]:
    """The class of each row (see TIER_CLASSES); None for rows that are not ok.

    cold: nothing cached. A tier: all cached tokens came from it. unknown: tiers unsaid or not adding up.
    """
    cached = rows["cached_tokens"]
    found = np.full(rows.n, "mixed", dtype=np.object_)
    for tier in TIERS:
        found[rows[f"{tier}_tokens"] == cached] = tier
    found[~tier_said(rows) | np.isnan(cached) | (attributed(rows) != cached)] = "unknown"
    found[cached == 0] = "cold"
    found[~rows.ok] = None
    return found


def ttft_by_tier(rows: Rows) -> dict[str, Summary]:
    """TTFT (ns) of the ok rows of each class that has any."""
    classes, ttft = tier_class(rows), samples(BY_NAME["ttft"], rows)
    return {name: summary(ttft[classes == name]) for name in TIER_CLASSES if (classes == name).any()}


# --------------------------------------------------------------------------- against the server


def counters(source: Samples) -> dict[str, dict[str, float]]:
    """name → cache_source (or "") → sum over all series, dp ranks included.

    Every TP rank may report the same logical tokens, so only tp_rank 0 counts where the label exists. Older
    releases say `storage_<Class>` for storage (SGLang srt/observability/metrics_collector.py).
    """
    sums: dict[str, dict[str, float]] = {}
    for sample in _samples(source):
        if sample.name not in (CACHED, PROMPT, REQUESTS) or sample.labels.get("tp_rank", "0") != "0":
            continue
        label = sample.labels.get("cache_source", "")
        label = "storage" if label.startswith("storage_") else label
        by_label = sums.setdefault(sample.name, {})
        by_label[label] = by_label.get(label, 0.0) + sample.value
    return sums


def _samples(source: Samples) -> Iterable[Sample]:
    if isinstance(source, Mapping):
        return [Sample(name, dict(labels), value, "") for (name, labels), value in source.items()]
    return source


def reconcile(table: Table, metrics_before: Samples | None, metrics_after: Samples | None) -> list[Check]:
    """Compare token sums of the attempts of all phases with counter deltas between two scrapes.

    Five checks: prompt, cached, device, host, storage. A difference that lost answers, other traffic or a
    restart of the server explains is inconclusive, with the reason; a tier no answer ever named is, too.
    """
    rows = rows_of(table, phase=None)
    if metrics_before is None or metrics_after is None:
        why = "no metrics from the server before and after the run"
        return [Check(name, _client(rows, name), None, "inconclusive", why) for name in ("prompt", "cached", *TIERS)]
    before, after = counters(metrics_before), counters(metrics_after)
    doubt = _doubt(rows, before, after)
    return [
        _check("prompt", rows, _delta(before, after, PROMPT, None), doubt),
        _check("cached", rows, _delta(before, after, CACHED, None), doubt),
        *(_check(tier, rows, _delta(before, after, CACHED, tier), doubt) for tier in TIERS),
    ]


def _client(rows: Rows, name: str) -> int | None:
    found = total(rows[f"{name}_tokens"])
    return None if found is None else round(found)


def _delta(before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]], name: str,
           label: str | None) -> int | None:  # fmt: skip
    """None without the counter; one series of it appears with its first count, so a missing series is 0."""
    late, early = after.get(name), before.get(name, {})
    if late is None:
        return None
    if label is None:
        return round(sum(late.values()) - sum(early.values()))
    return round(late.get(label, 0.0) - early.get(label, 0.0))


def _check(name: str, rows: Rows, server: int | None, doubt: str) -> Check:
    client = _client(rows, name)
    missing = ""
    if server is None:
        missing = "the server has no such counter"
    elif server < 0:
        missing = "the counter went back: the server was restarted"
    elif client is None and (rows.n or server):
        missing = "no answer said it"
    elif name in TIERS and (hidden := int((rows.ok & ~tier_said(rows)).sum())):
        missing = f"{hidden} answers did not say their tiers"
    if missing:
        return Check(name, client, server, "inconclusive", missing)
    if (client or 0) == server:
        return Check(name, client or 0, server, "equal")
    return Check(name, client, server, "inconclusive" if doubt else "differs", doubt)


def _doubt(rows: Rows, before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]) -> str:
    """What else may have moved the counters; empty when nothing is known."""
    sent = ~np.isnan(rows["sent_ns"])
    lost = int((sent & np.isnan(rows["prompt_tokens"]) & ~rows.outcome("shed", "connect", "fd_limit")).sum())
    if lost:
        return f"{lost} requests ended without saying their tokens; the server may have counted them"
    served = _delta(before, after, REQUESTS, None)
    if served is not None and served > int(sent.sum()):
        return f"other traffic: the server finished {served} requests, this client sent {int(sent.sum())}"
    return ""
