"""Copies in time: one lane moves one transfer at a time, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.transfers import Transfer

StorageCost = Callable[[int], int]
"""Nanoseconds of one call that moves so many pages."""


class Lane:
    """A copy engine or a storage thread. With `batched`, a transfer moves in calls of at most 128 pages and may end
    early between two of them; otherwise it is one copy."""

    __slots__ = ("_at", "_batched", "_cache", "_cost", "_first", "_moving", "_queue")

    def __init__(self, cache: HiCache, cost: StorageCost, *, batched: bool, first: StorageCost | None = None) -> None:
        self._cache = cache
        self._cost = cost
        self._first = first
        self._batched = batched
        self._queue: deque[Transfer] = deque()
        self._at: Transfer | None = None
        self._moving = 0

    def __len__(self) -> int:
        return len(self._queue) + (self._at is not None)

    def push(self, transfer: Transfer, now_ns: int) -> int | None:
        """Queue a transfer; when the lane is free it begins, and the instant of its first end is returned."""
        self._queue.append(transfer)
        return None if self._at is not None else self._begin(now_ns)

    def step(self, now_ns: int) -> int | None:
        """The call under way is over: tell the cache, begin the next. Returns when that ends; None: nothing to do."""
        transfer = self._at
        assert transfer is not None
        if transfer.state == "running":
            if transfer.done_pages + self._moving >= transfer.pages:
                self._cache.complete(transfer)
            else:
                self._cache.progress(transfer, self._moving)
                if transfer.state == "running":
                    return now_ns + self._next_call(transfer)
        self._at = None
        return self._begin(now_ns)

    def _begin(self, now_ns: int) -> int | None:
        while self._queue:
            transfer = self._queue.popleft()
            if transfer.state != "running":
                continue  # given up while it waited
            self._at = transfer
            asked = 0 if self._first is None else self._first(transfer.batches)
            return now_ns + asked + self._next_call(transfer)
        return None

    def _next_call(self, transfer: Transfer) -> int:
        left = transfer.pages - transfer.done_pages
        self._moving = min(left, Transfer.BATCH_PAGES) if self._batched else left
        return self._cost(self._moving)
