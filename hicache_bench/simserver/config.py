"""Settings of the simulated server, named as SGLang's own flags where SGLang has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hicache_bench.errors import UsageError

STORAGE_CLASSES = {"sim": "SimHiCacheStorage", "file": "HiCacheFile", "mooncake": "MooncakeStore"}
"""Backend flag → class name that SGLang reports as `storage_backend`. All of them are simulated here."""


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Sizes in tokens, timing in the unit named. The timing defaults are made up: they stand for no hardware.

    `prefill_tokens_per_s` 0 and `decode_ms` 0 mean no waiting at all (a null server). Raises `UsageError`
    for a value out of range.
    """

    served_model_name: str = "simulated"
    context_length: int = 32768
    page_size: int = 64
    max_total_tokens: int = 65536
    max_running_requests: int = 256
    enable_hierarchical_cache: bool = True
    hicache_ratio: float = 2.0
    hicache_storage_backend: str | None = "sim"
    storage_tokens: int = 2**20
    prefetch_threshold: int = 256
    prefill_tokens_per_s: float = 40_000.0
    decode_ms: float = 5.0
    host_ms_per_1k_tokens: float = 1.0
    storage_ms_per_1k_tokens: float = 8.0
    stream_interval: int = 1
    incremental_streaming_output: bool = False
    enable_cache_report: bool = True
    enable_metrics: bool = True
    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("context_length", "page_size", "max_total_tokens", "max_running_requests",
                     "storage_tokens", "stream_interval"):
            if getattr(self, name) < 1:
                raise UsageError(f"simulated server: {name} is {getattr(self, name)}; allowed: 1 or more")
        for name in ("hicache_ratio", "prefetch_threshold", "prefill_tokens_per_s", "decode_ms",
                     "host_ms_per_1k_tokens", "storage_ms_per_1k_tokens"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"simulated server: {name} is {getattr(self, name)}; allowed: 0 or more, finite")
        if self.max_total_tokens < 2 * self.page_size or self.max_input_tokens < 2:
            raise UsageError(f"simulated server: a pool of {self.max_total_tokens} tokens with a context of "
                             f"{self.context_length} holds no request; allowed: two pages and 9 tokens or more")
        if self.hicache_storage_backend is not None and self.hicache_storage_backend not in STORAGE_CLASSES:
            raise UsageError(f"simulated server: storage backend {self.hicache_storage_backend!r}; "
                             f"allowed: {' '.join(STORAGE_CLASSES)}")

    @property
    def device_tokens(self) -> int:
        """The device pool in whole pages."""
        return self.max_total_tokens // self.page_size * self.page_size

    @property
    def host_tokens(self) -> int | None:
        """The host pool: one page more than the ratio says (srt/mem_cache/pool_host/base.py)."""
        if not self.enable_hierarchical_cache:
            return None
        return (int(self.device_tokens * self.hicache_ratio) // self.page_size + 1) * self.page_size

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
