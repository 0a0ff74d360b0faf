"""A request as the cache sees it, and what the cache answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hicache_bench.cachesim.node import Node, PageKey
from hicache_bench.cachesim.pages import Holding

if TYPE_CHECKING:
    from hicache_bench.cachesim.transfers import Transfer


@dataclass(frozen=True, slots=True)
class TierTokens:
    """Prompt tokens served by each tier, as `cached_tokens_details` reports them."""

    device: int = 0
    host: int = 0
    storage: int = 0

    @property
    def cached(self) -> int:
        return self.device + self.host + self.storage


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admitted request found: tokens by tier, tokens left to compute, and its load-back if it has one
    (the prefill may overlap it, but its tokens are not readable before). `chunk_end` is the prompt position its
    first chunk is allocated to."""

    tiers: TierTokens
    compute_tokens: int
    load_back: Transfer | None
    chunk_end: int

    @property
    def cached_tokens(self) -> int:
        return self.tiers.cached


class CacheRequest:
    """Handle of one request; made by `HiCache.request`, changed only by the cache.

    `computed` tokens have KV, `protected` pages of them belong to the tree (and are locked); `own` holds the
    request's other pages from page `protected` on. `window_from` is the first page whose sliding window KV the
    request still has.
    """

    __slots__ = ("allocated", "branch", "computed", "counted", "id", "keys", "limit_pages", "lock", "max_new_tokens",
                 "n_tokens", "own", "own_states", "own_window", "phase", "prefetch", "prefix_tokens",
                 "priority", "protected", "storage_pages", "storage_start", "track", "track_before", "window_branch",
                 "window_from")

    def __init__(self, request_id: int, keys: Sequence[PageKey], n_tokens: int, max_new_tokens: int, priority: int,
                 limit_pages: int) -> None:
        self.id = request_id
        self.keys = list(keys)
        self.n_tokens = n_tokens
        self.max_new_tokens = max_new_tokens
        self.priority = priority
        self.limit_pages = limit_pages
        self.phase: Literal["waiting", "running", "finished"] = "waiting"
        self.prefetch: Transfer | None = None
        self.storage_start = 0
        self.storage_pages = 0
        self.lock: tuple[Node, int | None] | None = None
        self.own: Holding | None = None
        self.own_window: Holding | None = None
        self.own_states: Holding | None = None
        self.prefix_tokens = 0
        self.computed = 0
        self.allocated = 0
        self.protected = 0
        self.counted = 0
        self.window_from = 0
        self.window_branch: int | None = None
        self.branch: int | None = None
        self.track: int | None = None
        self.track_before: int | None = None

    @property
    def owner(self) -> tuple[str, int]:
        """Who holds the pages that are not the tree's."""
        return "request", self.id
