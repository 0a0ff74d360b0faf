"""SGLang's HiCache as split-phase calls: the caller decides when computing and copying are over.

One request: `request` → `arrive` (storage read) → `ready` (may it be admitted yet) → `admit` → for every prefill
chunk `extend` and `insert_chunk` → `decode_room` and `grow` while it decodes → `finish`, or `abort` at any time.
Copies begun on the way are handed out by `take_started`; until `complete` or `fail` is called for them they are
under way. `run_one` does all of it for one request on an idle server. See `tree` for the source of the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache_bench.cachesim import admission, backup, eviction, insertion, loading, prefetch, storing
from hicache_bench.cachesim.audit import check_core
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.core import Core, Counters
from hicache_bench.cachesim.node import PageKey
from hicache_bench.cachesim.request import Admission, CacheRequest, TierTokens
from hicache_bench.cachesim.transfers import Transfer
from hicache_bench.errors import UsageError


class HiCache:
    """One cache; every call is instantaneous, none does I/O. Illegal calls raise IllegalTransition or UsageError."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self._core = Core(config)
        self._requests = 0

    # ------------------------------------------------------------------ one request, step by step

    def request(self, keys: Sequence[PageKey], n_tokens: int, max_new_tokens: int = 1, priority: int = 0,
                match_limit_tokens: int | None = None) -> CacheRequest:
        """A request whose prompt has `n_tokens` tokens; `keys` name its full pages, and more if more is known.

        At most n_tokens - 1 tokens match (and at most `match_limit_tokens`), floored to a page. Raises UsageError
        for a prompt without tokens, with too few keys, or larger than the device.
        """
        size = self.config.page_size
        if n_tokens < 1:
            raise UsageError(f"a prompt of {n_tokens} tokens; at least 1 is needed")
        if len(keys) < n_tokens // size:
            raise UsageError(f"{len(keys)} page keys for a prompt of {n_tokens} tokens: its {n_tokens // size} full "
                             f"pages of {size} tokens need one each")
        limit = n_tokens - 1 if match_limit_tokens is None else min(n_tokens - 1, max(match_limit_tokens, 0))
        self._requests += 1
        self._core.live_requests += 1
        return CacheRequest(self._requests, keys, n_tokens, max_new_tokens, priority, limit // size)

    def arrive(self, request: CacheRequest) -> Transfer | None:
        """Look the request up and start reading what storage can add; None when nothing is read.

        While it waits this may be called again (SGLang retries a missed query every 8 scheduling passes, at most 8
        times). A read under way is returned as it is. Without a storage tier nothing happens.
        """
        if self._core.storage is None or request.phase != "waiting":
            return None
        return prefetch.start(self._core, request)

    def ready(self, request: CacheRequest, expired: bool = False) -> bool:
        """Whether the request may be admitted now. `best_effort` ends its read, with whatever has arrived;
        `wait_complete` waits for it; `timeout` waits until `expired` (see CacheConfig.prefetch_timeout_s)."""
        return prefetch.may_go(self._core, request, expired)

    def admit(self, request: CacheRequest, chunk_tokens: int | None = None,
              reserve_tokens: int = 0) -> Admission | None:
        """Match, load back, lock, and allocate the first chunk; None (and nothing kept) when there is no room.

        Room is needed for the rest of the prompt, at most 4,096 new tokens, a page, and `reserve_tokens` that
        running requests will still need; evictable pages count as room.
        """
        if request.phase != "waiting" or request.prefetch is not None:
            raise UsageError(f"request {request.id} is {request.phase}, or still reads from storage: it cannot be "
                             "admitted")
        return admission.admit(self._core, request, chunk_tokens, reserve_tokens)

    def extend(self, request: CacheRequest, up_to: int) -> bool:
        """Allocate the next prefill chunk, up to `up_to` tokens in total; False when there is no room for it."""
        return admission.extend(self._core, request, up_to)

    def next_chunk_end(self, request: CacheRequest, chunk_tokens: int | None = None) -> int:
        """Prompt position where the chunk after the one computed last should end: `chunk_tokens` further (None: the
        configured size), at the prompt's end, or where the window pool gets short. Only the first chunk is cut to
        whole pages."""
        return admission.next_chunk_end(self._core, request, chunk_tokens)

    def insert_chunk(self, request: CacheRequest, up_to: int) -> None:
        """The first `up_to` tokens are computed: publish them, and begin their backup if the policy says so.

        Not for the last chunk of a request that ends with its prefill: `finish` publishes that.
        """
        most = min(request.allocated * self.config.page_size, request.n_tokens)
        if request.phase != "running" or not request.prefix_tokens <= up_to <= most:
            raise UsageError(f"request {request.id} ({request.phase}): chunk up to {up_to}; {most} of its "
                             f"{request.n_tokens} prompt tokens are allocated")
        request.computed = up_to
        insertion.publish(self._core, request, up_to, finished=False)

    def decode_room(self, n_running: int) -> bool:
        """Evict until each of `n_running` requests could take a page, which SGLang does before every decode step."""
        core = self._core
        return eviction.make_room(core, n_running, n_running if core.windows is not None else 0)

    def grow(self, request: CacheRequest, n_tokens: int) -> bool:
        """The request now has KV of `n_tokens` tokens (prompt and output); False when no page was left for it."""
        return admission.grow(self._core, request, n_tokens)

    def finish(self, request: CacheRequest, n_output_tokens: int, keys: Sequence[PageKey] | None = None) -> None:
        """The request has ended with `n_output_tokens`: publish prompt and output but the last token, free the rest.

        `keys` name the full pages of prompt and output; pages without a key get one that never matches again.
        """
        core = self._core
        if request.phase != "running":
            raise UsageError(f"request {request.id} is {request.phase}: only a running request finishes")
        held = request.n_tokens + max(n_output_tokens - 1, 0)
        request.keys = request.keys[: request.n_tokens // core.page_size] if keys is None else list(keys)
        request.keys += [("unknown", request.id, page) for page in range(len(request.keys), held // core.page_size)]
        if request.allocated * core.page_size < held and not self.grow(request, held):
            held = request.allocated * core.page_size
        insertion.publish(core, request, held, finished=True)
        admission.release(self._core, request)

    def abort(self, request: CacheRequest) -> None:
        """Give the request up; what it has published stays."""
        if request.prefetch is not None:
            request.prefetch.done_pages = 0
            prefetch.end(self._core, request.prefetch, "storage_transfer")
        if request.phase != "finished":
            admission.release(self._core, request)

    # ------------------------------------------------------------------ transfers

    def take_started(self) -> list[Transfer]:
        """Transfers begun since the last call, oldest first."""
        core = self._core
        started, core.started = core.started, []
        return started

    def progress(self, transfer: Transfer, pages: int) -> None:
        """`pages` more pages of a storage transfer have arrived."""
        if transfer.state != "running":
            return
        if transfer.kind == "storage_write":
            storing.advance(self._core, transfer, pages)
        else:
            transfer.done_pages = min(transfer.done_pages + pages, transfer.pages)

    def complete(self, transfer: Transfer) -> None:
        """The transfer is done. One that has ended already is left alone."""
        if transfer.id not in self._core.in_flight:
            transfer.state = "done"
            return
        transfer.state = "done"
        self._finish(transfer)

    def fail(self, transfer: Transfer) -> None:
        """The transfer ends early: a backup is undone, a storage write stops, a read gives what has arrived.

        A failed load-back counts as complete: SGLang has no failure path for it.
        """
        if transfer.id not in self._core.in_flight:
            return
        transfer.state = "failed"
        if transfer.kind == "backup":
            backup.fail_backup(self._core, transfer)
        elif transfer.kind == "storage_write":
            storing.end(self._core, transfer)
        elif transfer.kind == "storage_read":
            prefetch.end(self._core, transfer, "storage_transfer")
        else:
            loading.finish_load_back(self._core, transfer)

    def settle(self) -> None:
        """Complete everything under way, and what that starts."""
        in_flight = self._core.in_flight
        while in_flight:
            self.complete(next(iter(in_flight.values())))
        self._core.started.clear()

    def _finish(self, transfer: Transfer) -> None:
        core = self._core
        if transfer.kind == "backup":
            backup.finish_backup(core, transfer)
        elif transfer.kind == "load_back":
            loading.finish_load_back(core, transfer)
        elif transfer.kind == "storage_write":
            storing.advance(core, transfer, transfer.pages - transfer.done_pages)
            storing.end(core, transfer)
        else:
            transfer.done_pages = transfer.pages
            prefetch.end(core, transfer, "storage_transfer")

    # ------------------------------------------------------------------ the whole cache

    def run_one(self, keys: Sequence[PageKey], n_tokens: int, n_new: int = 1, priority: int = 0,
                match_limit_tokens: int | None = None) -> TierTokens:
        """One request alone on the server, every transfer settled at once; `keys` may cover the output too.

        Under best_effort an idle server polls before anything has arrived, so storage serves nothing. Raises
        UsageError when the request cannot fit at all.
        """
        core = self._core
        request = self.request(keys, n_tokens, n_new, priority, match_limit_tokens)
        if core.storage is not None and self.config.prefetch_policy != "best_effort":
            read = prefetch.start(core, request)
            if read is not None:
                self.complete(read)
        admitted = self.admit(request)
        if admitted is None:
            self.abort(request)
            raise UsageError(f"a request of {n_tokens} + {n_new} tokens never fits {self.config.device_tokens} device "
                             "tokens")
        at = admitted.chunk_end
        while at < n_tokens:
            self.insert_chunk(request, at)
            self.settle()
            at = self.next_chunk_end(request)
            if not self.extend(request, at):
                raise UsageError(f"a request of {n_tokens} tokens never fits {self.config.device_tokens} device tokens")
        if n_new > 1:
            self.insert_chunk(request, n_tokens)
            self.settle()
            self._decode_alone(request, n_tokens + n_new - 1)
        self.finish(request, n_new, keys)
        self.settle()
        return admitted.tiers

    def _decode_alone(self, request: CacheRequest, end: int) -> None:
        """Every step asks for a page, but only a step into a new page takes one: two steps a page tell all."""
        size = self.config.page_size
        at = request.n_tokens
        while at < end:
            self.decode_room(1)
            at = at + 1 if at % size == 0 else min(end, -(-at // size) * size)
            if not self.grow(request, at):
                return

    def flush(self) -> bool:
        """Empty device and host; storage stays. False (and nothing done) unless fully idle."""
        if self._core.live_requests or self._core.in_flight:
            return False
        self._core.started.clear()
        self._core.reset()
        return True

    def clear_storage(self) -> None:
        """Empty storage; pages that are on the host count as backed up still and are not written again."""
        if self._core.storage is not None:
            self._core.storage.clear()

    @property
    def counters(self) -> Counters:
        return self._core.counters

    @property
    def device_used_tokens(self) -> int:
        return self._core.device.used_pages * self.config.page_size

    @property
    def host_used_tokens(self) -> int:
        return self._core.host.used_pages * self.config.page_size

    @property
    def storage_used_pages(self) -> int:
        return len(self._core.storage) if self._core.storage is not None else 0

    @property
    def evictable_tokens(self) -> int:
        """Device tokens in the tree that nobody needs."""
        return self._core.tree.evictable_pages * self.config.page_size

    @property
    def protected_tokens(self) -> int:
        """Device tokens that are in use: locked in the tree, or a running request's own."""
        return self.device_used_tokens - self.evictable_tokens

    @property
    def window_used_pages(self) -> int | None:
        """Device pages of the sliding-window pool in use; None without one."""
        return None if self._core.windows is None else self._core.windows.device_pool.used_pages

    @property
    def in_flight(self) -> tuple[Transfer, ...]:
        return tuple(self._core.in_flight.values())

    @property
    def n_nodes(self) -> int:
        return self._core.tree.n_nodes

    def check(self) -> None:
        """Raise IllegalTransition unless every invariant holds; slow, for tests."""
        check_core(self._core)
