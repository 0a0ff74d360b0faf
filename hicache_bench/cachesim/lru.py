"""Exact LRU over blocks: what a cache without tree, tiers in flight or whole-node eviction would hit.

The reference that traces are judged by, independent of the rest of this package. One pass of stack distances gives
the hit ratio of every capacity at once (Mattson 1970); with inclusive tiers that are touched on every access the
device hits what an LRU of its size hits, the host what an LRU of its own size hits beyond that, storage the rest of
what an unbounded cache would hit. SGLang differs: it evicts whole nodes, and does not touch the host on a device hit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hicache_bench.errors import UsageError

Touch = Literal["head_first", "tail_first"]
"""Order in which the blocks of one request are touched: as they are read, or leaf first as a radix tree ages them."""


@dataclass(frozen=True, slots=True)
class LruHits:
    """Blocks asked for and found."""

    blocks: int
    hits: int

    @property
    def ratio(self) -> float | None:
        return self.hits / self.blocks if self.blocks else None


def lru_hits(requests: Iterable[Sequence[Hashable]], capacity_blocks: int | None, *, touch: Touch = "head_first",
             prefix_only: bool = False) -> LruHits:
    """Hits of one LRU of `capacity_blocks` (None: unbounded) over whole requests in order.

    `prefix_only`: hits of a request stop at its first block that is missing. Then, and with `tail_first`, a request
    is looked up before it is made resident; head_first without it takes blocks one by one.
    """
    if capacity_blocks is not None and capacity_blocks < 1:
        raise UsageError(f"an LRU of {capacity_blocks} blocks; at least 1 is needed")
    held: OrderedDict[Hashable, None] = OrderedDict()
    blocks = hits = 0
    for request in requests:
        blocks += len(request)
        if prefix_only or touch == "tail_first":
            hits += _leading(held, request) if prefix_only else sum(block in held for block in request)
            for block in reversed(request) if touch == "tail_first" else request:
                _touch(held, block, capacity_blocks)
        else:
            hits += sum(_touch(held, block, capacity_blocks) for block in request)
    return LruHits(blocks, hits)


def stack_distances(requests: Iterable[Sequence[Hashable]]) -> tuple[list[int], int]:
    """Histogram of stack distances of all accesses in order, and how many blocks were accessed.

    `histogram[d]` accesses found their block at depth d (1 is the most recent), so an LRU of c blocks hits the sum
    of histogram[1..c]. Same as `lru_hits` head first, for every capacity at once.
    """
    accesses = [block for request in requests for block in request]
    marks = [0] * (len(accesses) + 1)
    histogram = [0] * (len(accesses) + 1)
    last: dict[Hashable, int] = {}
    for now, block in enumerate(accesses, start=1):
        before = last.get(block)
        if before is not None:
            histogram[_sum(marks, now - 1) - _sum(marks, before - 1)] += 1
            _add(marks, before, -1)
        _add(marks, now, 1)
        last[block] = now
    return histogram, len(accesses)


def inclusive_tiers(requests: Sequence[Sequence[Hashable]], device_blocks: int, host_blocks: int, *,
                    touch: Touch = "head_first", prefix_only: bool = False) -> tuple[int, int, int]:
    """Blocks served by device, host and unbounded storage when every access touches every tier."""
    if host_blocks < device_blocks:
        raise UsageError(f"host of {host_blocks} blocks below a device of {device_blocks}: inclusive tiers only grow")
    device, host, ideal = (lru_hits(requests, capacity, touch=touch, prefix_only=prefix_only).hits
                           for capacity in (device_blocks, host_blocks, None))
    return device, host - device, ideal - host


def _leading(held: OrderedDict[Hashable, None], request: Sequence[Hashable]) -> int:
    return next((index for index, block in enumerate(request) if block not in held), len(request))


def _touch(held: OrderedDict[Hashable, None], block: Hashable, capacity: int | None) -> bool:
    hit = block in held
    if hit:
        held.move_to_end(block)
    else:
        held[block] = None
        if capacity is not None and len(held) > capacity:
            held.popitem(last=False)
    return hit


def _add(marks: list[int], at: int, change: int) -> None:
    while at < len(marks):
        marks[at] += change
        at += at & -at


def _sum(marks: list[int], to: int) -> int:
    total = 0
    while to:
        total += marks[to]
        to -= to & -to
    return total
