"""The simulated scheduler in real (or scaled) time: HTTP handlers submit jobs, one task moves virtual time on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from hicache_bench.cachesim.chain import extend_keys, page_keys
from hicache_bench.cachesim.costs import Costs
from hicache_bench.cachesim.engine import Engine as Core
from hicache_bench.cachesim.jobs import Event, Result
from hicache_bench.cachesim.jobs import Job as CoreJob
from hicache_bench.cachesim.request import TierTokens
from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.tokenizer import OUTPUT_IDS

_OUTPUT = np.array(OUTPUT_IDS, dtype=np.int64)
_NOTHING = TierTokens()


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to answer. `limit_tokens` caps the matched prefix (logprobs asked from there on); `seed` is the
    digest of its cache namespace (`cachesim.chain.namespace_seed`)."""

    rid: str
    ids: list[int]
    output_tokens: int
    seed: bytes | None = None
    limit_tokens: int | None = None
    streamed: bool = False
    priority: int = 0


@dataclass(slots=True, eq=False)
class Generation:
    """One answer under way. Instants are monotonic nanoseconds of this process, `received_s` wall time."""

    job: Job
    engine: Engine
    result: Result
    received_s: float
    received_ns: int
    output_ids: list[int]
    details_lost: bool = False
    over: bool = False
    aborted: bool = False
    _waiter: asyncio.Future[None] | None = field(default=None)

    @property
    def cached(self) -> TierTokens:
        """Tokens by tier, settled at admission."""
        return self.result.tiers or _NOTHING

    @property
    def started_ns(self) -> int:
        return self.engine.real_ns(self.result.admitted_ns, self.received_ns)

    @property
    def first_ns(self) -> int:
        return self.engine.real_ns(self.result.first_token_ns, self.started_ns)

    @property
    def finished_ns(self) -> int:
        return self.engine.real_ns(self.result.finished_ns, self.first_ns)

    @property
    def prefetch_wait_s(self) -> float:
        return (self.result.prefetch_wait_ns or 0) / NS_PER_S

    def wall_s(self, instant_ns: int) -> float:
        """Seconds since the epoch of a monotonic instant."""
        return self.received_s + (instant_ns - self.received_ns) / NS_PER_S

    async def progress(self, interval: int) -> AsyncIterator[int]:
        """Yield how many tokens exist, every `interval` tokens and at the end."""
        due = interval
        while True:
            while not self.over and self.result.n_out < due:
                await self._changed()
            if due >= self.result.n_out and self.over:
                del self.output_ids[self.result.n_out :]
                yield self.result.n_out
                return
            yield due
            due += interval

    async def begun(self) -> None:
        """Wait until the first token, or the end without one."""
        while not self.over and self.result.n_out == 0:
            await self._changed()

    def wake(self) -> None:
        """Something about `result` is new."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _changed(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Engine:
    """Admits jobs, moves the simulated scheduler on, and counts tokens for the metrics page."""

    def __init__(self, config: SimConfig, costs: Costs | None = None) -> None:
        """`costs` replaces those of the settings."""
        self.config = config
        self.faults = config.fault_plan()
        self.core = Core(config.cache(), self.faults.slowed(costs or config.machine()), config.schedule(),
                         stepwise=True)
        self.started_s = time.time()
        self.tokens: Counter[str] = Counter()
        self.requests: Counter[bool] = Counter()
        self.prompt_tokens: Counter[bool] = Counter()
        self.generated_tokens: Counter[bool] = Counter()
        self.aborted = 0
        self.running_tokens = 0
        self._origin_ns = now_ns()
        self._open: dict[int, Generation] = {}
        self._next_id = 0
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is being copied."""
        self._advance()
        return self.core.idle

    @property
    def running(self) -> int:
        return self.core.n_running

    @property
    def waiting(self) -> int:
        return self.core.n_waiting

    def real_ns(self, virtual_ns: int | None, otherwise: int) -> int:
        """The process's monotonic instant of a virtual one."""
        return otherwise if virtual_ns is None else self._origin_ns + round(virtual_ns / self.config.speed)

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[Generation]:
        """Run one job from its first token on. A body that is left early (client gone) aborts the job."""
        number, generation = self._submit(job)
        try:
            await generation.begun()
            yield generation
        finally:
            if not generation.over:
                self._advance()
                self.core.abort(number)
                self._wake.set()

    def abort(self, rid: str, *, everything: bool) -> int:
        """End jobs whose id begins with `rid`, or all of them; how many (tokenizer_manager.py abort_request)."""
        self._advance()
        found = [number for number, one in self._open.items() if everything or (rid and one.job.rid.startswith(rid))]
        for number in found:
            self.core.abort(number)
        self._wake.set()
        return len(found)

    async def flush(self, timeout_s: float) -> bool:
        """Empty device and host once nothing runs, waits or is being written; False when that is not so within
        `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._advance()
            if self.core.flush():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._moved.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._moved.wait(), left)

    def clear_storage(self) -> None:
        """Empty the storage tier; what is told of it is not always true (faults)."""
        if not self.faults.clear_without_effect:
            self.core.clear_storage()

    def refresh(self) -> None:
        """Bring the state up to this instant before it is read."""
        self._advance()

    async def close(self) -> None:
        """Stop moving time."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    def _submit(self, job: Job) -> tuple[int, Generation]:
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())
        self._advance()
        if self.faults.lost_storage():
            self.core.clear_storage()
        page = self.config.page_size
        seed = None if self.faults.salts_leak else job.seed
        keys = page_keys(job.ids, page, seed)
        output = _output_ids(job)

        def output_keys(n_tokens: int) -> Sequence[bytes]:
            return extend_keys(keys, job.ids + output[: max(0, n_tokens - 1)], page, seed)

        number, self._next_id = self._next_id, self._next_id + 1
        core_job = CoreJob(number, keys, len(job.ids), job.output_tokens, job.priority, job.limit_tokens, output_keys)
        at_ns = self.core.now_ns
        generation = Generation(job, self, self.core.submit(core_job, at_ns), time.time(), self.real_ns(at_ns, 0),
                                output, self.faults.lost_details())
        self._open[number] = generation
        self._wake.set()
        return number, generation

    def _virtual_ns(self) -> int:
        return int((now_ns() - self._origin_ns) * self.config.speed)

    def _advance(self) -> None:
        for event in self.core.advance(max(self._virtual_ns(), self.core.now_ns)):
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        number, kind = event.job_id, event.kind
        generation = self._open.get(number) if isinstance(number, int) else None
        if generation is None or not isinstance(number, int):
            return
        if kind == "admitted":
            self._admit(generation)
        elif kind in ("finished", "aborted", "rejected"):
            self._end(number, generation, kind)
        generation.wake()

    def _admit(self, generation: Generation) -> None:
        tiers, n_tokens = generation.cached, len(generation.job.ids)
        self.running_tokens += n_tokens
        self.tokens["input"] += n_tokens - tiers.cached
        self.tokens["device"] += tiers.device
        self.tokens["host"] += tiers.host
        self.tokens["storage"] += tiers.storage
        self.faults.spoil(generation.output_ids, tiers)

    def _end(self, number: int, generation: Generation, kind: str) -> None:
        generation.over = True
        del self._open[number]
        if generation.result.tiers is not None:
            self.running_tokens -= len(generation.job.ids)
        if kind == "finished":
            streamed = generation.job.streamed
            self.requests[streamed] += 1
            self.prompt_tokens[streamed] += len(generation.job.ids)
            self.generated_tokens[streamed] += generation.result.n_out
        else:
            generation.aborted = True
            self.aborted += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._advance()
            self._moved.set()
            due_ns = self.core.next_event_ns()
            timer = None
            if due_ns is not None:
                delay_s = (self.real_ns(due_ns, 0) - now_ns()) / NS_PER_S
                timer = loop.call_later(max(0.0, delay_s), self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()


def _output_ids(job: Job) -> list[int]:
    """Words chosen by an extendable hash of the prompt: a longer answer begins with the shorter one."""
    stream = hashlib.shake_128(np.asarray(job.ids, dtype=np.uint32).tobytes()).digest(4 * job.output_tokens)
    chosen: list[int] = _OUTPUT[np.frombuffer(stream, dtype="<u4") % len(_OUTPUT)].tolist()
    return chosen
