"""The HiCache tab's figures: hit ratio and tier mix over time, TTFT by tier; from rows, as they arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hicache_bench.clock import NS_PER_MS, NS_PER_S
from hicache_bench.records import Attempt
from hicache_bench.stats import percentile

WINDOW_NS = 5 * NS_PER_S
KEPT_WINDOWS = 720
"""An hour; older windows leave the page, the run directory has them all."""
KEPT_SAMPLES = 2000
TIERS = ("device", "host", "storage")
CLASSES = ("cold", *TIERS, "mixed", "unknown")


@dataclass(slots=True)
class Window:
    """Sums over the requests that ended in one stretch of time; only those whose answer tells count as known."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    known_tokens: int = 0
    cached_tokens: int = 0
    tiers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    ttft_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def class_of(row: Attempt) -> str:
    """As `analysis.tiers.tier_class`, for one row that is ok."""
    said = {tier: getattr(row, f"{tier}_tokens") for tier in TIERS}
    given = sum(value or 0 for value in said.values())
    if row.cached_tokens == 0:
        return "cold"
    if row.cached_tokens is None or all(value is None for value in said.values()) or given != row.cached_tokens:
        return "unknown"
    return next((tier for tier, value in said.items() if value == row.cached_tokens), "mixed")


class Live:
    """Running windows of one run."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._windows: dict[int, Window] = {}
        self._whole = Window()

    def add(self, rows: Iterable[Attempt]) -> None:
        for row in rows:
            if row.phase == "measure" and row.done_ns is not None and row.sent_ns is not None:
                index = max(0, row.done_ns - self._start_ns) // WINDOW_NS
                for window in (self._windows.setdefault(index, Window()), self._whole):
                    _count(window, row)
        while len(self._windows) > KEPT_WINDOWS:
            del self._windows[min(self._windows)]

    def snapshot(self) -> dict[str, Any]:
        """Plain numbers: ratios 0..1, milliseconds; None where nothing is known."""
        windows = [{"from_s": index * WINDOW_NS // NS_PER_S, **_plain(self._windows[index])}
                   for index in sorted(self._windows)]
        return {"whole": _plain(self._whole), "windows": windows}


def _count(window: Window, row: Attempt) -> None:
    window.requests += 1
    if row.outcome not in ("ok", "empty"):
        window.failed += 1
        return
    if row.cached_tokens is not None and row.prompt_tokens is not None:
        window.prompt_tokens += row.prompt_tokens
        window.cached_tokens += row.cached_tokens
        if class_of(row) != "unknown":
            window.known_tokens += row.prompt_tokens
            for tier in TIERS:
                window.tiers[tier] += getattr(row, f"{tier}_tokens") or 0
    if row.first_token_ns is not None and row.scheduled_ns is not None:
        samples = window.ttft_ns[class_of(row)]
        samples.append(row.first_token_ns - row.scheduled_ns)
        del samples[:-KEPT_SAMPLES]


def _plain(window: Window) -> dict[str, Any]:
    return {
        "requests": window.requests,
        "failed": window.failed,
        "hit_ratio": _ratio(window.cached_tokens, window.prompt_tokens),
        "tiers": {tier: _ratio(window.tiers[tier], window.known_tokens) for tier in TIERS},
        "ttft_ms": {name: _median_ms(window.ttft_ns.get(name, [])) for name in CLASSES},
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _median_ms(samples: list[int]) -> float | None:
    found = percentile(samples, 50)
    return None if found is None else found / NS_PER_MS
