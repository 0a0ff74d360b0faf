"""Publishing computed pages in the tree: after each prefill chunk, and once more when the request ends.

Sources in SGLang 0.5.23: mem_cache/unified_radix_cache.py `checkpoint_into_tree`, unified_tree_core.py insert walk,
components/swa.py `update_component_on_insert_overlap` and `_maybe_split_leaf_for_swa_lock`, components/mamba.py
`prepare_for_caching_req`, npu/dsv4/c128_sidecar_component.py `floor_cache_len`.
"""

from __future__ import annotations

from hicache_bench.cachesim import backup, eviction
from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node
from hicache_bench.cachesim.pages import Holding
from hicache_bench.cachesim.request import CacheRequest
from hicache_bench.cachesim.tree import common_pages

_BACKUP_HITS = {"write_through": 1, "write_through_selective": 2, "write_back": 1 << 62}


def publish(core: Core, request: CacheRequest, up_to: int, finished: bool) -> None:
    """Insert the first `up_to` tokens as far as every component can name them, and lock the path to their end."""
    length = _cacheable_tokens(core, request, up_to, finished)
    if not finished:
        leave_window(core, request, length - 1)
    pages = min(length // core.page_size, len(request.keys))
    if pages > 0 and (core.states is None or finished or _spare_state(core, request)):
        target = _insert(core, request, pages, finished)
        prompt_pages = request.n_tokens // core.page_size
        if core.tree.plain and 0 < prompt_pages < pages:
            _favour_prompt(core, request, prompt_pages)
        request.protected = max(request.protected, pages)
        request.counted = max(request.counted, pages)
        if request.lock is not None:
            core.tree.unlock(request.lock)
        request.lock = core.tree.lock(target)
        if request.window_branch is not None and pages >= request.window_branch:
            request.window_branch = None
            if not finished:
                leave_window(core, request, up_to - 1)
    if not finished:
        request.track = request.track_before = None


def leave_window(core: Core, request: CacheRequest, position: int) -> None:
    """Free the request's window pages that lie wholly behind the window of `position`, keeping whole pages
    (mem_cache/common.py `free_swa_out_of_window_slots`)."""
    if core.windows is None or request.own_window is None:
        return
    size, window = core.page_size, core.tree.window_tokens
    if position - window < request.window_from * size + 1:
        return
    start = max(request.window_from, request.protected)
    edge = position - -(-max(window, size) // size) * size
    if core.states is not None and request.track is not None:
        edge = min(edge, request.track - window)
    new = max(start, edge // size)
    request.window_from = new
    if new > start:
        held_from = request.allocated - len(request.own_window)
        core.windows.device_pool.give_back(request.own_window, 0, max(new - held_from, 0))


def _cacheable_tokens(core: Core, request: CacheRequest, up_to: int, finished: bool) -> int:
    length = up_to
    size = core.page_size
    if core.states is not None:
        track = request.track or 0
        if finished and track > up_to and core.config.mamba is not None and core.config.mamba.tracking_slots == 2:
            track = request.track_before or 0
        length = min(length, track if track <= up_to else 0)
    elif request.window_branch is not None and request.protected < request.window_branch <= up_to // size:
        length = request.window_branch * size
    if core.tree.group_pages:
        group = core.tree.group_pages * size
        length = length // group * group
    return length


def _spare_state(core: Core, request: CacheRequest) -> bool:
    """A running request gives a state away and goes on with a new one."""
    assert core.states is not None
    if request.own_states is None or not eviction.make_room(core, 0, 0, 1):
        return False
    core.states.device_pool.grow(request.own_states, 1)
    return True


def _insert(core: Core, request: CacheRequest, pages: int, finished: bool) -> Node:
    tree = core.tree
    keys = request.keys
    threshold = _BACKUP_HITS[core.config.write_policy] if core.config.hicache else 1 << 62
    tree.root.time = tree.tick()
    node, at = tree.root, 0
    while at < pages:
        child = node.children.get(keys[at])
        if child is None:
            break
        child.time = tree.tick()
        end = child.end
        if end > pages or keys[at:end] != child.keys:
            child = tree.split(child, common_pages(child.keys, keys, at, pages))
            end = child.end
        if request.priority > child.priority:
            child.priority = request.priority
        if child.device is None:
            tree.set_device(child, _own_pages(core, request, child, at, end))
            _fill_window(core, request, child, cap=False)
        else:
            _give_duplicate(core, request, at, end)
            if core.windows is not None and end > request.protected:
                _merge_window(core, request, child)
        if end > request.counted:
            child.hits += 1
            if child.host is None and child.hits >= threshold:
                backup.back_up(core, child)
        node, at = child, end
    fresh = at < pages
    if fresh:
        node = _add_leaf(core, request, node, at, pages)
    if core.states is not None:
        _attach_state(core, request, node, finished)
    if core.windows is not None:
        tree.touch_window(node, tree.tick())
    if fresh and node.end > request.counted:
        node.hits += 1
        if node.hits >= threshold:
            backup.back_up(core, node)
    elif not fresh and not tree.plain and not tree.write_back:
        backup.back_up_slots(core, node)
    return node


def _favour_prompt(core: Core, request: CacheRequest, pages: int) -> None:
    """Split the prompt from the output, so that the output can be evicted alone, and let the prompt outrank it."""
    tree = core.tree
    node, at = tree.root, 0
    while at < pages:
        node = node.children[request.keys[at]]
        node.time = tree.tick()
        if node.end > pages:
            node = tree.split(node, pages - at)
        node.priority = max(node.priority, request.priority + 1)
        at = node.end


def _add_leaf(core: Core, request: CacheRequest, parent: Node, at: int, pages: int) -> Node:
    tree = core.tree
    leaf = tree.add_leaf(parent, request.keys[at:pages], request.priority)
    tree.set_device(leaf, _own_pages(core, request, leaf, at, pages))
    _fill_window(core, request, leaf, cap=True)
    if tree.group_pages:
        for boundary in range((at // tree.group_pages + 1) * tree.group_pages, pages, tree.group_pages):
            node = leaf
            while node.start >= boundary:
                assert node.parent is not None
                node = node.parent
            if node.end != boundary:
                tree.split(node, boundary - node.start)
    return leaf


def _own_pages(core: Core, request: CacheRequest, node: Node, at: int, end: int) -> Holding:
    """Pages [at, end) of the request become the node's."""
    own = request.own
    assert own is not None
    start = request.allocated - len(own)
    return core.device.hand_over(own, at - start, end - start, node.id)


def _give_duplicate(core: Core, request: CacheRequest, at: int, end: int) -> None:
    """The tree has these pages already: the request frees its own and goes on with the tree's."""
    own = request.own
    if own is None:
        return
    start = request.allocated - len(own)
    core.device.give_back(own, max(at - start, 0), max(end - start, 0))


# --------------------------------------------------------------------------- windows and states


def _fill_window(core: Core, request: CacheRequest, node: Node, cap: bool) -> None:
    """Give `node` the request's window pages; what lies before `window_from` is split off without any. With
    `cap`, a long leaf is cut so that locking its end pins one window only."""
    if core.windows is None or (node.window is not None and node.window.device is not None):
        return
    live = max(node.start, request.window_from)
    if live >= node.end:
        return
    if live > node.start:
        core.tree.split(node, live - node.start)
    tail = core.tree.window_tokens + core.page_size - 1
    if cap and len(node.keys) > tail // core.page_size:
        _window_pages(core, request, core.tree.split(node, len(node.keys) - tail // core.page_size))
    _window_pages(core, request, node)


def _merge_window(core: Core, request: CacheRequest, node: Node) -> None:
    """A node that was there: it takes the request's window where its own was lost, else the request frees it."""
    assert core.windows is not None
    own = request.own_window
    if node.window is None or node.window.device is None:
        _fill_window(core, request, node, cap=False)
    elif own is not None:
        start = request.allocated - len(own)
        core.windows.device_pool.give_back(own, 0, max(node.end - start, 0))


def _window_pages(core: Core, request: CacheRequest, node: Node) -> None:
    assert core.windows is not None
    own = request.own_window
    assert own is not None
    start = request.allocated - len(own)
    holding = core.windows.device_pool.hand_over(own, node.start - start, node.end - start, node.id)
    core.windows.set_device(node, holding, core.tree.tick())


def _attach_state(core: Core, request: CacheRequest, node: Node, finished: bool) -> None:
    """The recurrent state at the end of what was inserted goes to its node, unless that has one."""
    states, own = core.states, request.own_states
    assert states is not None
    now = core.tree.tick()
    slot = node.state
    if own is None or not own.pages:
        return
    if slot is None or slot.device is None:
        states.set_device(node, states.device_pool.hand_over(own, 0, 1, node.id), now)
    else:
        slot.time = now
        if not finished:
            states.device_pool.give_back(own, 0, 1)
    node.time = core.tree.tick()
