"""The timing side of the simulated server: one prefill at a time, paced decoding, and the cache between."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from hicache_bench.clock import NS_PER_MS, NS_PER_S, now_ns, sleep_until
from hicache_bench.simserver.cache import Match, PrefixCache
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.tokenizer import OUTPUT_IDS

_OUTPUT = np.array(OUTPUT_IDS, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to answer. `limit_tokens` caps the matched prefix (logprobs asked from there on)."""

    rid: str
    ids: list[int]
    output_tokens: int
    namespace: bytes = b""
    limit_tokens: int | None = None
    streamed: bool = False


@dataclass(slots=True)
class Generation:
    """One answer under way, after its prefill. Instants are monotonic nanoseconds, `received_s` wall time."""

    job: Job
    cached: Match
    output_ids: list[int]
    received_s: float
    received_ns: int
    started_ns: int
    first_ns: int
    step_ns: int
    finished_ns: int | None = field(default=None)

    async def progress(self, interval: int) -> AsyncIterator[int]:
        """Yield how many tokens exist, every `interval` tokens and at the end, each at its absolute instant."""
        total = len(self.output_ids)
        for count in [*range(interval, total, interval), total]:
            due_ns = self.first_ns + max(count - 1, 0) * self.step_ns
            if due_ns > now_ns():
                await sleep_until(due_ns)
            else:
                await asyncio.sleep(0)  # behind or unpaced: other streams get their turn all the same
            if count == total:
                self.finished_ns = now_ns()
            yield count

    def wall_s(self, instant_ns: int) -> float:
        """Seconds since the epoch of a monotonic instant."""
        return self.received_s + (instant_ns - self.received_ns) / NS_PER_S


class Engine:
    """Admits jobs, keeps the cache and counts tokens for the metrics page."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        storage = config.storage_tokens if config.storage_class else None
        self.cache = PrefixCache(config.page_size, config.device_tokens, config.host_tokens, storage,
                                 config.prefetch_threshold)
        self.started_s = time.time()
        self.running = 0
        self.waiting = 0
        self.running_tokens = 0
        self.tokens: Counter[str] = Counter()
        self.requests: Counter[bool] = Counter()
        self.prompt_tokens: Counter[bool] = Counter()
        self.generated_tokens: Counter[bool] = Counter()
        self.aborted = 0
        self._slots = asyncio.Semaphore(config.max_running_requests)
        self._prefill = asyncio.Lock()
        self._prefill_free_ns = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[Generation]:
        """Run one job: the body drives `Generation.progress`; leaving it normally commits the output."""
        received_ns, received_s = now_ns(), time.time()
        self.waiting += 1
        self._idle.clear()
        in_slot = False
        try:
            async with self._slots:
                in_slot = True
                self._move(1, len(job.ids))
                try:
                    generation = await self._run_prefill(job, received_ns, received_s)
                    yield generation
                    self._finish(generation)
                finally:
                    self._move(-1, -len(job.ids))
        except BaseException:
            self.aborted += 1
            raise
        finally:
            if not in_slot:
                self.waiting -= 1
            if self.running + self.waiting == 0:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether nothing runs or waits, waiting up to `timeout_s` seconds for it."""
        if not self._idle.is_set() and timeout_s > 0:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except asyncio.TimeoutError:
                return False
        return self._idle.is_set()

    def _move(self, requests: int, tokens: int) -> None:
        self.running += requests
        self.running_tokens += tokens
        if requests > 0:
            self.waiting -= 1

    async def _run_prefill(self, job: Job, received_ns: int, received_s: float) -> Generation:
        admitted_ns = now_ns()
        async with self._prefill:
            started_ns = max(admitted_ns, self._prefill_free_ns)
            cached = self.cache.match(job.ids, job.namespace, job.limit_tokens)
            end_ns = started_ns + self._prefill_ns(len(job.ids) - cached.total, cached)
            try:
                await sleep_until(end_ns)
            finally:
                self._prefill_free_ns = min(end_ns, now_ns())
            self.cache.insert(job.ids, len(job.ids), job.namespace)
        self.tokens["input"] += len(job.ids) - cached.total
        self.tokens["device"] += cached.device
        self.tokens["host"] += cached.host
        self.tokens["storage"] += cached.storage
        return Generation(job, cached, _output_ids(job), received_s, received_ns, started_ns, end_ns,
                          round(self.config.decode_ms * NS_PER_MS))

    def _prefill_ns(self, computed_tokens: int, cached: Match) -> int:
        config = self.config
        seconds = computed_tokens / config.prefill_tokens_per_s if config.prefill_tokens_per_s else 0.0
        load_ms = ((cached.host + cached.storage) * config.host_ms_per_1k_tokens
                   + cached.storage * config.storage_ms_per_1k_tokens) / 1000
        return round(seconds * NS_PER_S + load_ms * NS_PER_MS)

    def _finish(self, generation: Generation) -> None:
        job, output = generation.job, generation.output_ids
        if output:
            ids = job.ids + output[:-1]
            self.cache.insert(ids, len(ids), job.namespace)
        self.requests[job.streamed] += 1
        self.prompt_tokens[job.streamed] += len(job.ids)
        self.generated_tokens[job.streamed] += len(output)


def _output_ids(job: Job) -> list[int]:
    """Words chosen by an extendable hash of the prompt: a longer answer begins with the shorter one."""
    stream = hashlib.shake_128(np.asarray(job.ids, dtype=np.uint32).tobytes()).digest(4 * job.output_tokens)
    chosen: list[int] = _OUTPUT[np.frombuffer(stream, dtype="<u4") % len(_OUTPUT)].tolist()
    return chosen
