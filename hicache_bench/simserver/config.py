"""Settings of the simulated server, named as SGLang's own flags where SGLang has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hicache_bench.cachesim.config import (
    C128,
    CacheConfig,
    EvictionPolicy,
    Mamba,
    PrefetchPolicy,
    Swa,
    WritePolicy,
)
from hicache_bench.cachesim.costs import Costs, load_costs, replace_costs
from hicache_bench.cachesim.schedule import Schedule
from hicache_bench.errors import UsageError
from hicache_bench.profiles.profile import DEFAULT_MAMBA_STATES, load_profile
from hicache_bench.simserver.faults import Faults, parse_faults

STORAGE_CLASSES = {"sim": "SimHiCacheStorage", "file": "HiCacheFile", "mooncake": "MooncakeStore"}
"""Backend flag → class name that SGLang reports as `storage_backend`. All of them are simulated here."""

_GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Sizes in tokens unless the name says otherwise. Raises `UsageError` for a value out of range.

    `costs` names a preset or a TOML file (`cachesim.costs`); `prefill_tokens_per_s` and `decode_ms` change it.
    `speed` 10 lets ten simulated seconds pass in one. `hicache_size` (GB) replaces the ratio when above 0.
    `swa_window`, `max_mamba_cache_size` and `c128_page_size` switch a model's other components on.
    """

    served_model_name: str = "simulated"
    context_length: int = 32768
    page_size: int = 64
    max_total_tokens: int = 65536
    max_running_requests: int = 256
    chunked_prefill_size: int = 8192
    radix_eviction_policy: EvictionPolicy = "lru"
    enable_hierarchical_cache: bool = True
    hicache_ratio: float = 2.0
    hicache_size: float = 0.0
    hicache_write_policy: WritePolicy = "write_through"
    hicache_io_backend: str = "kernel"
    hicache_mem_layout: str = "layer_first"
    hicache_storage_backend: str | None = "sim"
    hicache_storage_prefetch_policy: PrefetchPolicy = "timeout"
    prefetch_threshold: int = 256
    storage_tokens: int = 2**20
    swa_window: int | None = None
    swa_full_tokens_ratio: float = 0.8
    max_mamba_cache_size: int | None = None
    mamba_chunk: int = 64
    mamba_track_interval: int = 256
    c128_page_size: int | None = None
    costs: str = "toy"
    prefill_tokens_per_s: float | None = None
    decode_ms: float | None = None
    speed: float = 1.0
    faults: tuple[str, ...] = ()
    stream_interval: int = 1
    incremental_streaming_output: bool = False
    enable_cache_report: bool = True
    enable_metrics: bool = True
    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("context_length", "page_size", "max_total_tokens", "max_running_requests",
                     "chunked_prefill_size", "storage_tokens", "stream_interval"):
            if getattr(self, name) < 1:
                raise UsageError(f"simulated server: {name} is {getattr(self, name)}; allowed: 1 or more")
        if not 0 <= self.hicache_size < math.inf:
            raise UsageError(f"simulated server: hicache_size is {self.hicache_size}; allowed: 0 or more, finite")
        if not 0 < self.speed <= 1e6:
            raise UsageError(f"simulated server: speed is {self.speed}; allowed: above 0 and at most 1e6")
        if self.max_total_tokens < 2 * self.page_size or self.max_input_tokens < 2:
            raise UsageError(f"simulated server: a pool of {self.max_total_tokens} tokens with a context of "
                             f"{self.context_length} holds no request; allowed: two pages and 9 tokens or more")
        if self.hicache_storage_backend is not None and self.hicache_storage_backend not in STORAGE_CLASSES:
            raise UsageError(f"simulated server: storage backend {self.hicache_storage_backend!r}; "
                             f"allowed: {' '.join(STORAGE_CLASSES)}")
        self.cache(), self.schedule(), self.machine(), self.fault_plan()

    def cache(self) -> CacheConfig:
        """The cache these settings ask for."""
        return CacheConfig(
            page_size=self.page_size, device_tokens=self.device_tokens, host_ratio=self.hicache_ratio,
            host_tokens=self._sized_host_tokens(), hicache=self.enable_hierarchical_cache,
            write_policy=self.hicache_write_policy, eviction_policy=self.radix_eviction_policy,
            storage=self.storage_class is not None,
            storage_pages=max(1, self.storage_tokens // self.page_size) if self.storage_class else None,
            prefetch_policy=self.hicache_storage_prefetch_policy, prefetch_threshold=self.prefetch_threshold,
            chunked_prefill_size=max(self.chunked_prefill_size // self.page_size * self.page_size, self.page_size),
            swa=Swa(self.swa_window, self.swa_full_tokens_ratio) if self.swa_window is not None else None,
            mamba=Mamba(self.max_mamba_cache_size, self.mamba_chunk, self.mamba_track_interval)
            if self.max_mamba_cache_size is not None else None,
            c128=C128(self.c128_page_size) if self.c128_page_size is not None else None,
        )

    def machine(self) -> Costs:
        """What work costs; nothing of it is a measurement unless its source says so."""
        changes: dict[str, Any] = {}
        if self.prefill_tokens_per_s is not None:
            changes["prefill_tokens_per_s"] = self.prefill_tokens_per_s
        if self.decode_ms is not None:
            changes["decode_step_ms"] = self.decode_ms
        costs = load_costs(self.costs)
        return replace_costs(costs, **changes) if changes else costs

    def schedule(self) -> Schedule:
        """The scheduler's limits."""
        return Schedule(max_running_requests=self.max_running_requests, io_backend=self.hicache_io_backend,
                        mem_layout=self.hicache_mem_layout)

    def fault_plan(self) -> Faults:
        """The faults asked for, in their first state."""
        return parse_faults(self.faults)

    @property
    def device_tokens(self) -> int:
        """The device pool in whole pages."""
        return self.max_total_tokens // self.page_size * self.page_size

    @property
    def host_tokens(self) -> int | None:
        """The host pool in tokens; None without HiCache."""
        return self.cache().host_pages * self.page_size if self.enable_hierarchical_cache else None

    @property
    def storage_class(self) -> str | None:
        """The storage tier's name in answers; None without one."""
        if not self.enable_hierarchical_cache or self.hicache_storage_backend is None:
            return None
        return STORAGE_CLASSES[self.hicache_storage_backend]

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output together (srt/managers/tp_worker.py)."""
        return min(self.context_length, self.device_tokens) - 1

    @property
    def max_input_tokens(self) -> int:
        """`max_req_input_len`: a prompt must be shorter than this (srt/managers/tp_worker.py)."""
        return self.max_request_tokens - 5

    def _sized_host_tokens(self) -> int | None:
        """`--hicache-size` in gigabytes of 1e9 bytes, by the costs' bytes a token (mem_cache/pool_host/base.py)."""
        if not self.hicache_size:
            return None
        pages = int(self.hicache_size * _GB / self.machine().kv_bytes_per_token) // self.page_size
        return (pages + 1) * self.page_size


def profile_settings(name: str) -> dict[str, Any]:
    """The settings of a model profile's server; those it does not mention are left out."""
    profile = load_profile(name)
    sizes = profile.server
    found: dict[str, Any] = {
        "served_model_name": profile.name, "page_size": sizes.page_size, "max_total_tokens": sizes.max_total_tokens,
        "hicache_ratio": sizes.hicache_ratio, "context_length": max(sizes.max_total_tokens, 32768),
    }
    for ours, theirs in (("chunked_prefill_size", sizes.chunked_prefill_size), ("swa_window", sizes.swa_window),
                         ("swa_full_tokens_ratio", sizes.swa_full_tokens_ratio),
                         ("mamba_track_interval", sizes.mamba_track_interval), ("mamba_chunk", sizes.mamba_chunk),
                         ("c128_page_size", sizes.c128_page_size)):
        if theirs is not None:
            found[ours] = theirs
    if sizes.mamba_chunk is not None:
        found["max_mamba_cache_size"] = sizes.max_mamba_cache_size or DEFAULT_MAMBA_STATES
    return found

