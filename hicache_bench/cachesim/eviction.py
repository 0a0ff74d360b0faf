"""Making room on the device: who leaves, and what becomes of it.

Only a shortfall evicts, leaf first and a whole node at a time, so more may leave than was asked for. Sources in
SGLang 0.5.23: mem_cache/unified_radix_cache.py `_evict_components`, unified_tree_core.py `evict_device_leaf`,
`drop_subtree_no_host`.
"""

from __future__ import annotations

from hicache_bench.cachesim import backup
from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node, is_device_leaf
from hicache_bench.cachesim.slots import SlotTier


def make_room(core: Core, pages: int, window_pages: int = 0, states: int = 0) -> bool:
    """Evict from the device until that much is free in each pool; False when even evicting was not enough."""
    enough = True
    if core.device.free_pages < pages:
        _evict_device(core, pages)
        enough = core.device.free_pages >= pages
    for tier, needed in ((core.windows, window_pages), (core.states, states)):
        if tier is not None and tier.device_pool.free_pages < needed:
            _evict_slots(core, tier, needed)
            enough = enough and tier.device_pool.free_pages >= needed
    return enough


def _evict_device(core: Core, target: int) -> None:
    declined = []
    while core.device.free_pages < target:
        node = core.tree.victims.pop()
        if node is None:
            break
        if not _evict_leaf(core, node):
            declined.append(node)
    for node in declined:
        core.tree.refresh(node)


def _evict_slots(core: Core, tier: SlotTier, target: int) -> None:
    """A leaf leaves with everything; further up only the window or state goes and full attention stays."""
    declined: list[Node] = []
    while tier.device_pool.free_pages < target:
        node = tier.victims.pop()
        if node is None:
            break
        if is_device_leaf(node):
            if not _evict_leaf(core, node):
                declined.append(node)
            continue
        if core.tree.write_back and node.host is None and node.device is not None:
            backup.back_up_now(core, node)
        tier.drop_device(node)
        if tier.kind == "window" and core.states is not None:
            core.states.drop_device(node)
    for node in declined:
        tier.victims.offer(node)


def _evict_leaf(core: Core, node: Node) -> bool:
    """Demote a backed-up leaf, delete another (write_back: back it up first); False when it has to stay."""
    tree = core.tree
    size = len(node.keys) * core.page_size
    if node.host is None:
        if not tree.write_back and not node.children:
            core.counters.evicted += size
            if core.config.hicache:
                core.counters.dropped["write_through_unbacked_eviction"] += size
            _delete(core, node)
            return True
        if not tree.write_back or not core.config.hicache or not backup.back_up_now(core, node):
            return _drop_subtree(core, node)
    core.counters.evicted += size
    parent = node.parent
    assert parent is not None
    tree.drop_device(node)
    tree.duplicates.pop(node.id, None)
    tree.refresh(node)
    tree.refresh(parent)
    return True


def _delete(core: Core, node: Node) -> None:
    core.tree.drop_device(node)
    core.tree.remove(node)


def _drop_subtree(core: Core, node: Node) -> bool:
    """The leaf goes for good, and the host-only nodes below it: write_back with a full host, or a failed backup."""
    below = list(node.children.values())
    for child in below:
        below += child.children.values()
    if node.loading or node.host_locks or any(n.busy or n.locks or n.host_locks for n in below):
        return False
    tree = core.tree
    for child in reversed(below):
        tree.drop_host(child)
        parent = child.parent
        assert parent is not None
        del parent.children[child.keys[0]]
        child.parent = None
        tree.n_nodes -= 1
    core.counters.evicted += len(node.keys) * core.page_size
    core.counters.dropped["host_pressure"] += len(node.keys) * core.page_size
    _delete(core, node)
    return True
