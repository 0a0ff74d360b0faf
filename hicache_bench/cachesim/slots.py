"""One component next to full attention on all nodes: its two pools and who leaves them next.

A window (SWA) holds as many pages as its node; a state (Mamba) is one page on the node it ends at. Both have an
LRU of their own: a touched node is the newest, and of nodes touched together the deepest (components/swa.py
reset_node_and_window_ancestors_mru, components/mamba.py).
"""

from __future__ import annotations

from typing import Literal

from hicache_bench.cachesim.node import Node, Slot
from hicache_bench.cachesim.pages import Holding, PagePool
from hicache_bench.cachesim.victims import Victims, recency

SlotKind = Literal["window", "state"]


class SlotTier:
    """Device and host copies of one component. Owners in the pools are node ids."""

    __slots__ = ("device_pool", "evictable_pages", "host_pool", "host_victims", "kind", "victims")

    def __init__(self, kind: SlotKind, device_pool: PagePool, host_pool: PagePool) -> None:
        self.kind = kind
        self.device_pool = device_pool
        self.host_pool = host_pool
        self.evictable_pages = 0
        self.victims = Victims(self._key, self._on_device)
        self.host_victims = Victims(self._key, self._only_on_host)

    def get(self, node: Node) -> Slot | None:
        return node.window if self.kind == "window" else node.state

    def slot(self, node: Node) -> Slot:
        """The node's slot, made when it has none."""
        slot = self.get(node)
        if slot is None:
            slot = Slot()
            slot.time = node.time
            if self.kind == "window":
                node.window = slot
            else:
                node.state = slot
        return slot

    def set_device(self, node: Node, holding: Holding, time: int) -> None:
        slot = self.slot(node)
        slot.device = holding
        slot.time = time
        if not slot.lock:
            self.evictable_pages += len(holding)
            self.victims.offer(node)

    def drop_device(self, node: Node) -> int:
        """Free the device copy; returns its pages (0 without one)."""
        slot = self.get(node)
        if slot is None or slot.device is None:
            return 0
        pages = len(slot.device)
        if not slot.lock:
            self.evictable_pages -= pages
        self.device_pool.evict(slot.device)
        slot.device = None
        if slot.host is not None:
            self.host_victims.offer(node)
        return pages

    def set_host(self, node: Node, holding: Holding) -> None:
        slot = self.slot(node)
        slot.host = holding
        if slot.device is None:
            self.host_victims.offer(node)

    def drop_host(self, node: Node) -> int:
        slot = self.get(node)
        if slot is None or slot.host is None:
            return 0
        pages = len(slot.host)
        self.host_pool.evict(slot.host)
        slot.host = None
        return pages

    def lock(self, node: Node) -> None:
        slot = self.slot(node)
        if not slot.lock and slot.device is not None:
            self.evictable_pages -= len(slot.device)
        slot.lock += 1

    def unlock(self, node: Node) -> None:
        slot = self.slot(node)
        slot.lock -= 1
        if not slot.lock and slot.device is not None:
            self.evictable_pages += len(slot.device)
            self.victims.offer(node)

    def touch(self, node: Node, time: int) -> None:
        slot = self.get(node)
        if slot is not None and slot.device is not None:
            slot.time = time

    def split(self, head: Node, child: Node, at: int) -> None:
        """A node was split at `at` pages: a window goes with its pages, a state stays at the end."""
        slot = self.get(child)
        if slot is None or self.kind == "state":
            return
        upper = self.slot(head)
        upper.lock, upper.time = slot.lock, slot.time
        upper.mark, slot.mark = slot.mark, None
        if slot.device is not None:
            upper.device = self.device_pool.split(slot.device, at, head.id)
            if not upper.lock:
                self.victims.offer(head)
        if slot.host is not None:
            upper.host = self.host_pool.split(slot.host, at, head.id)
            if upper.device is None:
                self.host_victims.offer(head)

    def _key(self, node: Node) -> int:
        slot = self.get(node)
        return recency(0 if slot is None else slot.time, node.end)

    def _on_device(self, node: Node) -> bool:
        slot = self.get(node)
        return slot is not None and slot.device is not None and not slot.lock

    def _only_on_host(self, node: Node) -> bool:
        slot = self.get(node)
        return slot is not None and slot.host is not None and slot.device is None and not node.host_locks
