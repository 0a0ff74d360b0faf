"""Locust's own statistics: E2E, TTFT, ITL and tokens per tier as entries, failures by our outcomes.

Locust keeps rounded buckets, which is fine to watch a run with; reports are made from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hicache_bench.locust_user.job import Figures
from hicache_bench.records import NOT_FAILURES

KIND = "hicache"


class RequestFailed(Exception):
    """A failed request; its text starts with the outcome (`timeout: …`), so Locust counts by kind."""


class Statistics:
    """Feeds one environment. Only E2E is a request to Locust (its totals count those); the rest are entries."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def add(self, figures: Iterable[Figures]) -> None:
        for one in figures:
            if one.outcome in ("shed", "aborted"):
                self._entry(one.outcome, 0.0, 0)
                continue
            failed = one.outcome not in NOT_FAILURES
            self._environment.events.request.fire(
                request_type=KIND, name="E2E", response_time=one.e2e_ms, response_length=one.body_bytes, context={},
                exception=RequestFailed(_short(one)) if failed else None)
            if failed:
                continue
            self._entry("TTFT", one.ttft_ms, one.body_bytes)
            self._entry("ITL", one.itl_ms, one.body_bytes)
            self._tokens(one)

    def _tokens(self, one: Figures) -> None:
        tiers = (one.device_tokens, one.host_tokens, one.storage_tokens)
        for name, tokens in zip(("device", "host", "storage"), tiers, strict=True):
            self._entry(f"tokens {name}", tokens, tokens)
        if one.prompt_tokens is not None and one.cached_tokens is not None:
            computed = one.prompt_tokens - one.cached_tokens
            self._entry("tokens computed", computed, computed)
        self._entry("tokens output", one.output_tokens, one.output_tokens)

    def _entry(self, name: str, value: float | None, length: int | None) -> None:
        """A value that the answer does not give makes no entry: absent is not 0."""
        if value is not None:
            self._environment.stats.entries[(name, KIND)].log(value, length or 0)


def _short(one: Figures) -> str:
    return f"{one.outcome}: {one.error}"[:200] if one.error else one.outcome
