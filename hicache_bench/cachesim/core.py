"""Everything one cache consists of, shared by the modules that move pages: pools, tree, storage, counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.node import Node
from hicache_bench.cachesim.pages import PagePool
from hicache_bench.cachesim.slots import SlotTier
from hicache_bench.cachesim.storage import Storage
from hicache_bench.cachesim.transfers import Transfer, TransferKind
from hicache_bench.cachesim.tree import Tree


@dataclass(slots=True)
class Counters:
    """Running totals in full-attention tokens, named after SGLang's metrics (observability/metrics_collector.py).

    evicted: off the device, backed up or not; backup: device to host; load_back: host to device; prefetched:
    storage to host; storage_hit: found by storage queries; storage_backup: host to storage. `dropped` (host_pressure,
    write_through_unbacked_eviction) and `unfulfilled` (below_threshold, host_capacity, deadline, storage_transfer,
    device_overlap, dropped, cache_admission_shortfall) are by reason.
    """

    evicted: int = 0
    backup: int = 0
    load_back: int = 0
    prefetched: int = 0
    storage_hit: int = 0
    storage_backup: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unfulfilled: Counter[str] = field(default_factory=Counter)


class Core:
    """State of one cache. `reset` empties device and host, never storage or counters."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.page_size = config.page_size
        self.storage = Storage(config.storage_pages) if config.storage else None
        self.counters = Counters()
        self.started: list[Transfer] = []
        self.in_flight: dict[int, Transfer] = {}
        self.prefetch_pages = 0
        self.live_requests = 0
        self.backups_failed = False
        self._transfers = 0
        self.reset()

    def reset(self) -> None:
        config = self.config
        self.device = PagePool(config.device_pages, "device")
        self.host = PagePool(config.host_pages, "host")
        self.windows = None if config.swa is None else SlotTier(
            "window", PagePool(config.swa_pages, "device windows"), PagePool(config.swa_host_pages, "host windows"))
        self.states = None if config.mamba is None else SlotTier(
            "state", PagePool(config.mamba.states, "device states"), PagePool(config.mamba_host_states, "host states"))
        self.tree = Tree(config, self.device, self.host, self.windows, self.states)

    def transfer(self, kind: TransferKind, pages: int, nodes: list[Node]) -> Transfer:
        """A transfer begun now; `nodes` keep being told about it while they are split."""
        self._transfers += 1
        made = Transfer(self._transfers, kind, pages, nodes)
        for node in nodes:
            if node.busy is None:
                node.busy = [made]
            else:
                node.busy.append(made)
        self.started.append(made)
        self.in_flight[made.id] = made
        return made

    def end(self, transfer: Transfer) -> None:
        """The transfer is over: its nodes forget it."""
        for node in transfer.nodes:
            if node.busy is not None:
                if len(node.busy) == 1:
                    node.busy = None
                else:
                    node.busy.remove(transfer)
        del self.in_flight[transfer.id]
