"""What happens around the measured phase: reset, prime, warm-up. Each leaves an event and a verdict.

A 200 from SGLang's clear route does not mean that L3 is empty (it answers 200 whenever HiCache is on, facts
0.7), and a flush can be refused while writes are pending (0.8). So every reset is checked by a probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.errors import MeasureError
from hicache_bench.load.requests import RequestBuilder
from hicache_bench.load.transport import Transport
from hicache_bench.load.turns import Sink, planned_row
from hicache_bench.records import Exchange, Folded, Prompt, Segment, ServerInfo, Session, Turn
from hicache_bench.sglang.admin import Admin
from hicache_bench.wire.fold import fold

STORAGE_THRESHOLD_TOKENS = 256
"""Below this many missing tokens SGLang does not ask L3 (prefetch_threshold, facts 4.8)."""

RESIDENT_ATTEMPTS = 4
"""Requests after which a prompt must be resident: Mamba models report their first hit on the third."""

CLEAR_DEADLINE_NS = 30 * NS_PER_S
"""How long a clear is repeated: a Mooncake store keeps objects under a lease of 10 s."""

Settle = Callable[[], Awaitable[object]]
Event = Callable[..., None]


@dataclass(slots=True)
class Lab:
    """What a phase needs to talk to the server and to leave traces."""

    admin: Admin
    transport: Transport
    builder: RequestBuilder
    sink: Sink
    info: ServerInfo
    nonce: str
    event: Event
    settle: Settle
    asked: int = 0
    probe_tokens: int = 0
    """Least length of a reset's probe: a model with a coarse grid (C128: 2048 tokens) caches nothing shorter."""

    async def ask(self, prompt: Prompt, phase: str, label: str, output_tokens: int = 1,
                  builder: RequestBuilder | None = None) -> Folded:
        """Send one request outside the load; its row is recorded like any other. `builder`: another than the
        lab's own, for requests with other options."""
        builder = builder or self.builder
        self.asked += 1
        turn = Turn(prompt, output_tokens, label=label, prompt_tokens=prompt.n_tokens)
        session = Session(self.asked, "-", phase, (turn,))
        rank = builder.dp_rank(session)
        context = builder.context(prompt, None)
        request = builder.build(context, output_tokens, f"{self.nonce}-{phase}-{self.asked}", rank)
        exchange, options = Exchange(), builder.options
        row = planned_row(session, 0, now_ns(), phase=phase, api=options.api, streamed=options.streamed,
                          ignore_eos=options.ignore_eos, dp_rank=rank)
        try:
            await self.transport.send(request, exchange, options.timeout_ns)
        finally:
            self.sink(row, request, exchange)
        return fold(request, exchange, keep_output=True)


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What the reset did and what its probe saw. None: not asked for, or the server does not say.

    `verified` is None when the probe could not tell (no cache report, or the probe never became resident).
    """

    flushed: bool | None
    storage_cleared: bool | None
    verified: bool | None
    attempts: int
    reason: str
    storage_absent: bool = False

    @property
    def state(self) -> str:
        """`cold`, `cold_l1_l2` (storage kept) or `as_found` when nothing was reset or shown."""
        if not self.flushed or not self.verified:
            return "as_found"
        return "cold" if self.storage_cleared or self.storage_absent else "cold_l1_l2"


async def reset(lab: Lab, *, flush: bool, clear_storage: bool, storage_absent: bool = False,
                flush_timeout_s: float = 30.0) -> ResetResult:
    """Flush L1+L2 and clear L3 as asked, and prove it with a prompt that was resident before.

    Raises ServerError when a call is refused (missing admin key, server busy for `flush_timeout_s`).
    """
    if not (flush or clear_storage):
        return ResetResult(None, None, None, 0, "no reset was asked for: the cache is as found")
    deadline_ns = now_ns() + CLEAR_DEADLINE_NS
    attempts = 0
    while True:
        attempts += 1
        probe = _probe_prompt(lab, attempts)
        resident = await _make_resident(lab, probe, "probe", f"reset {attempts} before")
        await lab.settle()
        # Clearing L3 while pages stay in L2 would leave them marked as backed up (facts 0.9): flush first.
        await lab.admin.flush(timeout_s=flush_timeout_s)
        lab.event("flush", attempt=attempts)
        if clear_storage:
            await lab.admin.clear_storage()
            lab.event("clear_storage", attempt=attempts)
        seen = await lab.ask(probe, "probe", f"reset {attempts} after")
        verified, reason = _judge_probe(seen, resident, clear_storage)
        lab.event("reset_probe", attempt=attempts, verified=verified, reason=reason, cached=seen.cached_tokens,
                  device=seen.device_tokens, host=seen.host_tokens, storage=seen.storage_tokens)
        if verified is not False or now_ns() > deadline_ns:
            return ResetResult(True, clear_storage or None, verified, attempts, reason, storage_absent)
        await asyncio.sleep(1.0)  # polling step of the loop above, which has its deadline


def _probe_prompt(lab: Lab, attempt: int) -> Prompt:
    page = lab.info.page_size or 1
    tokens = max(STORAGE_THRESHOLD_TOKENS + 2 * page + 1, lab.probe_tokens)
    if lab.info.max_request_tokens is not None:
        tokens = max(2, min(tokens, lab.info.max_request_tokens - 8))
    return Prompt((Segment(f"probe/{lab.nonce}/{attempt}", tokens),), n_tokens=tokens)


async def _make_resident(lab: Lab, prompt: Prompt, phase: str, label: str) -> bool | None:
    """Ask until the answer reports the prompt as cached; None when the server does not report."""
    for _ in range(RESIDENT_ATTEMPTS):
        seen = await lab.ask(prompt, phase, label)
        if seen.outcome not in ("ok", "empty"):
            raise MeasureError(f"the {phase} request failed ({seen.outcome}): {seen.error}")
        if seen.cached_tokens is None:
            return None
        if seen.cached_tokens > 0:
            return True
    return False


def _judge_probe(seen: Folded, resident: bool | None, clear_storage: bool) -> tuple[bool | None, str]:
    if seen.outcome not in ("ok", "empty"):
        return None, f"the probe failed ({seen.outcome}): {seen.error}"
    if seen.cached_tokens is None:
        return None, "the server does not report cached tokens (start it with --enable-cache-report)"
    if not resident:
        return None, "the probe never became resident, so a miss after the reset proves nothing"
    if seen.cached_tokens == 0:
        return True, "the probe was resident before and missed every tier after"
    if clear_storage:
        return False, f"{seen.cached_tokens} tokens of the probe were still cached after flush and clear"
    left = (seen.device_tokens, seen.host_tokens)
    if None in left:
        return None, "the server does not say from which tier the probe was served"
    if left == (0, 0):
        return True, f"only storage served the probe ({seen.storage_tokens} tokens); it was not asked to be cleared"
    return False, f"the probe was still on the device ({left[0]} tokens) or host ({left[1]}) after the flush"


async def prime(lab: Lab, prompts: Sequence[Prompt], max_attempts: int, concurrency: int = 4) -> dict[str, int]:
    """Send every shared prefix until it is resident. Returns counts: prompts, resident, unknown, requests."""
    counts = {"prompts": len(prompts), "resident": 0, "unknown": 0, "requests": 0}
    page = lab.info.page_size or 1
    gate = asyncio.Semaphore(concurrency)

    async def one(index: int, prompt: Prompt) -> None:
        async with gate:
            before = 0
            for _ in range(max(1, max_attempts)):
                seen = await lab.ask(prompt, "prime", f"prime {index}")
                counts["requests"] += 1
                if seen.outcome not in ("ok", "empty"):
                    raise MeasureError(f"priming failed ({seen.outcome}): {seen.error}")
                if seen.cached_tokens is None:
                    counts["unknown"] += 1
                    return
                length = seen.prompt_tokens or prompt.n_tokens or 0
                # The last token is always recomputed, then the page floor applies (facts 0.1). Models with
                # a coarser grid (C128, Mamba) never reach that: what repeats itself is all there will be.
                if seen.cached_tokens >= (length - 1) // page * page or 0 < seen.cached_tokens == before:
                    counts["resident"] += 1
                    return
                before = seen.cached_tokens

    tasks = [asyncio.ensure_future(one(i, p)) for i, p in enumerate(prompts)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    lab.event("prime", **counts)
    return counts


