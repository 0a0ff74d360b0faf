"""Copies between tiers as objects that the caller completes when their time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hicache_bench.cachesim.config import STORAGE_BATCH_PAGES
from hicache_bench.cachesim.node import Node, PageKey

if TYPE_CHECKING:
    from hicache_bench.cachesim.request import CacheRequest

TransferKind = Literal["backup", "load_back", "storage_write", "storage_read"]
TransferState = Literal["running", "done", "failed"]


class Transfer:
    """`pages` full-attention pages from one tier to the next.

    backup: device to host; load_back: host to device; storage_write and storage_read: in batches of
    `BATCH_PAGES`. `window_pages` and `states` travel with them. `blocking` backups (write_back at eviction) are
    done when they are reported: only their time is the caller's business. `request` is who waits for it.
    """

    BATCH_PAGES = STORAGE_BATCH_PAGES

    __slots__ = ("anchor", "anchor_mark", "blocking", "done_pages", "id", "keys", "kind", "lock",
                 "nodes", "pages", "request", "requested_pages", "start", "state", "states", "window_nodes",
                 "window_pages", "with_state", "with_window")

    def __init__(self, transfer_id: int, kind: TransferKind, pages: int, nodes: list[Node]) -> None:
        self.id = transfer_id
        self.kind = kind
        self.pages = pages
        self.nodes = nodes
        self.done_pages = 0
        self.state: TransferState = "running"
        self.blocking = False
        self.request: CacheRequest | None = None
        self.window_pages = 0
        self.states = 0
        self.window_nodes: list[Node] = []
        self.lock: tuple[Node, int | None] | None = None
        self.anchor: Node | None = None
        self.anchor_mark: int | None = None
        self.keys: list[PageKey] = []
        self.start = 0
        self.requested_pages = 0
        self.with_window = False
        self.with_state = False

    @property
    def batches(self) -> int:
        """Storage calls this transfer needs."""
        return -(-self.pages // self.BATCH_PAGES)

    @property
    def owner(self) -> tuple[str, int]:
        """Who holds the pages that a storage read fills."""
        return "read", self.id

    def __repr__(self) -> str:
        return f"Transfer({self.id}, {self.kind}, {self.done_pages}/{self.pages} pages, {self.state})"
