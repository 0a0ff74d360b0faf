"""`python -m hicache_bench.simserver`: the simulated server in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar, get_args

import click
import msgspec

from hicache_bench.cachesim.config import EvictionPolicy, PrefetchPolicy, WritePolicy
from hicache_bench.cachesim.costs import IO_BACKENDS, MEM_LAYOUTS
from hicache_bench.errors import BenchError, UsageError
from hicache_bench.simserver.config import STORAGE_CLASSES, SimConfig, profile_settings
from hicache_bench.simserver.faults import KINDS
from hicache_bench.simserver.pd import PairSettings, start_pair
from hicache_bench.simserver.server import HOST, start
from hicache_bench.units import parse_count

_DEFAULTS = SimConfig()
FAULTS = "; ".join(f"{name}: {text}" for name, text in KINDS.items())
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Size(click.IntRange):
    """A whole number of bounded size, also written as `64k` or `64Ki`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                value = parse_count(value)
            except UsageError as error:
                self.fail(f"{error}; allowed: {self.min:,} to {self.max:,}", param, ctx)
        if not self.min <= value <= self.max:
            self.fail(f"{value} is out of range; allowed: {self.min:,} to {self.max:,}", param, ctx)
        return value


TOKENS = Size(1, 2**36)
"""Far above any pool there is, and low enough that the page tables fit in memory."""
PORT = click.IntRange(0, 65535)
SPEED = click.FloatRange(0, 10**9)
MILLISECONDS = click.FloatRange(0, 10**6)


CHOICES = {
    "radix_eviction_policy": get_args(EvictionPolicy), "hicache_write_policy": get_args(WritePolicy),
    "hicache_storage_prefetch_policy": get_args(PrefetchPolicy), "hicache_io_backend": IO_BACKENDS,
    "hicache_mem_layout": MEM_LAYOUTS,
}


def _setting(name: str, kind: Any, text: str = "") -> Callable[[_Command], _Command]:
    """An option that shows the default of `SimConfig` and is None where it is not given, so that a profile's
    value is not overwritten by a default."""
    default = getattr(_DEFAULTS, name)
    shown = "" if default is None else f"[default: {default}]"
    return click.option(f"--{name.replace('_', '-')}", type=kind, help=f"{text} {shown}".strip())


def _choice(name: str, text: str = "") -> Callable[[_Command], _Command]:
    return _setting(name, click.Choice(CHOICES[name]), text)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", type=PORT, default=30000, show_default=True, help="0: any free port.")
@click.option("--host", default=HOST, show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--pd", is_flag=True, help="A router on --port, and a prefill and a decode engine behind it.")
@click.option("--prefill-port", type=PORT, help="With --pd. [default: the next free one]")
@click.option("--decode-port", type=PORT, help="With --pd. [default: the next free one]")
@click.option("--transfer-gb-per-s", type=click.FloatRange(0, 10**6),
              help="With --pd: the link from prefill to decode, in 1e9 bytes; 0: no waiting. "
                   f"[default: {PairSettings().transfer_gb_per_s:g}]")
@click.option("--profile", help="Sizes and components of a model profile, by name or file; further options win.")
@_setting("served_model_name", str)
@_setting("context_length", TOKENS)
@_setting("page_size", Size(1, 2**16))
@_setting("max_total_tokens", TOKENS, "Device pool.")
@_setting("max_running_requests", Size(1, 10**6))
@_setting("chunked_prefill_size", TOKENS)
@_choice("radix_eviction_policy")
@click.option("--enable-hierarchical-cache/--disable-hierarchical-cache", default=None, help="[default: enabled]")
@_setting("hicache_ratio", click.FloatRange(0, 10**4, min_open=True), "Host pool / device pool.")
@_setting("hicache_size", click.FloatRange(0, 10**6), "Host pool in GB; replaces the ratio when above 0.")
@_choice("hicache_write_policy")
@_choice("hicache_io_backend")
@_choice("hicache_mem_layout")
@_setting("hicache_storage_backend", click.Choice(["none", *STORAGE_CLASSES]),
          "Name reported for the simulated storage tier.")
@_choice("hicache_storage_prefetch_policy")
@_setting("prefetch_threshold", Size(0, 2**36), "Fewer missing tokens are not asked of the storage tier.")
@_setting("storage_tokens", TOKENS, "Size of the storage tier.")
@_setting("swa_window", TOKENS, "Sliding-window layers with this window; their pool has --swa-full-tokens-ratio.")
@_setting("swa_full_tokens_ratio", click.FloatRange(0, 1, min_open=True))
@_setting("max_mamba_cache_size", Size(4, 10**7), "Recurrent states of a Mamba, GDN or KDA model.")
@_setting("mamba_chunk", Size(1, 2**16))
@_setting("mamba_track_interval", Size(1, 2**16))
@_setting("c128_page_size", Size(1, 2**12), "Page size of the C128 sidecar of DeepSeek-V4.")
@_setting("costs", str, "Preset or TOML file of what work costs; no preset stands for hardware.")
@_setting("prefill_tokens_per_s", SPEED, "Instead of the costs' own; 0: no waiting.")
@_setting("decode_ms", MILLISECONDS, "Milliseconds of a decode step, instead of the costs' own; 0: no waiting.")
@_setting("speed", click.FloatRange(0, 10**6, min_open=True), "Simulated seconds in a second.")
@click.option("--fault", "faults", multiple=True, metavar="NAME[=VALUE][@SHARE]",
              help=f"Show a fault; may be repeated. {FAULTS}.")
@_setting("stream_interval", Size(1, 2**20))
@click.option("--incremental-streaming-output", is_flag=True, default=None)
@click.option("--enable-cache-report/--disable-cache-report", default=None, help="[default: enabled]")
@click.option("--enable-metrics/--disable-metrics", default=None, help="[default: enabled]")
@click.option("--api-key", envvar="HICACHE_BENCH_SIM_API_KEY")
@click.option("--admin-api-key", envvar="HICACHE_BENCH_SIM_ADMIN_API_KEY")
@click.option("--settings-from-stdin", is_flag=True, hidden=True)
def command(port: int, host: str, pd: bool, prefill_port: int | None, decode_port: int | None,
            transfer_gb_per_s: float | None, profile: str | None, settings_from_stdin: bool, **settings: Any) -> None:
    """A server without a model: SGLang's routes and flags, its three cache tiers page by page, simulated timing.

    \b
    Example:
      hicache-bench serve --port 30000 --max-total-tokens 65536 --hicache-ratio 2
      hicache-bench serve --profile deepseek-v4 --fault lost-storage@0.1
      hicache-bench serve --pd --port 30000 --prefill-port 30001 --decode-port 30002
    """
    try:
        pair = _pair(pd, prefill_port=prefill_port, decode_port=decode_port, transfer_gb_per_s=transfer_gb_per_s)
        config = _read_settings() if settings_from_stdin else _config(profile, settings)
        if not _is_loopback(host):
            click.echo(_reachable(host, config), err=True)
        _run_loop(_serve(config, port, host, pair, until_stdin_ends=settings_from_stdin))
    except BenchError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _config(profile: str | None, settings: dict[str, Any]) -> SimConfig:
    given = {name: value for name, value in settings.items() if value is not None}
    chosen = {**(profile_settings(profile) if profile is not None else {}), **given}
    if chosen.get("hicache_storage_backend") == "none":
        chosen["hicache_storage_backend"] = None
    return SimConfig(**chosen)


def _read_settings() -> SimConfig:
    try:
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=SimConfig)
    except msgspec.DecodeError as error:
        raise UsageError(f"settings on standard input: {error}") from None


def _pair(pd: bool, **given: Any) -> PairSettings | None:
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and not pd:
        option = "--" + next(iter(chosen)).replace("_", "-")
        raise UsageError(f"{option} goes with --pd only; without it there is one server, on --port")
    return PairSettings(**chosen) if pd else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reachable(host: str, config: SimConfig) -> str:
    protection = "only --api-key protects it" if config.api_key else "nothing protects it without --api-key"
    return f"warning: on {host} the server can be reached from outside this machine, and {protection}"


async def _serve(config: SimConfig, port: int, host: str, pair: PairSettings | None, *,
                 until_stdin_ends: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        if pair is None:
            running = await stack.enter_async_context(await start(config, port, host))
            click.echo(f"listening on {running.url}")
        else:
            both = await stack.enter_async_context(await start_pair(config, port, pair, host))
            click.echo(f"listening on {both.url}\nprefill engine on {both.prefill_url}\n"
                       f"decode engine on {both.decode_url}")
        sys.stdout.flush()
        if not until_stdin_ends:
            click.echo("SIMULATED server: figures measured against it say nothing about hardware")
        else:
            loop.add_reader(sys.stdin.fileno(), _drain_stdin, stop)
        await stop.wait()
        if until_stdin_ends:
            loop.remove_reader(sys.stdin.fileno())


def _drain_stdin(stop: asyncio.Event) -> None:
    data = b""
    with contextlib.suppress(OSError):
        data = os.read(sys.stdin.fileno(), 4096)
    if not data:
        stop.set()


if __name__ == "__main__":
    command()
