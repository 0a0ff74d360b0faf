"""Options of the offline simulator, in SGLang's names, and the setup they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from hicache_bench.cli.options import COUNT, F
from hicache_bench.errors import UsageError
from hicache_bench.units import parse_count

UNLIMITED = "unlimited"
DEFAULT_PAGE, DEFAULT_DEVICE, DEFAULT_CHUNK = 64, 65_536, 8192
"""The sizes of the built-in server, where no profile says others."""

_SIZES: Any = [
    click.option("--profile", help="Model profile with the sizes of its cache; the options below override it."),
    click.option("--page-size", type=COUNT, help=f"Tokens a page. [default: {DEFAULT_PAGE}]"),
    click.option("--max-total-tokens", "--device-tokens", "device_tokens", type=COUNT,
                 help=f"Device pool in tokens. [default: {DEFAULT_DEVICE}]"),
    click.option("--hicache-ratio", type=float, help="Host pool as a multiple of the device pool. [default: 2]"),
    click.option("--host-tokens", type=COUNT, help="Host pool in tokens, instead of a ratio."),
    click.option("--hicache-write-policy", "--write-policy", "write_policy",
                 help="write_through, write_through_selective or write_back."),
    click.option("--hicache-storage-prefetch-policy", "--prefetch-policy", "prefetch_policy",
                 help="best_effort, wait_complete or timeout."),
    click.option("--storage-tokens", metavar="TOKENS",
                 help=f"Storage tier: its size, 0 for none, or {UNLIMITED}. [default: {UNLIMITED}]"),
]
"""The axes that `sim sweep` turns into lists."""

_REST: Any = [
    click.option("--enable-hierarchical-cache/--disable-hierarchical-cache", "hicache", default=True,
                 show_default=True, help="HiCache, or the device tier alone."),
    click.option("--radix-eviction-policy", "eviction_policy", help="lru, lfu, slru or priority."),
    click.option("--chunked-prefill-size", type=click.IntRange(min=-1),
                 help=f"Tokens a prefill chunk; -1: whole prompts. [default: {DEFAULT_CHUNK}]"),
    click.option("--max-running-requests", type=COUNT, help="Requests that may run at a time."),
    click.option("--max-prefill-tokens", type=COUNT, help="Tokens of one prefill batch."),
    click.option("--hicache-io-backend", "io_backend", help="kernel, direct or kernel_ascend."),
    click.option("--hicache-mem-layout", "mem_layout", help="layer_first, page_first, ..."),
    click.option("--costs", default="toy", show_default=True, metavar="NAME|FILE",
                 help="What work costs: a preset, or a TOML file such as `sim fit` writes."),
    click.option("--cost", "cost_changes", multiple=True, metavar="KEY=VALUE",
                 help="Change one parameter of the costs. Repeatable."),
]


def setup_options(command: F) -> F:
    """All options of one simulated server."""
    for option in reversed([*_SIZES, *_REST]):
        command = option(command)
    return command


def fixed_options(command: F) -> F:
    """Those that a sweep does not vary."""
    for option in reversed(_REST):
        command = option(command)
    return command


def make_setup(given: Mapping[str, Any]) -> Any:
    """The simulated server that the options describe. Raises UsageError naming the value and the rule."""
    from hicache_bench.cachesim.config import CacheConfig
    from hicache_bench.simulate.setup import Setup

    if given.get("profile") is not None:
        from hicache_bench.profiles.profile import load_profile

        config = load_profile(given["profile"]).server.cache(hicache=given["hicache"])
    else:
        config = CacheConfig(page_size=given.get("page_size") or DEFAULT_PAGE,
                             device_tokens=_device_tokens(given), hicache=given["hicache"],
                             storage=given["hicache"], chunked_prefill_size=None)
        given = {**given, "chunked_prefill_size": _chunk(given, config.page_size)}
    return Setup(_changed(config, given), make_costs(given), make_schedule(given), given.get("profile"))


def _device_tokens(given: Mapping[str, Any]) -> int:
    value = given.get("device_tokens")
    return DEFAULT_DEVICE if value is None else int(value)


def _chunk(given: Mapping[str, Any], page_size: int) -> int:
    asked = given.get("chunked_prefill_size")
    return max(DEFAULT_CHUNK, page_size) if asked is None else int(asked)


def _changed(config: Any, given: Mapping[str, Any]) -> Any:
    changes = {key: given[key] for key in ("page_size", "device_tokens", "host_tokens", "write_policy",
                                           "prefetch_policy", "eviction_policy", "chunked_prefill_size")
               if given.get(key) is not None}
    if given.get("hicache_ratio") is not None:
        changes["host_ratio"] = given["hicache_ratio"]
    if changes.get("chunked_prefill_size") == -1:
        changes["chunked_prefill_size"] = None
    changes |= storage_changes(given.get("storage_tokens"), changes.get("page_size", config.page_size))
    if changes.get("storage") and not config.hicache:
        raise UsageError("--storage-tokens without HiCache: the storage tier is filled from the host tier")
    return dataclasses.replace(config, **changes)


def storage_changes(text: str | None, page_size: int) -> dict[str, Any]:
    """What `--storage-tokens` changes in a cache's configuration."""
    if text is None:
        return {}
    if text == UNLIMITED:
        return {"storage": True, "storage_pages": None}
    try:
        tokens = parse_count(text)
    except UsageError as error:
        raise UsageError(f"--storage-tokens: {error}, or {UNLIMITED}") from None
    if tokens == 0:
        return {"storage": False, "storage_pages": None}
    if tokens < page_size:
        raise UsageError(f"--storage-tokens {tokens}: at least a page of {page_size} tokens, or 0 for none")
    return {"storage": True, "storage_pages": tokens // page_size}


def make_schedule(given: Mapping[str, Any]) -> Any:
    """The scheduler's limits."""
    from hicache_bench.cachesim.schedule import Schedule

    names = ("max_running_requests", "max_prefill_tokens", "io_backend", "mem_layout")
    return Schedule(**{name: given[name] for name in names if given.get(name) is not None})


def make_costs(given: Mapping[str, Any]) -> Any:
    """The named costs with single parameters changed."""
    from hicache_bench.cachesim.costs import load_costs, replace_costs

    costs = load_costs(given["costs"])
    for text in given["cost_changes"]:
        key, equals, value = text.partition("=")
        current = getattr(costs, key, None) if key in costs.__struct_fields__ else None
        if not equals or not isinstance(current, int | float):
            numbers = [name for name in costs.__struct_fields__ if isinstance(getattr(costs, name), int | float)]
            raise UsageError(f"--cost {text!r}: write KEY=VALUE with one of {', '.join(numbers)}")
        try:
            number = int(value) if isinstance(current, int) and key == "layers" else float(value)
        except ValueError:
            raise UsageError(f"--cost {text!r}: {value!r} is no number") from None
        costs = replace_costs(costs, **{key: number})
    return costs

