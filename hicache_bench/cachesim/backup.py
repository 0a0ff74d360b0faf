"""Copies from device to host.

A node counts as backed up from the moment its backup starts; until that ends its path is locked on the device, so
that nothing can leave that is still being read (SGLang 0.5.23, mem_cache/unified_radix_cache.py
`_execute_and_commit_kv_backup`, `_finish_write_through_ack`, `backup_node_for_write_back`).
"""

from __future__ import annotations

from hicache_bench.cachesim import host_eviction, storing
from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node
from hicache_bench.cachesim.pages import Holding, PageState
from hicache_bench.cachesim.slots import SlotTier
from hicache_bench.cachesim.transfers import Transfer


def back_up(core: Core, node: Node) -> None:
    """Start the backup of a node, after its ancestors that have none; stops at the first without host room."""
    chain = [node]
    above = node.parent
    while above is not None and above.parent is not None and above.host is None:
        chain.append(above)
        above = above.parent
    for link in reversed(chain):
        if not _start_backup(core, link, blocking=False):
            return


def back_up_now(core: Core, node: Node) -> bool:
    """write_back at eviction: copy, wait, and go on; False when the host has no room."""
    if not _start_backup(core, node, blocking=True):
        return False
    finish_backup(core, core.started[-1])
    return True


def back_up_slots(core: Core, node: Node) -> None:
    """A backed-up node has gained a window or a state: copy that alone."""
    if node.host is not None and node.pending is None and (_unbacked_window(core, node) or _unbacked_state(core, node)):
        _start_backup(core, node, blocking=False)


def _start_backup(core: Core, node: Node, blocking: bool) -> bool:
    """True unless the host has no room; a node with nothing to copy is done already."""
    plain = core.tree.plain
    windows = [] if plain else _unbacked_window(core, node)
    with_state = not plain and _unbacked_state(core, node)
    pages = 0 if node.host is not None else len(node.keys)
    if not pages and not windows and not with_state:
        return True
    if not _host_room(core, pages, sum(len(n.keys) for n in windows), int(with_state)):
        return False
    tree = core.tree
    if not blocking:
        lock = tree.lock(node)
    nodes = [*(n for n in reversed(windows) if n is not node), node]
    transfer = core.transfer("backup", pages, nodes)
    transfer.blocking = blocking
    transfer.anchor = node
    if pages:
        assert node.device is not None
        node.host = core.host.acquire(node.id, pages)
        if node.device.state >= PageState.READABLE:
            core.device.retain(node.device)
        core.counters.backup += pages * core.page_size
    if not plain:
        _start_slots(core, transfer, node, windows, with_state)
    for n in nodes:
        n.pending = transfer
    if not blocking:
        transfer.lock = lock
    return True


def _host_room(core: Core, pages: int, window_pages: int, states: int) -> bool:
    short = pages - core.host.free_pages
    if short > 0 and host_eviction.make_host_room(core, short) < short:
        return False
    if core.tree.plain:
        return True
    for tier, needed in ((core.windows, window_pages), (core.states, states)):
        if tier is not None and needed and not host_eviction.make_host_slots(core, tier, needed):
            return False
    return True


def _start_slots(core: Core, transfer: Transfer, node: Node, windows: list[Node], with_state: bool) -> None:
    for n in windows:
        assert core.windows is not None
        core.windows.set_host(n, core.windows.host_pool.acquire(n.id, len(n.keys)))
        transfer.window_pages += len(n.keys)
    transfer.window_nodes = windows
    if with_state:
        assert core.states is not None
        core.states.set_host(node, core.states.host_pool.acquire(node.id))
        transfer.states = 1


def _unbacked_window(core: Core, node: Node) -> list[Node]:
    """Nodes of the window that ends here, deepest first, that have it on the device only (components/swa.py)."""
    found: list[Node] = []
    if core.windows is None or not core.config.hicache:
        return found
    covered = 0
    cursor: Node | None = node
    while cursor is not None and cursor.parent is not None and covered < core.tree.window_tokens:
        slot = cursor.window
        if cursor.pending is not None or slot is None or (slot.device is None and slot.host is None):
            break
        covered += len(cursor.keys) * core.page_size
        if slot.host is None:
            found.append(cursor)
        cursor = cursor.parent
    return found


def _unbacked_state(core: Core, node: Node) -> bool:
    slot = node.state
    return core.config.hicache and slot is not None and slot.device is not None and slot.host is None


def finish_backup(core: Core, transfer: Transfer) -> None:
    """The host copies are readable; storage writes follow."""
    pieces = [n for n in transfer.nodes if n.pending is transfer]
    for node in pieces:
        node.pending = None
        if node.host is not None and node.host.state is PageState.COPYING:
            core.host.commit(node.host)
            if node.device is not None and node.device.state is PageState.REFERENCED:
                core.device.release(node.device)
        for tier, holding in _slots_under_way(core, node):
            tier.host_pool.commit(holding)
        core.tree.track_duplicate(node)
    _close(core, transfer)
    if core.storage is not None:
        for node in pieces:
            storing.write(core, node)


def fail_backup(core: Core, transfer: Transfer) -> None:
    """The copy failed: its nodes are on the device only, as before, even if nodes below them are on the host."""
    core.backups_failed = True
    for node in transfer.nodes:
        if node.pending is not transfer:
            continue
        node.pending = None
        if node.host is not None and node.host.state is PageState.COPYING:
            core.host.abort(node.host)
            node.host = None
            if node.device is not None and node.device.state is PageState.REFERENCED:
                core.device.release(node.device)
        for tier, holding in _slots_under_way(core, node):
            tier.host_pool.abort(holding)
            tier.slot(node).host = None
    _close(core, transfer)


def _slots_under_way(core: Core, node: Node) -> list[tuple[SlotTier, Holding]]:
    """Host copies of a window or a state that are not readable yet."""
    if core.tree.plain:
        return []
    slots = [(tier, tier.get(node)) for tier in (core.windows, core.states) if tier is not None]
    return [(tier, slot.host) for tier, slot in slots
            if slot is not None and slot.host is not None and slot.host.state is PageState.COPYING]


def _close(core: Core, transfer: Transfer) -> None:
    core.end(transfer)
    if transfer.lock is not None:
        core.tree.unlock(transfer.lock)
        transfer.lock = None
