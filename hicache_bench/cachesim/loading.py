"""Copies from host to device, all or nothing (SGLang 0.5.23, mem_cache/unified_radix_cache.py `init_load_back`,
`load_back`, unified_tree_core.py `commit_load_back`)."""

from __future__ import annotations

from hicache_bench.cachesim import eviction
from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node
from hicache_bench.cachesim.pages import PageState
from hicache_bench.cachesim.transfers import Transfer


def load_back(core: Core, best: Node) -> Transfer | None:
    """Bring everything on the path to `best` back to the device, all or nothing; None when there is nothing to
    load, too little to bother (`load_back_threshold`), or no room for it."""
    tree = core.tree
    missing: list[Node] = []
    cursor: Node | None = best
    while cursor is not None and cursor.parent is not None and cursor.device is None:
        missing.append(cursor)
        cursor = cursor.parent
    pages = best.end - (cursor.end if cursor is not None else 0)
    windows = _lost_window(core, best)
    with_state = best.state is not None and best.state.device is None and best.state.host is not None
    small = pages * core.page_size < max(1, core.config.load_back_threshold)
    if small and not windows and not with_state:
        return None
    if any(n.loading is not None for n in missing):
        return None
    host_lock, lock = tree.lock_host(best), tree.lock(best)
    window_pages = sum(len(n.keys) for n in windows)
    if not eviction.make_room(core, pages, window_pages, int(with_state)):
        tree.unlock(lock)
        tree.unlock_host(host_lock)
        return None
    missing.reverse()
    windows.reverse()
    transfer = core.transfer("load_back", pages, [*missing, *(n for n in windows if n not in missing)]
                             or [best])
    transfer.window_pages, transfer.states = window_pages, int(with_state)
    transfer.window_nodes = windows
    _take_device(core, transfer, missing, windows, best if with_state else None)
    tree.unlock(lock)
    transfer.lock = tree.lock(best)
    transfer.anchor = best
    transfer.anchor_mark = None if host_lock is None else host_lock[1]
    core.counters.load_back += pages * core.page_size
    return transfer


def _take_device(core: Core, transfer: Transfer, missing: list[Node], windows: list[Node], state: Node | None) -> None:
    tree = core.tree
    for node in missing:
        assert node.host is not None
        node.loading = transfer
        if node.host.state is not PageState.COPYING:
            core.host.retain(node.host)
        tree.set_device(node, core.device.acquire(node.id, len(node.keys)))
    now = tree.tick()
    for node in windows:
        assert core.windows is not None
        pool = core.windows.device_pool
        core.windows.set_device(node, pool.acquire(node.id, len(node.keys)), now)
    if state is not None:
        assert core.states is not None
        core.states.set_device(state, core.states.device_pool.acquire(state.id), now)


def _lost_window(core: Core, best: Node) -> list[Node]:
    """Nodes of the window behind `best` that have it on the host only, deepest first."""
    lost: list[Node] = []
    covered = 0
    cursor: Node | None = best
    while core.windows is not None and cursor is not None and cursor.parent is not None \
            and covered < core.tree.window_tokens:
        slot = cursor.window
        if slot is None or (slot.device is None and slot.host is None):
            break
        if slot.device is None:
            lost.append(cursor)
        covered += len(cursor.keys) * core.page_size
        cursor = cursor.parent
    return lost


def finish_load_back(core: Core, transfer: Transfer) -> None:
    """The device pages are readable; the host keeps its copy."""
    for node in transfer.nodes:
        if node.loading is not transfer:
            continue
        node.loading = None
        if node.device is not None and node.device.state is PageState.COPYING:
            core.device.commit(node.device)
        if node.host is not None and node.host.state is PageState.REFERENCED:
            core.host.release(node.host)
        core.tree.track_duplicate(node)
    anchor = transfer.anchor
    assert anchor is not None
    for tier, nodes in ((core.windows, transfer.window_nodes), (core.states, [anchor] if transfer.states else [])):
        for node in nodes:
            slot = None if tier is None else tier.get(node)
            if tier is not None and slot is not None and slot.device is not None \
                    and slot.device.state is PageState.COPYING:
                tier.device_pool.commit(slot.device)
    core.end(transfer)
    if transfer.lock is not None:
        core.tree.unlock(transfer.lock)
    if transfer.anchor_mark is not None:
        core.tree.unlock_host((anchor, transfer.anchor_mark))
