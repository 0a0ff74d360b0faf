"""What work costs in time: named parameters of a machine, presets with their source, and TOML files of them.

No preset poses as hardware: `toy` is made up, the others say which published figures they were set to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hicache_bench.errors import UsageError

GB = 1_000_000_000
IO_BACKENDS = ("kernel", "direct", "kernel_ascend")
"""SGLang's --hicache-io-backend."""
MEM_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
"""SGLang's --hicache-mem-layout."""


class IoPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way of copying between device and host: GB/s (1e9 bytes; 0 is infinitely fast), microseconds a copy
    and a page."""

    h2d_gb_per_s: float
    d2h_gb_per_s: float
    op_us: float = 0.0
    page_us: float = 0.0


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of one machine. Rates of 0 mean infinitely fast; everything else is 0 or more.

    A prefill batch takes `prefill_batch_ms`, its computed tokens at `prefill_tokens_per_s`, and
    `attention_ms_per_1k_x_1k` for every 1000 tokens times 1000 tokens of context. A decode step takes
    `decode_step_ms`, `decode_ms_per_request` a running request and `decode_ms_per_1k_context` a 1000 tokens of
    their contexts together. Storage follows SGLang's own simulated backend (0.5.23,
    mem_cache/storage/sim_storage.py): a call of up to 128 pages takes the latency and its bytes over the bandwidth.
    """

    name: str
    source: str
    prefill_tokens_per_s: float
    prefill_batch_ms: float = 0.0
    attention_ms_per_1k_x_1k: float = 0.0
    decode_step_ms: float
    decode_ms_per_request: float = 0.0
    decode_ms_per_1k_context: float = 0.0
    kv_bytes_per_token: float
    layers: int = 32
    io: dict[str, IoPath]
    layout_page_us: dict[str, float] = {}
    storage_read_gb_per_s: float = 0.0
    storage_write_gb_per_s: float = 0.0
    storage_op_us: float = 0.0
    storage_page_us: float = 0.0

    def __post_init__(self) -> None:
        for key, value in self._numbers():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{key} = {value!r}: must be 0 or more, and finite")
        if self.kv_bytes_per_token <= 0:
            raise ValueError(f"kv_bytes_per_token = {self.kv_bytes_per_token!r}: must be above 0")
        if self.layers < 1:
            raise ValueError(f"layers = {self.layers!r}: must be at least 1")
        for key, given, allowed in (("io", self.io, IO_BACKENDS), ("layout_page_us", self.layout_page_us, MEM_LAYOUTS)):
            unknown = sorted(set(given) - set(allowed))
            if unknown:
                raise ValueError(f"{key}.{unknown[0]}: allowed are {', '.join(allowed)}")

    def _numbers(self) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        for key in self.__struct_fields__:
            value = getattr(self, key)
            if isinstance(value, int | float):
                found.append((key, value))
        for name, path in self.io.items():
            found += [(f"io.{name}.{key}", getattr(path, key)) for key in path.__struct_fields__]
        return found + [(f"layout_page_us.{name}", value) for name, value in self.layout_page_us.items()]

    def path(self, io_backend: str, mem_layout: str) -> IoPath:
        """The copy path of a backend with the layout's cost a page put on top. Raises UsageError when these costs
        say nothing about the backend."""
        if io_backend not in self.io:
            raise UsageError(f"costs {self.name}: nothing is known about io backend {io_backend!r}; known are "
                             f"{', '.join(self.io)}")
        path = self.io[io_backend]
        extra = self.layout_page_us.get(mem_layout, 0.0)
        return msgspec.structs.replace(path, page_us=path.page_us + extra) if extra else path


def _seconds(n_bytes: float, gb_per_s: float) -> float:
    return n_bytes / (gb_per_s * GB) if gb_per_s > 0 else 0.0


class Clockwork:
    """Costs turned into nanoseconds for one page size, io backend and layout: what the engine asks for."""

    __slots__ = ("_attention", "_batch", "_d2h", "_h2d", "_io_op", "_io_page", "_read", "_storage_op",
                 "_storage_page", "_token", "_write", "layers", "step_base", "step_context", "step_request")

    def __init__(self, costs: Costs, page_size: int, io_backend: str, mem_layout: str) -> None:
        path, page_bytes = costs.path(io_backend, mem_layout), costs.kv_bytes_per_token * page_size
        self.layers = costs.layers
        self._batch = costs.prefill_batch_ms * 1e6
        self._token = 1e9 / costs.prefill_tokens_per_s if costs.prefill_tokens_per_s > 0 else 0.0
        self._attention = costs.attention_ms_per_1k_x_1k
        self.step_base = costs.decode_step_ms * 1e6
        self.step_request = costs.decode_ms_per_request * 1e6
        self.step_context = costs.decode_ms_per_1k_context * 1e3
        self._io_op = path.op_us * 1e3
        self._io_page = path.page_us * 1e3
        self._h2d = _seconds(page_bytes, path.h2d_gb_per_s) * 1e9
        self._d2h = _seconds(page_bytes, path.d2h_gb_per_s) * 1e9
        self._storage_op = costs.storage_op_us * 1e3
        self._storage_page = costs.storage_page_us * 1e3
        self._read = _seconds(page_bytes, costs.storage_read_gb_per_s) * 1e9
        self._write = _seconds(page_bytes, costs.storage_write_gb_per_s) * 1e9

    def batch_ns(self, tokens: int, token_contexts: int) -> int:
        """One prefill batch of `tokens` computed tokens; `token_contexts` sums tokens times mean context."""
        return round(self._batch + self._token * tokens + self._attention * token_contexts)

    def overlapped_ns(self, compute_ns: int, load_ns: int) -> int:
        """A prefill whose prefix is loaded layer by layer meanwhile: the slower of the two, and one layer of the
        other (managers/cache_controller.py, LayerDoneCounter)."""
        slow, fast = max(compute_ns, load_ns), min(compute_ns, load_ns)
        return slow + fast // self.layers

    def h2d_ns(self, pages: int) -> int:
        return round(self._io_op + pages * (self._h2d + self._io_page))

    def d2h_ns(self, pages: int) -> int:
        return round(self._io_op + pages * (self._d2h + self._io_page))

    def exists_ns(self, batches: int) -> int:
        """Asking the storage which of a request's pages it has."""
        return round(batches * self._storage_op)

    def read_ns(self, pages: int) -> int:
        return round(self._storage_op + pages * (self._read + self._storage_page))

    def write_ns(self, pages: int) -> int:
        return round(self._storage_op + pages * (self._write + self._storage_page))


COSTS: dict[str, Costs] = {
    "toy": Costs(
        name="toy",
        source="made up; stands for no hardware (storage: defaults of SGLang's sim backend, 5 GB/s and 100 us a call)",
        prefill_tokens_per_s=40_000, prefill_batch_ms=2.0, attention_ms_per_1k_x_1k=0.02, decode_step_ms=5.0,
        decode_ms_per_request=0.05, decode_ms_per_1k_context=0.01, kv_bytes_per_token=65_536, layers=32,
        io={"kernel": IoPath(h2d_gb_per_s=50, d2h_gb_per_s=50, op_us=20, page_us=0.2),
            "direct": IoPath(h2d_gb_per_s=50, d2h_gb_per_s=50, op_us=20, page_us=20),
            "kernel_ascend": IoPath(h2d_gb_per_s=50, d2h_gb_per_s=50, op_us=20, page_us=0.2)},
        layout_page_us={"layer_first": 1.0, "page_first": 0.5, "page_first_direct": 0.5},
        storage_read_gb_per_s=5.0, storage_write_gb_per_s=5.0, storage_op_us=100),
    "llmd-qwen3-32b": Costs(
        name="llmd-qwen3-32b",
        source="one server of llm-d's tiered-prefix-cache guide (Qwen3-32B, 2 GPUs, vLLM): KV bytes a token as "
               "published, prefill and decode set to its two saturated throughputs, the rest nominal; not measured",
        prefill_tokens_per_s=11_000, prefill_batch_ms=5.0, decode_step_ms=20.0, decode_ms_per_request=0.05,
        decode_ms_per_1k_context=0.025, kv_bytes_per_token=164_000, layers=64,
        io={"kernel": IoPath(h2d_gb_per_s=80, d2h_gb_per_s=80, op_us=20, page_us=0.2),
            "direct": IoPath(h2d_gb_per_s=80, d2h_gb_per_s=80, op_us=20, page_us=20)}),
    "free": Costs(
        name="free", source="no time passes at all: for cache behaviour alone", prefill_tokens_per_s=0,
        decode_step_ms=0.0, kv_bytes_per_token=1,
        io={name: IoPath(h2d_gb_per_s=0, d2h_gb_per_s=0) for name in IO_BACKENDS}),
}
"""Presets by name."""


def load_costs(name_or_path: str) -> Costs:
    """A preset by name, or a TOML file such as `sim fit` writes. Raises UsageError naming the file, key and rule."""
    if name_or_path in COSTS:
        return COSTS[name_or_path]
    path = Path(name_or_path)
    try:
        tables = msgspec.toml.decode(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"costs {name_or_path!r}: neither a preset ({', '.join(COSTS)}) nor a file") from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: not readable as TOML: {error}") from None
    return parse_costs(tables, str(path))


def parse_costs(tables: Mapping[str, Any], where: str = "costs") -> Costs:
    """Costs from decoded TOML."""
    try:
        return msgspec.convert(dict(tables), Costs)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None


def replace_costs(costs: Costs, **changes: Any) -> Costs:
    """The same costs with some parameters changed. Raises UsageError for a value out of range."""
    try:
        return msgspec.structs.replace(costs, **changes)
    except (ValueError, TypeError) as error:
        raise UsageError(f"costs {costs.name}: {error}") from None


def dump_costs(costs: Costs, comment: str = "") -> str:
    """TOML text that `load_costs` reads back; `comment` lines go on top."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    tables = msgspec.to_builtins(costs)
    flat = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in flat.items()]
    for name, path in tables["io"].items():
        lines += ["", f"[io.{name}]", *(f"{key} = {_toml(value)}" for key, value in path.items())]
    if tables["layout_page_us"]:
        lines += ["", "[layout_page_us]", *(f"{key} = {_toml(v)}" for key, v in tables["layout_page_us"].items())]
    return head + "\n".join(lines) + "\n"


def _toml(value: str | float) -> str:
    if not isinstance(value, str):
        return repr(value)
    # JSON's escapes are TOML's, but TOML allows no bare DEL.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
