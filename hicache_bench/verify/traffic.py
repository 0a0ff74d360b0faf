"""Is anybody else using the server? Its own counters against what was sent from here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hicache_bench.errors import MeasureError
from hicache_bench.sglang.scrape import Sample, total
from hicache_bench.verify.bed import Bench

WATCH_S = 1.0
"""How long the counters are watched before the first request."""
ALLOWED_TOKENS = 64
"""Prompt tokens that are not ours and still no traffic: health probes send one token each."""

_PROMPT = "sglang:prompt_tokens_total"


@dataclass(slots=True)
class Watch:
    """Counts prompt tokens that were not sent from here. `known` False: the server has no such counter."""

    bench: Bench
    before: float = 0.0
    known: bool = False
    ours: int = 0

    async def start(self) -> str:
        """Watch the idle server for a moment; returns what cannot be told, or nothing.

        Raises MeasureError when requests are running or prompt tokens move.
        """
        first = await self.bench.samples()
        if first is None or total(first, _PROMPT) is None:
            return "the server shows no prompt token counter: whether others use it is not known"
        busy = {name: total(first, f"sglang:{name}") or 0 for name in ("num_running_reqs", "num_queue_reqs")}
        if any(busy.values()):
            raise MeasureError("the server is busy with other traffic: "
                               f"{busy['num_running_reqs']:.0f} running and {busy['num_queue_reqs']:.0f} queued "
                               "requests; calibrate needs it alone")
        await asyncio.sleep(WATCH_S)  # the length of the observation
        second = await self.bench.samples()
        self.before, self.known = total(first, _PROMPT) or 0.0, True
        self._refuse(second)
        self.before = total(second or first, _PROMPT) or 0.0
        return ""

    async def check(self) -> None:
        """Raises MeasureError when more prompt tokens were served than were sent from here."""
        if self.known:
            self._refuse(await self.bench.samples())

    def _refuse(self, samples: list[Sample] | None) -> None:
        now = total(samples, _PROMPT) if samples else None
        if now is None:
            return
        foreign = now - self.before - self.ours
        if foreign > ALLOWED_TOKENS:
            raise MeasureError(f"the server is busy with other traffic: it served {foreign:,.0f} prompt tokens that "
                               "were not sent from here; calibrate needs it alone")
