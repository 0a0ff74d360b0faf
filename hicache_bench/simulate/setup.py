"""What is simulated: the cache, the costs, the schedule; and what a run directory says about it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from hicache_bench import __version__
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import COSTS, Costs
from hicache_bench.cachesim.schedule import Schedule
from hicache_bench.records import ServerInfo
from hicache_bench.workload.mix import Capacity

STORAGE_CLASS = "SimHiCacheStorage"
"""What SGLang calls its own simulated storage backend in answers (mem_cache/storage/sim_storage.py)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One simulated server. `profile` names the model profile its cache comes from, None: plain sizes."""

    config: CacheConfig
    costs: Costs = field(default_factory=lambda: COSTS["toy"])
    schedule: Schedule = field(default_factory=Schedule)
    profile: str | None = None

    @property
    def host_tokens(self) -> int | None:
        return self.config.host_pages * self.config.page_size if self.config.hicache else None

    @property
    def capacity(self) -> Capacity:
        """Sizes for a plan. The longest request leaves a page and a token free, or it is never admitted."""
        config = self.config
        return Capacity(config.device_tokens, self.host_tokens, config.device_tokens - 2 * config.page_size)

    def info(self) -> ServerInfo:
        """The same as the capture of a server would say, labelled as simulated."""
        config = self.config
        flags = {
            "page_size": config.page_size, "max_total_tokens": config.device_tokens,
            "enable_hierarchical_cache": config.hicache, "hicache_ratio": config.host_ratio,
            "hicache_write_policy": config.write_policy, "radix_eviction_policy": config.eviction_policy,
            "hicache_storage_backend": "sim" if config.storage else None,
            "hicache_storage_prefetch_policy": config.prefetch_policy,
            "chunked_prefill_size": config.chunked_prefill_size,
            "max_running_requests": self.schedule.max_running_requests,
            "max_prefill_tokens": self.schedule.max_prefill_tokens,
            "hicache_io_backend": self.schedule.io_backend, "hicache_mem_layout": self.schedule.mem_layout,
        }
        raw: dict[str, Any] = {"cache": asdict(config), "costs": msgspec.to_builtins(self.costs),
                               "schedule": asdict(self.schedule), "profile": self.profile}
        mark = hashlib.blake2b(msgspec.json.encode(raw, order="sorted"), digest_size=8).hexdigest()
        return ServerInfo(
            origin="simulated", version=f"offline-{__version__}", model=self.profile or "simulated",
            page_size=config.page_size, device_tokens=config.device_tokens, host_tokens=self.host_tokens,
            max_request_tokens=self.capacity.max_request_tokens, hicache=config.hicache,
            storage_backend="sim" if config.storage else None, dp_size=1, flags=flags, raw=raw, fingerprint=mark)
