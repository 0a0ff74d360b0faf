"""Tree nodes: a run of pages with one fate, and what each tier holds of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from hicache_bench.cachesim.pages import Holding

if TYPE_CHECKING:
    from hicache_bench.cachesim.transfers import Transfer

PageKey = Hashable
"""Names one page and its whole prefix: a chain digest, a trace's hash id. Equal keys mean equal prefixes."""


class Slot:
    """What one component next to full attention holds on a node (a sliding window's pages, a recurrent state).

    `mark` names the older edge of a locked window, as a split must move it to the head.
    """

    __slots__ = ("device", "host", "lock", "mark", "time")

    def __init__(self) -> None:
        self.device: Holding | None = None
        self.host: Holding | None = None
        self.lock = 0
        self.mark: int | None = None
        self.time = 0


class Node:
    """`keys` are the pages of this node, `end` the pages from the root to its end.

    `device` and `host` hold its full-attention pages, None when that tier has no copy. `locks` counts requests
    and copies that need the device pages; `host_locks` those that need the host pages. `device_children` counts
    children with device pages, so that a device leaf is known without a search.
    """

    __slots__ = ("busy", "children", "device", "device_children", "end", "hits", "host", "host_locks", "host_mark",
                 "id", "keys", "loading", "locks", "parent", "pending", "priority", "state", "time", "window")

    def __init__(self, node_id: int, keys: list[PageKey], parent: Node | None, end: int) -> None:
        self.id = node_id
        self.keys = keys
        self.parent = parent
        self.end = end
        self.children: dict[PageKey, Node] = {}
        self.device: Holding | None = None
        self.host: Holding | None = None
        self.device_children = 0
        self.locks = 0
        self.host_locks = 0
        self.host_mark: int | None = None
        self.time = 0
        self.hits = 0
        self.priority = 0
        self.busy: list[Transfer] | None = None
        self.pending: Transfer | None = None
        self.loading: Transfer | None = None
        self.window: Slot | None = None
        self.state: Slot | None = None

    @property
    def start(self) -> int:
        return self.end - len(self.keys)

    def __repr__(self) -> str:
        tiers = "".join(name for name, holding in (("D", self.device), ("H", self.host)) if holding is not None)
        return f"Node({self.id}, pages {self.start}..{self.end}, {tiers or '-'}, locks {self.locks})"


def is_device_leaf(node: Node) -> bool:
    """On the device, nothing below it is, nobody needs it: the next to leave the device."""
    return node.device is not None and not node.device_children and not node.locks and node.parent is not None


def is_host_leaf(node: Node) -> bool:
    """Only on the host, without children, not needed: evicting it deletes the node."""
    return (node.host is not None and node.device is None and not node.children and not node.locks
            and not node.host_locks)
