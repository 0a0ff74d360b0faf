"""All copies under way, each kind on lanes of its own, as SGLang has streams and threads for them."""

from __future__ import annotations

import heapq

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.costs import Clockwork
from hicache_bench.cachesim.lanes import Lane
from hicache_bench.cachesim.transfers import Transfer


class Traffic:
    """Gives the cache's transfers their time. Backups share one lane, load-backs another; storage writes have one
    thread, storage reads `read_threads` (mem_cache/cache_controller.py: write and load stream, backup and prefetch
    thread)."""

    def __init__(self, cache: HiCache, clockwork: Clockwork, read_threads: int) -> None:
        self._cache = cache
        self._clockwork = clockwork
        self._backups = Lane(cache, clockwork.d2h_ns, batched=False)
        self._writes = Lane(cache, clockwork.write_ns, batched=True)
        self._reads = [Lane(cache, clockwork.read_ns, batched=True, first=clockwork.exists_ns)
                       for _ in range(read_threads)]
        self._loads_free_ns = 0
        self._heap: list[tuple[int, int, Lane | Transfer | None]] = []
        self._numbers = 0
        self._loading: set[int] = set()
        self.blocking_ns = 0

    def __len__(self) -> int:
        return len(self._cache.in_flight)

    @property
    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def wake_at(self, at_ns: int) -> None:
        """Something has to be looked at again then, although nothing moves."""
        self._schedule(at_ns, None)

    def step_due(self, now_ns: int) -> None:
        """Everything that ends up to `now_ns`, each at its own instant, and what that starts."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            at_ns, _, what = heapq.heappop(heap)
            if isinstance(what, Lane):
                following = what.step(at_ns)
                if following is not None:
                    self._schedule(following, what)
                self.begin_started(at_ns)
            elif what is not None:
                self._cache.complete(what)

    def begin_started(self, now_ns: int) -> None:
        """Put what the cache has begun on its lane."""
        for transfer in self._cache.take_started():
            kind = transfer.kind
            if kind == "backup" and transfer.blocking:
                # Written back at eviction: the scheduler itself waits for the copy.
                self.blocking_ns += self._clockwork.d2h_ns(transfer.pages)
            elif kind == "backup":
                self._push(self._backups, transfer, now_ns)
            elif kind == "storage_write":
                self._push(self._writes, transfer, now_ns)
            elif kind == "storage_read":
                self._push(min(self._reads, key=len), transfer, now_ns)
            elif transfer.id in self._loading:
                self._loading.discard(transfer.id)
            else:
                # An admission that failed after all for want of room: its load goes on without it.
                self._load(transfer, now_ns)

    def load(self, transfer: Transfer, now_ns: int) -> int:
        """Begin the load-back of an admission behind those under way; returns when it will be complete."""
        self._loading.add(transfer.id)
        return self._load(transfer, now_ns)

    def _load(self, transfer: Transfer, now_ns: int) -> int:
        start = max(now_ns, self._loads_free_ns)
        self._loads_free_ns = start + self._clockwork.h2d_ns(transfer.pages)
        self._schedule(self._loads_free_ns, transfer)
        return self._loads_free_ns

    def take_blocking_ns(self) -> int:
        """Time the scheduler has lost to blocking copies since the last call."""
        lost, self.blocking_ns = self.blocking_ns, 0
        return lost

    def _push(self, lane: Lane, transfer: Transfer, now_ns: int) -> None:
        end_ns = lane.push(transfer, now_ns)
        if end_ns is not None:
            self._schedule(end_ns, lane)

    def _schedule(self, at_ns: int, what: Lane | Transfer | None) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (at_ns, self._numbers, what))
