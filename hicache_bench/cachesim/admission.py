"""Letting a request in, growing it, and letting it go: its pages, windows and states.

Sources in SGLang 0.5.23: managers/schedule_policy.py `add_one_req`, mem_cache/allocation.py
`alloc_paged_token_slots_extend` (a page more than needed must be free for every request), managers/schedule_batch.py
`split_cached_prefix_by_tier`, `_mamba_radix_cache_v2_req_prepare_for_extend`.
"""

from __future__ import annotations

from typing import Final

from hicache_bench.cachesim import eviction, insertion, loading
from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.request import Admission, CacheRequest, TierTokens
from hicache_bench.cachesim.transfers import Transfer
from hicache_bench.cachesim.tree import Match

_CLIP_NEW_TOKENS: Final = 4096
"""Room for output that admission asks for at most (managers/schedule_policy.py CLIP_MAX_NEW_TOKENS)."""

_TRIM_EVERY_TOKENS: Final = 128
"""A decoding request leaves its window behind in steps of this size (SGLANG_SWA_EVICTION_INTERVAL)."""


def admit(core: Core, request: CacheRequest, chunk_tokens: int | None, reserve_tokens: int) -> Admission | None:
    """See HiCache.admit."""
    match = core.tree.match(request.keys, request.limit_pages)
    lock = core.tree.lock(match.on_device)
    prefix = match.on_device.end
    if not _has_room(core, request, prefix, reserve_tokens):
        core.tree.unlock(lock)
        return None
    loaded: Transfer | None = None
    if match.best is not match.on_device:
        loaded = loading.load_back(core, match.best)
        if loaded is not None:
            loaded.request = request
            core.tree.unlock(lock)
            lock = core.tree.lock(match.best)
    host_pages = match.best.end - prefix if loaded is not None else 0
    pages = prefix + host_pages
    end = _first_chunk_end(core, request, pages, chunk_tokens)
    if end is None or not _take_first_chunk(core, request, pages, end):
        core.tree.unlock(lock)
        return None
    request.lock = lock
    request.phase = "running"
    _note_branches(core, request, match)
    _note_checkpoint(core, request, request.prefix_tokens, end)
    tiers = _split_tiers(core, request, pages, host_pages)
    return Admission(tiers, request.n_tokens - request.prefix_tokens, loaded, end)


def next_chunk_end(core: Core, request: CacheRequest, chunk_tokens: int | None) -> int:
    """See HiCache.next_chunk_end."""
    limit = chunk_tokens or core.config.chunked_prefill_size or request.n_tokens
    if core.windows is not None:
        limit = min(limit, max(_window_tokens_left(core) - core.page_size, core.page_size))
    return min(request.computed + limit, request.n_tokens)


def extend(core: Core, request: CacheRequest, up_to: int) -> bool:
    """See HiCache.extend."""
    have = request.computed or request.prefix_tokens
    if not _make_room(core, -(-(up_to - have) // core.page_size) + _spare(core)):
        return False
    needed = -(-up_to // core.page_size) - request.allocated
    if needed > 0:
        _add_pages(core, request, needed)
    _note_checkpoint(core, request, have, up_to)
    return True


def grow(core: Core, request: CacheRequest, n_tokens: int) -> bool:
    """See HiCache.grow."""
    needed = -(-n_tokens // core.page_size) - request.allocated
    if needed > 0:
        if not _make_room(core, needed):
            return False
        _add_pages(core, request, needed)
    before, request.computed = request.computed, n_tokens
    if core.states is not None:
        grid = core.config.mamba_track_tokens
        last = n_tokens // grid * grid
        if last > before:
            request.track_before, request.track = request.track, last
    left = n_tokens - 1 - core.tree.window_tokens
    if core.windows is not None and left >= request.window_from * core.page_size + _TRIM_EVERY_TOKENS:
        insertion.leave_window(core, request, n_tokens - 1)
    return True


def release(core: Core, request: CacheRequest) -> None:
    """Free what the request still holds itself and unlock its prefix."""
    for pool, holding in ((core.device, request.own),
                          (core.windows.device_pool if core.windows is not None else None, request.own_window),
                          (core.states.device_pool if core.states is not None else None, request.own_states)):
        if pool is not None and holding is not None:
            pool.abort(holding)
    request.own = request.own_window = request.own_states = None
    if request.lock is not None:
        core.tree.unlock(request.lock)
        request.lock = None
    request.phase = "finished"
    core.live_requests -= 1


def _has_room(core: Core, request: CacheRequest, prefix_pages: int, reserve_tokens: int) -> bool:
    needed = request.n_tokens - prefix_pages * core.page_size + core.page_size + reserve_tokens
    needed += min(request.max_new_tokens, _CLIP_NEW_TOKENS)
    return needed < (core.device.free_pages + core.tree.evictable_pages) * core.page_size


def _spare(core: Core) -> int:
    """The page that must be free beyond what is taken; single-token pages are counted exactly."""
    return 1 if core.page_size > 1 else 0


def _make_room(core: Core, pages: int, states: int = 0) -> bool:
    return eviction.make_room(core, pages, pages if core.windows is not None else 0, states)


def _first_chunk_end(core: Core, request: CacheRequest, prefix_pages: int, chunk_tokens: int | None) -> int | None:
    """Where the first chunk ends: the prompt's end if its pages fit the limit, else a page boundary; None when the
    window pool has no room for it now. Only a prompt whose windows could never fit is cut shorter for their sake
    (mem_cache/prefill_budget.py `SWAPrefillBudget.check_prefill`)."""
    size = core.page_size
    start = prefix_pages * size
    rest = -(-(request.n_tokens - start) // size) * size
    limit = chunk_tokens or core.config.chunked_prefill_size
    if core.windows is not None:
        new = min(request.max_new_tokens, _CLIP_NEW_TOKENS)
        left = _window_tokens_left(core)
        needed = _window_tokens(core, rest, new, limit)
        if needed >= left:
            if limit is None or needed < core.windows.device_pool.capacity * size:
                return None
            limit = min(limit, (left - _window_tokens(core, 0, new, None)) // size * size)
    if limit is None or rest <= limit:
        return request.n_tokens
    return start + limit // size * size if limit >= size else None


def _window_tokens(core: Core, extend_tokens: int, new_tokens: int, limit: int | None) -> int:
    """Tokens of the window pool that a prefill is reckoned to need at its peak (`estimate_swa_kv_tokens`)."""
    window = core.tree.window_tokens
    allocated = extend_tokens if limit is None else min(extend_tokens, limit)
    return max(allocated - window, 0) + min(extend_tokens + new_tokens, window) + core.page_size


def _window_tokens_left(core: Core) -> int:
    assert core.windows is not None
    return (core.windows.device_pool.free_pages + core.windows.evictable_pages) * core.page_size


def _take_first_chunk(core: Core, request: CacheRequest, prefix_pages: int, end: int) -> bool:
    pages = -(-end // core.page_size) - prefix_pages
    states = 0 if core.config.mamba is None else 1 + core.config.mamba.tracking_slots
    if not _make_room(core, pages + _spare(core), states):
        return False
    request.own = core.device.acquire(request.owner, pages)
    if core.windows is not None:
        request.own_window = core.windows.device_pool.acquire(request.owner, pages)
    if core.states is not None:
        request.own_states = core.states.device_pool.acquire(request.owner, states)
    request.protected = prefix_pages
    request.allocated = prefix_pages + pages
    request.prefix_tokens = prefix_pages * core.page_size
    return True


def _add_pages(core: Core, request: CacheRequest, pages: int) -> None:
    assert request.own is not None
    core.device.grow(request.own, pages)
    if request.own_window is not None and core.windows is not None:
        core.windows.device_pool.grow(request.own_window, pages)
    request.allocated += pages


def _note_branches(core: Core, request: CacheRequest, match: Match) -> None:
    """Full attention that reaches further than windows or states do: leave those where it ends this time."""
    known = match.on_device.end + match.host_pages
    if core.states is not None:
        grid = core.config.mamba_grid_pages
        branch = match.full_pages // grid * grid
        request.branch = branch if branch > known else None
    elif core.windows is not None:
        group = core.tree.group_pages or 1
        branch = match.full_pages // group * group
        request.window_branch = branch if branch > known else None


def _note_checkpoint(core: Core, request: CacheRequest, start: int, up_to: int) -> None:
    """Where this chunk leaves a recurrent state: at the last grid point, or at the branching point if it passes it."""
    if core.states is None:
        return
    grid = core.config.mamba_grid_pages * core.page_size
    if up_to - start < grid:
        return
    request.track = start + (up_to - start) // grid * grid
    branch = None if request.branch is None else request.branch * core.page_size
    if branch is not None and start < branch < up_to and (branch - start) % grid == 0:
        request.track = branch


def _split_tiers(core: Core, request: CacheRequest, pages: int, host_pages: int) -> TierTokens:
    """Who served the prefix: storage what this request's own read brought, host what was loaded back, device the
    rest."""
    size = core.page_size
    first, last = request.storage_start, request.storage_start + request.storage_pages
    storage = in_host = 0
    if request.storage_pages:
        storage = max(0, min(pages, last) - first)
        in_host = max(0, min(pages, last) - max(pages - host_pages, first))
        core.counters.unfulfilled["cache_admission_shortfall"] += (request.storage_pages - storage) * size
    host = host_pages - in_host
    return TierTokens((pages - host - storage) * size, host * size, storage * size)
