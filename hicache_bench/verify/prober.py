"""The measurements a calibration is made of: each sends prompts of its own and says what the answers said."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hicache_bench.clock import NS_PER_S, now_ns, sleep_until
from hicache_bench.errors import Inconclusive, MeasureError
from hicache_bench.records import ClosedLoop, Folded, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.sglang.scrape import total
from hicache_bench.sglang.scraper import settle
from hicache_bench.verify.bed import SETTLE_S, Bench
from hicache_bench.verify.judge import compare_outputs, shown
from hicache_bench.verify.traffic import Watch
from hicache_bench.workload.tokens import check_unique

OUTPUT_TOKENS = 16
MOST_REQUESTS = 5
"""Requests after which a prompt that still misses is taken for one that never hits."""
GAUGE_DEADLINE_S = 3.0
GAUGE_QUIET_NS = NS_PER_S // 2
STORAGE_QUIET_S = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """A primed prompt asked again after `peers` peers. `same`: the output equals the resident one."""

    peers: int
    cached: int
    device: int
    host: int
    storage: int | None
    same: bool | None


@dataclass(frozen=True, slots=True)
class Length:
    """What a prompt of `tokens` tokens reports once it is resident, and on which request it first does."""

    tokens: int
    match: int
    first_hit: int | None


@dataclass(slots=True)
class Prober:
    """Measures one server, one request at a time; every prompt is new."""

    bench: Bench
    watch: Watch
    page: int
    prime_requests: int = 3
    trials: list[Trial] = field(default_factory=list)
    fidelity: dict[str, list[bool | None]] = field(default_factory=dict)
    used: int = 0

    async def ask(self, prompt: Prompt, phase: str, label: str, output_tokens: int = OUTPUT_TOKENS) -> Folded:
        """One answer; raises MeasureError for a failed request, Inconclusive when it has no tiers."""
        answer = await self.bench.lab.ask(prompt, phase, label, output_tokens)
        if answer.outcome not in ("ok", "empty"):
            raise MeasureError(f"a request of the calibration failed ({answer.outcome}): {answer.error}")
        self.watch.ours += answer.prompt_tokens or prompt.n_tokens or 0
        if answer.cached_tokens is None or (answer.cached_tokens and None in (answer.device_tokens,
                                                                              answer.host_tokens)):
            raise Inconclusive(f"the server does not say which tier served a request ({shown(answer)}): nothing can "
                               "be calibrated")
        return answer

    async def flush(self) -> None:
        await self.bench.lab.admin.flush()
        self.bench.lab.event("flush")

    def prompts(self, tokens: int, count: int) -> list[Prompt]:
        """New prompts, pairwise different in their first page."""
        self.used += 1
        made = [Prompt((Segment(f"calibrate/{self.used}/{index}", tokens),), n_tokens=tokens) for index in range(count)]
        sessions = tuple(Session(index, "-", "calibrate", (Turn(prompt, 1),)) for index, prompt in enumerate(made))
        check_unique(self.bench.space, Plan("calibrate", 0, sessions, np.zeros(count, dtype=np.int64), ClosedLoop(1),
                                            Stop(), ""), self.page)
        return made

    async def length(self, tokens: int) -> Length:
        """Send one prompt until its match has come twice, or has never come."""
        (prompt,) = self.prompts(tokens, 1)
        match, first = 0, None
        for number in range(1, MOST_REQUESTS + 1):
            seen = (await self.ask(prompt, "measure", f"length {tokens}")).cached_tokens or 0
            if number == 1 and seen >= max(self.page, 16):
                raise Inconclusive(f"a new prompt of {tokens} tokens reports {seen} cached ones")
            if number > 1 and seen and first is None:
                first = number
            if first is not None and first < number and seen == match:
                break
            match = seen if number > 1 else 0
        return Length(tokens, match, first)

    async def resident_pages(self, tokens: int) -> int | None:
        """Device pages a peer of `tokens` tokens keeps in an otherwise empty pool, by the pool's gauge.

        The gauge moves when the scheduler does something, so it is read until it has rested. None without it,
        or when what it says cannot be one prompt.
        """
        pool = self.bench.info.device_tokens
        await self.flush()
        (prompt,) = self.prompts(tokens, 1)
        await self.ask(prompt, "warmup", "resident", 1)
        deadline, last, since = now_ns() + round(GAUGE_DEADLINE_S * NS_PER_S), None, now_ns()
        while pool is not None and now_ns() < deadline:
            free = await self._available()
            if free != last:
                last, since = free, now_ns()
            elif free is not None and now_ns() - since > GAUGE_QUIET_NS:
                pages = round((pool - free) / self.page)
                return pages if 0 < pages <= -(-tokens // self.page) else None
            await sleep_until(now_ns() + NS_PER_S // 20)
        return None

    async def _available(self) -> float | None:
        samples = await self.bench.samples()
        return total(samples, "sglang:kv_available_tokens") if samples else None

    async def trial(self, tokens: int, peers: int) -> Trial:
        """Flush, prime, send `peers` peers, ask again."""
        await self.flush()
        base, *others = self.prompts(tokens, peers + 1)
        resident = await self._primed(base)
        for index, prompt in enumerate(others, 1):
            await self.ask(prompt, "warmup", f"peer {index}/{peers}", 1)
        found = self._trial(peers, await self.ask(base, "measure", f"after {peers} peers"), resident)
        self.trials.append(found)
        self.bench.lab.event("trial", peers=peers, cached=found.cached, device=found.device, host=found.host,
                             storage=found.storage, same=found.same)
        await self.watch.check()
        return found

    async def storage_trial(self, tokens: int) -> tuple[Trial, float | None]:
        """Prime, wait until the copy counters rest, flush, ask again: (the answer, seconds until rest)."""
        await self.flush()
        (base,) = self.prompts(tokens, 1)
        resident = await self._primed(base)
        rest = await settle(self.bench.samples, SETTLE_S, STORAGE_QUIET_S, poll_s=0.05)
        await self.flush()
        found = self._trial(0, await self.ask(base, "measure", "after a flush"), resident)
        await self.watch.check()
        waited = max(rest.waited_ns / NS_PER_S - STORAGE_QUIET_S, 0.0) if rest.settled else None
        return found, waited

    async def _primed(self, base: Prompt) -> Folded:
        answer = Folded("ok")
        for number in range(1, self.prime_requests + 1):
            answer = await self.ask(base, "prime", f"prime {number}")
        if not answer.device_tokens:
            raise Inconclusive(f"a prompt is not on the device after {self.prime_requests} requests ({shown(answer)})")
        return answer

    def _trial(self, peers: int, answer: Folded, resident: Folded) -> Trial:
        difference = compare_outputs(answer, resident)
        same = None if difference is None else not difference
        tiers = {"device": answer.device_tokens, "host": answer.host_tokens, "storage": answer.storage_tokens}
        for tier, count in tiers.items():
            if count:
                self.fidelity.setdefault(tier, []).append(same)
        return Trial(peers, answer.cached_tokens or 0, answer.device_tokens or 0, answer.host_tokens or 0,
                     answer.storage_tokens, same)
