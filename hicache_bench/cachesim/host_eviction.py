"""Making room on the host: leaf first and a whole node at a time, and only when something needs the room.

Sources in SGLang 0.5.23: components/full.py, swa.py and mamba.py `drive_host_eviction`, unified_tree_core.py
`_reclaim_full_host_duplicates`.
"""

from __future__ import annotations

from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import is_device_leaf, is_host_leaf
from hicache_bench.cachesim.slots import SlotTier


def make_host_room(core: Core, pages: int) -> int:
    """Evict at least `pages` host pages if it can be done; returns how many were freed."""
    tree = core.tree
    freed = _reclaim_duplicates(core, pages) if tree.write_back else 0
    while freed < pages:
        node = tree.host_victims.pop()
        if node is None:
            break
        freed += len(node.keys)
        tree.drop_host(node)
        tree.remove(node)
    return freed


def make_host_slots(core: Core, tier: SlotTier, pages: int) -> bool:
    """Evict host windows or states until `pages` are free; host leaves go with all they hold."""
    while tier.host_pool.free_pages < pages:
        node = tier.host_victims.pop()
        if node is None:
            return False
        if is_host_leaf(node):
            core.tree.drop_host(node)
            core.tree.remove(node)
        else:
            tier.drop_host(node)
    return True


def _reclaim_duplicates(core: Core, pages: int) -> int:
    """Free host copies of nodes that are on the device too: first of those that will not leave it next."""
    tree = core.tree
    freed = 0
    for spare_leaves in (True, False):
        if freed >= pages:
            break
        for node in list(tree.duplicates.values()):
            if freed >= pages:
                break
            if node.host is None or node.device is None:
                tree.duplicates.pop(node.id, None)
            elif not (spare_leaves and is_device_leaf(node)) and not node.pending and not node.loading \
                    and not node.host_locks:
                freed += len(node.keys)
                tree.drop_host(node, slots=False)
    return freed
