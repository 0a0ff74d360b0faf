"""The radix tree over page keys: matching, splitting, locking, and which tier holds what.

Rules and their order are those of SGLang 0.5.23, mem_cache/unified_cache/unified_tree_core.py and components/*.py.
Pages only move here; when they move is decided in `eviction`, `insertion`, `copies` and `prefetch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.node import Node, PageKey, is_device_leaf, is_host_leaf
from hicache_bench.cachesim.pages import Holding, PagePool
from hicache_bench.cachesim.slots import SlotTier
from hicache_bench.cachesim.victims import EVICTION_KEYS, Victims

Lock = tuple[Node, int | None]
"""A locked path: the node it ends at and the mark of its window's older edge (None: up to the root)."""

_UNBROKEN = 1 << 60


class Match:
    """Where a prompt's cached prefix ends: `best` may be served from device or host, `on_device` without a copy.

    `full_pages` is the length of full-attention KV found, with or without what other components need.
    `host_pages` are the host copies between the two nodes.
    """

    __slots__ = ("best", "full_pages", "host_pages", "on_device")

    def __init__(self, best: Node, on_device: Node, full_pages: int) -> None:
        self.best = best
        self.on_device = on_device
        self.full_pages = full_pages
        self.host_pages = 0


class Tree:
    """`windows` and `states` are the components next to full attention, None when the model has none."""

    def __init__(self, config: CacheConfig, device: PagePool, host: PagePool, windows: SlotTier | None,
                 states: SlotTier | None) -> None:
        self.config = config
        self.device_pool = device
        self.host_pool = host
        self.windows = windows
        self.states = states
        self.group_pages = 0 if config.c128 is None else config.c128.group_tokens // config.page_size
        self.window_tokens = 0 if config.swa is None else max(config.swa.window - 1, 1)
        self.plain = windows is None and states is None and not self.group_pages
        self.write_back = config.write_policy == "write_back"
        self.clock = 0
        self.n_nodes = 0
        self._ids = 0
        self._marks = 0
        self.evictable_pages = 0
        key = EVICTION_KEYS[config.eviction_policy]
        self.victims = Victims(key, is_device_leaf)
        self.host_victims = Victims(key, is_host_leaf)
        self.duplicates: dict[int, Node] = {}
        self.root = Node(0, [], None, 0)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # ------------------------------------------------------------------ match

    def match(self, keys: Sequence[PageKey], limit_pages: int) -> Match:
        """The longest cached prefix of keys[:limit_pages]; splits the node it ends in and touches its path."""
        path = self._walk(keys, limit_pages)
        full_pages = path[-1].end if path else 0
        best, on_device = self._plain_ends(path) if self.plain else self._component_ends(path)
        found = Match(best, on_device, full_pages)
        node: Node | None = best
        while node is not None and node is not on_device:
            if node.host is not None:
                found.host_pages += len(node.keys)
            node = node.parent
        now = self.tick()
        if self.windows is not None:
            self.touch_window(best, now)
        if self.states is not None:
            self.states.touch(best, now)
        node = best
        while node is not None:
            node.time = now
            node = node.parent
        return found

    def _walk(self, keys: Sequence[PageKey], limit: int) -> list[Node]:
        path: list[Node] = []
        node, at = self.root, 0
        while at < limit:
            child = node.children.get(keys[at])
            if child is None or (child.device is None and child.host is None):
                break
            end = child.end
            if end <= limit and keys[at:end] == child.keys:
                path.append(child)
                node, at = child, end
                continue
            path.append(self.split(child, common_pages(child.keys, keys, at, limit)))
            break
        return path

    def _plain_ends(self, path: list[Node]) -> tuple[Node, Node]:
        on_device = self.root
        for node in path:
            if node.device is None:
                break
            on_device = node
        return (path[-1] if path else self.root), on_device

    def _component_ends(self, path: list[Node]) -> tuple[Node, Node]:
        """A boundary counts only where every component has what it needs behind it."""
        best = on_device = self.root
        any_window = device_window = _UNBROKEN
        for node in path:
            tokens = len(node.keys) * self.config.page_size
            slot = node.window
            on_any = slot is not None and (slot.device is not None or slot.host is not None)
            any_window = any_window + tokens if on_any else 0
            device_window = device_window + tokens if slot is not None and slot.device is not None else 0
            if self.group_pages and node.end % self.group_pages:
                continue
            state = node.state
            if self._behind(any_window) and (self.states is None or (
                    state is not None and (state.device is not None or state.host is not None))):
                best = node
            if node.device is not None and self._behind(device_window) and (
                    self.states is None or (state is not None and state.device is not None)):
                on_device = node
        return best, on_device

    def _behind(self, tokens: int) -> bool:
        return self.windows is None or tokens >= self.window_tokens

    def touch_window(self, node: Node | None, now: int) -> None:
        """The window (and a page) behind `node` is the newest in the window LRU."""
        assert self.windows is not None
        left = self.window_tokens + self.config.page_size
        while node is not None and node.parent is not None and left > 0:
            self.windows.touch(node, now)
            left -= len(node.keys) * self.config.page_size
            node = node.parent

    # ------------------------------------------------------------------ structure

    def split(self, child: Node, at: int) -> Node:
        """Cut `child` after `at` pages; the head takes its place, `child` stays the tail. Returns the head."""
        parent = child.parent
        assert parent is not None
        self._ids += 1
        head = Node(self._ids, child.keys[:at], parent, child.end - len(child.keys) + at)
        self.n_nodes += 1
        head.time = self.tick()
        head.priority, head.hits = child.priority, child.hits
        head.locks, head.host_locks = child.locks, child.host_locks
        head.host_mark, child.host_mark = child.host_mark, None
        head.pending, head.loading = child.pending, child.loading
        child.keys = child.keys[at:]
        child.parent = head
        head.children[child.keys[0]] = child
        parent.children[head.keys[0]] = head
        if child.device is not None:
            head.device = self.device_pool.split(child.device, at, head.id)
            head.device_children = 1
        if child.host is not None:
            head.host = self.host_pool.split(child.host, at, head.id)
        if self.windows is not None:
            self.windows.split(head, child, at)
        if child.busy:
            head.busy = list(child.busy)
            for transfer in child.busy:
                transfer.nodes.insert(transfer.nodes.index(child), head)
                if child in transfer.window_nodes:
                    transfer.window_nodes.insert(transfer.window_nodes.index(child), head)
        if child.id in self.duplicates:
            self.duplicates[head.id] = head
        child.time = self.tick()
        return head

    def add_leaf(self, parent: Node, keys: list[PageKey], priority: int) -> Node:
        """A new node below `parent`, held by no tier yet."""
        self._ids += 1
        node = Node(self._ids, keys, parent, parent.end + len(keys))
        node.time = self.tick()
        node.priority = priority
        parent.children[keys[0]] = node
        self.n_nodes += 1
        return node

    def remove(self, node: Node) -> None:
        """Take a childless node without copies out, then every ancestor that is left bare."""
        parent = node.parent
        assert parent is not None
        if not self.plain:
            self._drop_slots(node, host=True)
        del parent.children[node.keys[0]]
        self.n_nodes -= 1
        self.duplicates.pop(node.id, None)
        node.parent = None
        while parent.parent is not None and not parent.children and not parent.locks and not parent.host_locks:
            if parent.device is not None:
                break
            self._drop_slots(parent, host=False)
            if parent.host is not None:
                break
            self._drop_slots(parent, host=True)
            above = parent.parent
            del above.children[parent.keys[0]]
            self.n_nodes -= 1
            self.duplicates.pop(parent.id, None)
            parent.parent = None
            parent = above
        self.refresh(parent)

    def refresh(self, node: Node) -> None:
        """Offer `node` as a victim if it has become a leaf of a tier."""
        if is_device_leaf(node):
            self.victims.offer(node)
        elif is_host_leaf(node):
            self.host_victims.offer(node)

    # ------------------------------------------------------------------ what a tier holds

    def set_device(self, node: Node, holding: Holding) -> None:
        node.device = holding
        parent = node.parent
        assert parent is not None
        parent.device_children += 1
        if not node.locks:
            self.evictable_pages += len(node.keys)
        self.track_duplicate(node)
        self.refresh(node)

    def drop_device(self, node: Node) -> None:
        """Free the device copy of a node, with the window and state that go with it."""
        parent = node.parent
        assert parent is not None
        assert node.device is not None
        if not self.plain:
            self._drop_slots(node, host=False)
        self.device_pool.evict(node.device)
        node.device = None
        parent.device_children -= 1
        if not node.locks:
            self.evictable_pages -= len(node.keys)

    def drop_host(self, node: Node, slots: bool = True) -> None:
        assert node.host is not None
        if slots and not self.plain:
            self._drop_slots(node, host=True)
        self.host_pool.evict(node.host)
        node.host = None
        self.duplicates.pop(node.id, None)

    def track_duplicate(self, node: Node) -> None:
        """Under write_back, note nodes that are on both tiers with no copy under way: the host may reclaim them."""
        if not self.write_back:
            return
        if node.device is not None and node.host is not None and node.pending is None and node.loading is None:
            self.duplicates.setdefault(node.id, node)
        else:
            self.duplicates.pop(node.id, None)

    def _drop_slots(self, node: Node, host: bool) -> None:
        for tier in (self.windows, self.states):
            if tier is not None:
                if host:
                    tier.drop_host(node)
                else:
                    tier.drop_device(node)

    # ------------------------------------------------------------------ locks

    def lock(self, node: Node) -> Lock:
        """Keep the path to `node` on the device: all full attention, the window behind it, the state at its end."""
        cursor: Node | None = node
        while cursor is not None and cursor.parent is not None:
            if not cursor.locks and cursor.device is not None:
                self.evictable_pages -= len(cursor.keys)
            cursor.locks += 1
            cursor = cursor.parent
        if self.states is not None and node.parent is not None:
            self.states.lock(node)
        return node, self._lock_window(node) if self.windows is not None else None

    def unlock(self, lock: Lock) -> None:
        node, mark = lock
        if self.states is not None and node.parent is not None:
            self.states.unlock(node)
        if self.windows is not None:
            self._unlock_window(node, mark)
        cursor: Node | None = node
        while cursor is not None and cursor.parent is not None:
            cursor.locks -= 1
            if not cursor.locks:
                if cursor.device is None:
                    self.refresh(cursor)
                else:
                    self.evictable_pages += len(cursor.keys)
                    if not cursor.device_children:
                        self.victims.offer(cursor)
            cursor = cursor.parent

    def lock_host(self, node: Node) -> Lock | None:
        """Keep the host copy of one node (of both parts when it is split); None when it has none."""
        if node.parent is None or (node.host is None and not self.write_back):
            return None
        if node.host_mark is None:
            node.host_mark = self._mark()
        node.host_locks += 1
        return node, node.host_mark

    def unlock_host(self, lock: Lock | None) -> None:
        if lock is None:
            return
        cursor: Node | None = lock[0]
        while cursor is not None and cursor.parent is not None:
            cursor.host_locks -= 1
            edge = cursor.host_mark == lock[1]
            if not cursor.host_locks:
                cursor.host_mark = None
                self._offer_host(cursor)
            if edge:
                break
            cursor = cursor.parent

    def _offer_host(self, node: Node) -> None:
        if node.device is None:
            self.refresh(node)
        if self.plain:
            return
        for tier in (self.windows, self.states):
            slot = None if tier is None else tier.get(node)
            if tier is not None and slot is not None and slot.host is not None and slot.device is None:
                tier.host_victims.offer(node)

    def _lock_window(self, node: Node) -> int | None:
        assert self.windows is not None
        covered, cursor = 0, node
        while cursor.parent is not None and covered < self.window_tokens:
            self.windows.lock(cursor)
            covered += len(cursor.keys) * self.config.page_size
            if covered >= self.window_tokens:
                slot = self.windows.slot(cursor)
                if slot.mark is None:
                    slot.mark = self._mark()
                return slot.mark
            cursor = cursor.parent
        return None

    def _unlock_window(self, node: Node, mark: int | None) -> None:
        assert self.windows is not None
        cursor = node
        while cursor.parent is not None:
            self.windows.unlock(cursor)
            if mark is not None and self.windows.slot(cursor).mark == mark:
                break
            cursor = cursor.parent

    def _mark(self) -> int:
        self._marks += 1
        return self._marks


def common_pages(mine: Sequence[PageKey], keys: Sequence[PageKey], at: int, limit: int) -> int:
    """How many of a node's keys equal keys[at:limit], at least 1 since the first is known to be equal."""
    most = min(len(mine), limit - at)
    for index in range(1, most):
        if mine[index] != keys[at + index]:
            return index
    return most
