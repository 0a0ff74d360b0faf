"""Who leaves next: one ordered queue of candidates a tier and component.

Keys only grow while a node lives (it is touched, hit, given a higher priority), so an entry made earlier is too
small, never too large: on its way out it is compared with the present key and filed again. Nothing has to be
moved when a node is touched, which is the common case by far.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from hicache_bench.cachesim.node import Node

_TIME = 1 << 32
_RANK = 1 << 96
"""Keys are one number, rank then time then depth, since comparing numbers is what a heap does most."""

EVICTION_KEYS: dict[str, Callable[[Node], int]] = {
    "lru": lambda node: node.time * _TIME + node.end,
    "lfu": lambda node: node.hits * _RANK + node.time * _TIME + node.end,
    "slru": lambda node: (node.hits >= 2) * _RANK + node.time * _TIME + node.end,
    "priority": lambda node: node.priority * _RANK + node.time * _TIME + node.end,
}
"""Smallest key leaves first (mem_cache/evict_policy.py). Nodes touched together leave deepest last."""


def recency(time: int, end: int) -> int:
    """The LRU key of something touched at `time` that ends at page `end`."""
    return time * _TIME + end


class Victims:
    """Candidates in the order of `key`; those that `eligible` refuses when their turn comes are dropped, and must
    be offered again when they become eligible."""

    __slots__ = ("_eligible", "_heap", "_key", "_queued")

    def __init__(self, key: Callable[[Node], int], eligible: Callable[[Node], bool]) -> None:
        self._key = key
        self._eligible = eligible
        self._heap: list[tuple[int, int, Node]] = []
        self._queued: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Node) -> None:
        """`node` may be a victim from now on."""
        if node.id not in self._queued:
            self._queued.add(node.id)
            heapq.heappush(self._heap, (self._key(node), node.id, node))

    def pop(self) -> Node | None:
        """The next victim, no longer a candidate; None when there is none."""
        heap = self._heap
        while heap:
            key, node_id, node = heap[0]
            if not self._eligible(node):
                heapq.heappop(heap)
                self._queued.discard(node_id)
                continue
            present = self._key(node)
            if present != key:
                heapq.heapreplace(heap, (present, node_id, node))
                continue
            heapq.heappop(heap)
            self._queued.discard(node_id)
            return node
        return None

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._queued
