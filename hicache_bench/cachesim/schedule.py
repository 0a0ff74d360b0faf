"""The scheduler's own limits, in the names of SGLang's flags."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_bench.cachesim.costs import IO_BACKENDS, MEM_LAYOUTS
from hicache_bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Schedule:
    """How requests are put into batches. Raises UsageError naming the value and what is allowed.

    `max_running_requests` 2048 is what SGLang chooses for common sizes (0.5.23, model_executor/pool_configurator);
    `max_prefill_tokens` bounds one prefill batch (server_args.py, 16384); `prefill_max_requests` None: no bound.
    `storage_read_threads` transfers are read from storage at a time.
    """

    max_running_requests: int = 2048
    max_prefill_tokens: int = 16_384
    prefill_max_requests: int | None = None
    io_backend: str = "kernel"
    mem_layout: str = "layer_first"
    storage_read_threads: int = 1

    def __post_init__(self) -> None:
        for name in ("max_running_requests", "max_prefill_tokens", "prefill_max_requests", "storage_read_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: at least 1 is needed")
        for name, value, allowed in (("io_backend", self.io_backend, IO_BACKENDS),
                                     ("mem_layout", self.mem_layout, MEM_LAYOUTS)):
            if value not in allowed:
                raise UsageError(f"{name} {value!r}: allowed are {', '.join(allowed)}")
