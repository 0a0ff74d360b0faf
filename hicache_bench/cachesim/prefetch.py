"""Reading from storage ahead of a request: storage to host, then into the tree as host pages.

Sources in SGLang 0.5.23: managers/scheduler.py `_prefetch_kvcache`, mem_cache/unified_radix_cache.py
`prefetch_from_storage`, `_drain_and_alloc_storage_hit`, `check_prefetch_progress`, `_handle_prefetch_result`,
unified_tree_core.py `insert_host`.
"""

from __future__ import annotations

from hicache_bench.cachesim import host_eviction
from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node
from hicache_bench.cachesim.request import CacheRequest
from hicache_bench.cachesim.transfers import Transfer

_RATE_LIMIT = 0.5
"""Share of the host pool that prefetches under way may ask for; above it new ones are declined."""


def start(core: Core, request: CacheRequest) -> Transfer | None:
    """Look the request up and begin to read what storage has beyond the match; None when there is nothing to read.

    Nothing is asked when the deepest match is on the device only, when fewer than `prefetch_threshold` tokens are
    missing, or above the rate limit.
    """
    tree, config, storage = core.tree, core.config, core.storage
    match = tree.match(request.keys, request.limit_pages)
    if storage is None or request.prefetch is not None:
        return request.prefetch
    best = match.best
    if best.parent is not None and best.host is None:
        return None
    at = best.end
    span = request.limit_pages - at
    if span <= 0 or span * core.page_size < config.prefetch_threshold:
        return None
    if core.prefetch_pages >= _RATE_LIMIT * core.host.capacity:
        return None
    hit = _restorable(core, request, best, at, span)
    core.counters.storage_hit += hit * core.page_size
    if hit == 0 or hit * core.page_size < config.prefetch_threshold:
        core.counters.unfulfilled["below_threshold"] += hit * core.page_size
        return None
    return _begin(core, request, best, at, span, hit)


def _restorable(core: Core, request: CacheRequest, anchor: Node, at: int, span: int) -> int:
    """Stored pages without a gap, cut back to where a stored window and state end (trailing-pages policy)."""
    storage = core.storage
    assert storage is not None
    keys = request.keys
    hit = storage.prefix(keys, at, at + span)
    if core.tree.plain:
        return hit
    needed = _window_need(core, anchor, span)
    for pages in range(hit, 0, -1):
        last = at + pages
        if core.tree.group_pages and last % core.tree.group_pages:
            continue
        if core.states is not None and keys[last - 1] not in storage.states:
            continue
        if all(key in storage.windows for key in keys[max(last - needed, at) : last]):
            return pages
    return 0


def _window_need(core: Core, anchor: Node, span: int) -> int:
    if core.windows is None:
        return 0
    window = -(-core.tree.window_tokens // core.page_size)
    if span >= window:
        return window
    return span if anchor.parent is None else 0


def _begin(core: Core, request: CacheRequest, anchor: Node, at: int, span: int, hit: int) -> Transfer | None:
    lock = core.tree.lock_host(anchor)
    if core.host.free_pages < hit:
        host_eviction.make_host_room(core, hit)
    pages = min(hit, core.host.free_pages)
    window = min(_window_need(core, anchor, span), pages)
    if (pages < hit and not core.tree.plain) or pages * core.page_size < core.config.prefetch_threshold or pages == 0 \
            or not _slot_room(core, window):
        core.counters.unfulfilled["host_capacity"] += hit * core.page_size
        core.tree.unlock_host(lock)
        return None
    core.counters.unfulfilled["host_capacity"] += (hit - pages) * core.page_size
    transfer = core.transfer("storage_read", pages, [])
    transfer.request, transfer.anchor = request, anchor
    transfer.anchor_mark = None if lock is None else lock[1]
    transfer.start, transfer.requested_pages = at, span
    transfer.keys = request.keys[at : at + pages]
    core.host.acquire(transfer.owner, pages)
    if core.windows is not None and window:
        core.windows.host_pool.acquire(transfer.owner, window)
        transfer.window_pages = window
    if core.states is not None:
        core.states.host_pool.acquire(transfer.owner, 1)
        transfer.states = 1
    core.prefetch_pages += span
    request.prefetch = transfer
    return transfer


def _slot_room(core: Core, window: int) -> bool:
    return all(tier is None or not needed or host_eviction.make_host_slots(core, tier, needed)
               for tier, needed in ((core.windows, window), (core.states, 1)))


def may_go(core: Core, request: CacheRequest, expired: bool) -> bool:
    """The admission poll: False while the policy makes the request wait for its read."""
    transfer = request.prefetch
    if transfer is None:
        return True
    policy = core.config.prefetch_policy
    if policy == "wait_complete" or (policy == "timeout" and not expired):
        return False
    end(core, transfer, "deadline" if policy == "timeout" else "storage_transfer")
    return True


def end(core: Core, transfer: Transfer, reason: str) -> None:
    """Use the pages read so far; the rest is given back and counted under `reason`."""
    request = transfer.request
    assert request is not None
    assert core.storage is not None
    done = transfer.done_pages
    if done < transfer.pages and not core.tree.plain:
        done = 0
    core.counters.unfulfilled[reason] += (transfer.pages - done) * core.page_size
    core.counters.prefetched += done * core.page_size
    holding = core.host.active[transfer.owner]
    core.host.give_back(holding, done, len(holding))
    core.storage.touch(transfer.keys[:done])
    target, fresh_from = _graft(core, transfer, done)
    _graft_slots(core, transfer, target, done)
    core.host.abort(holding)
    request.storage_start, request.storage_pages = transfer.start + fresh_from, done - fresh_from
    core.prefetch_pages -= transfer.requested_pages
    request.prefetch = None
    core.end(transfer)
    if transfer.anchor is not None and transfer.anchor_mark is not None:
        core.tree.unlock_host((transfer.anchor, transfer.anchor_mark))


def _graft(core: Core, transfer: Transfer, done: int) -> tuple[Node | None, int]:
    """Insert `done` pages as host pages below the anchor. Returns the node they end at (None when dropped) and
    how many of them the tree had already."""
    tree, pool = core.tree, core.host
    node = transfer.anchor
    assert node is not None
    holding = pool.active[transfer.owner]
    node.time = tree.tick()
    keys = transfer.keys
    at = covered = 0
    while at < done:
        child = node.children.get(keys[at])
        if child is None:
            break
        child.time = tree.tick()
        same = _common(child, keys, at, done)
        if same < len(child.keys):
            child = tree.split(child, same)
        if tree.write_back or child.host is not None:
            pool.give_back(holding, 0, same)
            covered += same
        else:
            child.host = pool.hand_over(holding, 0, same, child.id)
            tree.track_duplicate(child)
        node, at = child, at + same
    core.counters.unfulfilled["device_overlap"] += covered * core.page_size
    if at == done:
        return (node if node.host is not None and done else None), covered
    if node.parent is not None and node.host is None and not tree.write_back:
        core.counters.unfulfilled["dropped"] += (done - at) * core.page_size
        return None, done
    leaf = tree.add_leaf(node, keys[at:done], node.priority)
    leaf.host = pool.hand_over(holding, 0, done - at, leaf.id)
    tree.refresh(leaf)
    return leaf, covered


def _common(child: Node, keys: list[object], at: int, done: int) -> int:
    most = min(len(child.keys), done - at)
    if child.keys[:most] == keys[at : at + most]:
        return most
    return next(index for index in range(most) if child.keys[index] != keys[at + index])


def _graft_slots(core: Core, transfer: Transfer, target: Node | None, done: int) -> None:
    """Hand the window and the state that were read to the nodes they end at; what is there already is freed."""
    if core.states is not None and transfer.states:
        pool = core.states.host_pool
        holding = pool.active[transfer.owner]
        if target is not None and (target.state is None or target.state.host is None):
            core.states.set_host(target, pool.hand_over(holding, 0, 1, target.id))
        pool.abort(holding)
    if core.windows is None or not transfer.window_pages:
        return
    pool = core.windows.host_pool
    holding = pool.active[transfer.owner]
    edge = transfer.start + done - transfer.window_pages
    cursor = target
    while cursor is not None and cursor is not transfer.anchor and cursor.parent is not None and cursor.end > edge:
        live = max(cursor.start, edge)
        if cursor.window is None or cursor.window.host is None:
            if live > cursor.start:
                core.tree.split(cursor, live - cursor.start)
            taken = pool.hand_over(holding, live - edge, cursor.end - edge, cursor.id)
            core.windows.set_host(cursor, taken)
        cursor = cursor.parent
    pool.abort(holding)
