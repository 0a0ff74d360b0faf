"""The cache's configuration, in the names and defaults of SGLang's own flags, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from hicache_bench.errors import UsageError

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
EvictionPolicy = Literal["lru", "lfu", "slru", "priority"]
PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]

STORAGE_BATCH_PAGES = 128
"""Pages a storage transfer moves at a time (mem_cache/hicache_storage.py STORAGE_BATCH_SIZE)."""


@dataclass(frozen=True, slots=True)
class Swa:
    """Sliding-window layers with a pool of their own.

    `window` tokens must be present before a match boundary; the pool has `ratio` times the device's tokens,
    floored to a page (flag --swa-full-tokens-ratio, default 0.8; 0.1 for DeepSeek-V4).
    """

    window: int
    ratio: float = 0.8


@dataclass(frozen=True, slots=True)
class Mamba:
    """Recurrent states (Mamba, GDN, KDA): `states` device slots, checkpoints on a grid.

    The prefill grid is lcm(max(chunk, page), page), the decode grid lcm(that, track_interval)
    (runtime_context.py mamba_checkpoint_grid, mamba_track_grid; strategy extra_buffer). A running request needs
    its own state and `tracking_slots` for checkpoints: 2 with the overlap scheduler, 1 without
    (mem_cache/allocation_sizing.py). `host_states` None: the host ratio times `states`, plus one.
    """

    states: int
    chunk: int = 64
    track_interval: int = 256
    tracking_slots: int = 2
    host_states: int | None = None


@dataclass(frozen=True, slots=True)
class C128:
    """DeepSeek-V4's C128 sidecar on NPUs: only groups of 128 * `page_size` tokens are cacheable
    (hardware_backend/npu/dsv4/c128_sidecar_component.py; flag --c128-page-size)."""

    page_size: int = 16

    @property
    def group_tokens(self) -> int:
        return 128 * self.page_size


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and policies of one cache. Raises UsageError naming the value and the rule it breaks.

    `host_tokens` overrides `host_ratio`. `hicache=False`: device tier only. `storage_pages` None: unlimited.
    `chunked_prefill_size` None: a prompt is computed in one piece.
    """

    page_size: int
    device_tokens: int
    host_ratio: float = 2.0
    host_tokens: int | None = None
    hicache: bool = True
    write_policy: WritePolicy = "write_through"
    eviction_policy: EvictionPolicy = "lru"
    storage: bool = False
    storage_pages: int | None = None
    prefetch_policy: PrefetchPolicy = "timeout"
    prefetch_threshold: int = 256
    prefetch_timeout_base_s: float = 1.0
    prefetch_timeout_per_ki_token_s: float = 0.25
    chunked_prefill_size: int | None = None
    load_back_threshold: int = 10
    swa: Swa | None = None
    mamba: Mamba | None = None
    c128: C128 | None = None

    def __post_init__(self) -> None:
        _at_least("page_size", self.page_size, 1)
        if self.device_tokens < self.page_size:
            raise UsageError(f"device_tokens {self.device_tokens}: at least one page of {self.page_size} tokens")
        for name, value, allowed in (
            ("write_policy", self.write_policy, get_args(WritePolicy)),
            ("eviction_policy", self.eviction_policy, get_args(EvictionPolicy)),
            ("prefetch_policy", self.prefetch_policy, get_args(PrefetchPolicy)),
        ):
            if value not in allowed:
                raise UsageError(f"{name} {value!r}: allowed are {', '.join(allowed)}")
        self._check_tiers()
        self._check_components()

    def _check_tiers(self) -> None:
        if not (math.isfinite(self.host_ratio) and self.host_ratio > 0):
            raise UsageError(f"host_ratio {self.host_ratio}: a number above 0 is needed")
        if self.host_tokens is not None:
            _at_least("host_tokens", self.host_tokens, self.page_size)
        if self.storage and not self.hicache:
            raise UsageError("storage without hicache: the storage tier is filled from the host tier")
        if self.storage_pages is not None:
            _at_least("storage_pages", self.storage_pages, 1)
        _at_least("prefetch_threshold", self.prefetch_threshold, 0)
        _at_least("load_back_threshold", self.load_back_threshold, 0)
        if self.chunked_prefill_size is not None:
            _at_least("chunked_prefill_size", self.chunked_prefill_size, self.page_size)
        for name in ("prefetch_timeout_base_s", "prefetch_timeout_per_ki_token_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} {value}: seconds, 0 or more")

    def _check_components(self) -> None:
        if self.swa is not None:
            _at_least("swa.window", self.swa.window, 1)
            if not 0 < self.swa.ratio <= 1:
                raise UsageError(f"swa.ratio {self.swa.ratio}: a number above 0 and at most 1")
            if self.swa_pages < 2:
                raise UsageError(f"swa.ratio {self.swa.ratio} of {self.device_tokens} tokens: less than two pages "
                                 f"of {self.page_size} tokens")
        if self.mamba is not None:
            if self.mamba.tracking_slots not in (1, 2):
                raise UsageError(f"mamba.tracking_slots {self.mamba.tracking_slots}: 2 with the overlap scheduler, 1 "
                                 "without")
            _at_least("mamba.states", self.mamba.states, self.mamba.tracking_slots + 2)
            chunk = max(self.mamba.chunk, 1)
            if chunk % self.page_size and self.page_size % chunk:
                raise UsageError(f"mamba.chunk {chunk}: must divide the page size {self.page_size} or be a multiple")
            if self.mamba.track_interval < 1 or self.mamba.track_interval % self.page_size:
                raise UsageError(f"mamba.track_interval {self.mamba.track_interval}: a multiple of the page size "
                                 f"{self.page_size} is needed")
        if self.c128 is not None and (self.c128.page_size < 1 or self.c128.group_tokens % self.page_size):
            raise UsageError(f"c128.page_size {self.c128.page_size}: 128 times it must be a multiple of the page "
                             f"size {self.page_size}")
        if self.c128 is not None and self.mamba is not None:
            raise UsageError("c128 and mamba together: no model has both")

    @property
    def device_pages(self) -> int:
        return self.device_tokens // self.page_size

    @property
    def host_pages(self) -> int:
        """0 without HiCache; by ratio it is int(device * ratio) // page + 1 (mem_cache/pool_host/base.py)."""
        if not self.hicache:
            return 0
        if self.host_tokens is not None:
            return self.host_tokens // self.page_size
        return self._host_share(self.device_tokens)

    @property
    def swa_pages(self) -> int:
        return 0 if self.swa is None else int(self.device_tokens * self.swa.ratio) // self.page_size

    @property
    def swa_host_pages(self) -> int:
        if self.swa is None or not self.hicache:
            return 0
        return self._host_share(self.swa_pages * self.page_size)

    @property
    def mamba_host_states(self) -> int:
        if self.mamba is None or not self.hicache:
            return 0
        if self.mamba.host_states is not None:
            return self.mamba.host_states
        return int(self.mamba.states * self.host_ratio) + 1

    @property
    def mamba_grid_pages(self) -> int:
        """Pages between checkpoints that a prefill can leave."""
        assert self.mamba is not None
        return math.lcm(max(self.mamba.chunk, self.page_size), self.page_size) // self.page_size

    @property
    def mamba_track_tokens(self) -> int:
        """Tokens between checkpoints that decoding leaves."""
        assert self.mamba is not None
        return math.lcm(self.mamba_grid_pages * self.page_size, self.mamba.track_interval)

    @property
    def window_pages(self) -> int:
        """Pages a sliding window needs, rounded up."""
        assert self.swa is not None
        return -(-self.swa.window // self.page_size)

    def prefetch_timeout_s(self, pages: int) -> float:
        """Seconds a blocked request waits for `pages` from storage under the policy `timeout`."""
        return self.prefetch_timeout_base_s + pages * self.page_size / 1024 * self.prefetch_timeout_per_ki_token_s

    def _host_share(self, tokens: int) -> int:
        return int(tokens * self.host_ratio) // self.page_size + 1


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} {value}: at least {least} is needed")
