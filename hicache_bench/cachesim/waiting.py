"""The waiting queue and the prefill batches made from it: first come, first served, but for those who wait for
storage, whom others may pass (managers/scheduler.py get_new_batch_prefill, managers/schedule_policy.py PrefillAdder).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.costs import Clockwork
from hicache_bench.cachesim.request import Admission
from hicache_bench.cachesim.schedule import Schedule
from hicache_bench.cachesim.stint import Stint
from hicache_bench.cachesim.traffic import Traffic

RETRY_PASSES = 8
"""A storage query that found nothing is repeated every so many passes, at most so many times."""
_CLIP_NEW_TOKENS = 4096
_RATIO_FIRST, _RATIO_LAST, _RATIO_STEPS = 0.7, 0.7 * 0.14, 600
"""The share of their open output that running requests keep reserved, falling with every decode step (environ.py
SGLANG_INIT_NEW_TOKEN_RATIO, SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR, SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS)."""


@dataclass(slots=True)
class Batch:
    """One prefill batch: every entry computes its prompt from `begin` up to `up_to`; `last` gives a first token."""

    entries: list[tuple[Stint, int]] = field(default_factory=list)
    admitted: list[Stint] = field(default_factory=list)
    tokens: int = 0
    token_contexts: float = 0.0
    loads_end_ns: int = 0
    output_tokens: int = 0

    def add(self, stint: Stint, begin: int, up_to: int) -> None:
        tokens = up_to - begin
        self.entries.append((stint, up_to))
        self.tokens += tokens
        self.token_contexts += tokens * (begin + up_to) / 2


class WaitingQueue:
    """Who waits, and the one request whose prefill is under way in chunks."""

    def __init__(self, cache: HiCache, traffic: Traffic, clockwork: Clockwork, schedule: Schedule) -> None:
        self.waiting: deque[Stint] = deque()
        self.chunked: Stint | None = None
        self.ratio = _RATIO_FIRST
        self._cache = cache
        self._traffic = traffic
        self._clockwork = clockwork
        self._schedule = schedule
        self._chunk = cache.config.chunked_prefill_size
        self._size = cache.config.page_size

    def __len__(self) -> int:
        return len(self.waiting)

    def take_in(self, stint: Stint, now_ns: int) -> None:
        """A request reaches the scheduler: it is looked up in storage and waits."""
        stint.request = self._cache.request(stint.keys(self._size), stint.n_tokens, stint.left,
                                            stint.job.priority, stint.job.match_limit_tokens)
        stint.phase = "waiting"
        stint.seen_ns = now_ns
        stint.read = self._cache.arrive(stint.request)
        self.waiting.append(stint)

    def decayed(self, steps: int) -> None:
        """The reserve falls with every decode step."""
        self.ratio = max(self.ratio - steps * (_RATIO_FIRST - _RATIO_LAST) / _RATIO_STEPS, _RATIO_LAST)

    def rested(self) -> None:
        """An idle scheduler forgets what it learned (managers/scheduler.py, self_check_during_idle)."""
        self.ratio = _RATIO_FIRST

    # ------------------------------------------------------------------ one batch

    def form(self, now_ns: int, n_running: int, reserve_tokens: int) -> Batch | None:
        """The next prefill batch, or None."""
        if self.chunked is None and not self.waiting:
            return None
        batch = Batch()
        left = self._continue_chunked(batch)
        self._admit_waiting(batch, left, now_ns, n_running, reserve_tokens)
        return batch if batch.entries else None

    def _continue_chunked(self, batch: Batch) -> int | None:
        """The chunk that comes next of a long prompt, before anybody else. Returns what is left of the chunk size."""
        stint, left = self.chunked, self._chunk
        if stint is None:
            return left
        assert stint.request is not None
        begin = stint.computed
        up_to = self._cache.next_chunk_end(stint.request, left)
        if not self._cache.extend(stint.request, up_to):
            return 0
        batch.add(stint, begin, up_to)
        if up_to == stint.n_tokens:
            self.chunked = None
            batch.output_tokens += stint.left
        return None if left is None else left - self._paged(up_to - begin)

    def _paged(self, tokens: int) -> int:
        """Tokens rounded up to pages: what a chunk takes of the budget."""
        return -(-tokens // self._size) * self._size

    def _admit_waiting(self, batch: Batch, left: int | None, now_ns: int, n_running: int, reserve: int) -> None:
        schedule, passed = self._schedule, []
        most = schedule.max_running_requests - n_running - len(batch.entries)
        if schedule.prefill_max_requests is not None:
            most = min(most, schedule.prefill_max_requests - len(batch.entries))
        while self.waiting and most > 0 and batch.tokens < schedule.max_prefill_tokens:
            if left is not None and left < self._size:
                break
            stint = self.waiting.popleft()
            if not self._ready(stint, now_ns):
                passed.append(stint)
                continue
            admission = self._admit(stint, left, reserve + batch.output_tokens)
            if admission is None:
                passed.append(stint)
                break
            most -= 1
            left = self._place(batch, stint, admission, left, now_ns)
        self.waiting.extendleft(reversed(passed))

    def _admit(self, stint: Stint, left: int | None, reserve: int) -> Admission | None:
        assert stint.request is not None
        return self._cache.admit(stint.request, left, reserve)

    def _place(self, batch: Batch, stint: Stint, admission: Admission, left: int | None, now_ns: int) -> int | None:
        """Put an admitted request into the batch, whole or its first chunk."""
        begin, up_to = stint.n_tokens - admission.compute_tokens, admission.chunk_end
        if up_to < stint.n_tokens:
            self.chunked = stint
        else:
            batch.output_tokens += min(stint.left, _CLIP_NEW_TOKENS)
        stint.phase = "prefill"
        stint.computed = begin
        batch.add(stint, begin, up_to)
        batch.admitted.append(stint)
        if stint.result.tiers is None:
            stint.result.tiers = admission.tiers
            stint.result.admitted_ns = now_ns
            if stint.blocked_ns is not None:
                stint.result.prefetch_wait_ns = now_ns - stint.seen_ns
        if admission.load_back is not None:
            batch.loads_end_ns = self._traffic.load(admission.load_back, now_ns)
        if self.chunked is stint:
            return 0
        return None if left is None else left - self._paged(up_to - begin)

    def _ready(self, stint: Stint, now_ns: int) -> bool:
        """The admission poll. A blocked request is woken at its deadline; a missed query is repeated now and then."""
        config = self._cache.config
        if not config.storage:
            return True
        assert stint.request is not None
        if stint.read is None:
            return self._retry(stint)
        expired = stint.wake_ns is not None and now_ns >= stint.wake_ns
        if self._cache.ready(stint.request, expired):
            return True
        if stint.blocked_ns is None:
            stint.blocked_ns = now_ns
            if config.prefetch_policy == "timeout":
                stint.wake_ns = now_ns + round(config.prefetch_timeout_s(stint.read.pages) * 1e9)
                self._traffic.wake_at(stint.wake_ns)
        return False

    def _retry(self, stint: Stint) -> bool:
        assert stint.request is not None
        stint.passes += 1
        if stint.passes % RETRY_PASSES == 0 and stint.tries < RETRY_PASSES:
            stint.tries += 1
            stint.read = self._cache.arrive(stint.request)
            return stint.read is None
        return True
