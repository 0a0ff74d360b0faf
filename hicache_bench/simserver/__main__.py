"""`python -m hicache_bench.simserver`: the simulated server in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import click
import msgspec

from hicache_bench.errors import BenchError, UsageError
from hicache_bench.simserver.config import STORAGE_CLASSES, SimConfig
from hicache_bench.simserver.server import start

_DEFAULTS = SimConfig()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", type=click.IntRange(0, 65535), default=30000, show_default=True, help="0: any free port.")
@click.option("--served-model-name", default=_DEFAULTS.served_model_name, show_default=True)
@click.option("--context-length", type=int, default=_DEFAULTS.context_length, show_default=True)
@click.option("--page-size", type=int, default=_DEFAULTS.page_size, show_default=True)
@click.option("--max-total-tokens", type=int, default=_DEFAULTS.max_total_tokens, show_default=True,
              help="Device pool.")
@click.option("--max-running-requests", type=int, default=_DEFAULTS.max_running_requests, show_default=True)
@click.option("--enable-hierarchical-cache/--disable-hierarchical-cache", default=True, show_default=True)
@click.option("--hicache-ratio", type=float, default=_DEFAULTS.hicache_ratio, show_default=True,
              help="Host pool / device pool.")
@click.option("--hicache-storage-backend", type=click.Choice(["none", *STORAGE_CLASSES]), default="sim",
              show_default=True, help="Name reported for the simulated storage tier.")
@click.option("--storage-tokens", type=int, default=_DEFAULTS.storage_tokens, show_default=True,
              help="Storage tier.")
@click.option("--prefetch-threshold", type=int, default=_DEFAULTS.prefetch_threshold, show_default=True)
@click.option("--prefill-tokens-per-s", type=float, default=_DEFAULTS.prefill_tokens_per_s, show_default=True,
              help="Made-up speed; 0: no waiting.")
@click.option("--decode-ms", type=float, default=_DEFAULTS.decode_ms, show_default=True,
              help="Made-up time of one token; 0: no waiting.")
@click.option("--host-ms-per-1k-tokens", type=float, default=_DEFAULTS.host_ms_per_1k_tokens, show_default=True)
@click.option("--storage-ms-per-1k-tokens", type=float, default=_DEFAULTS.storage_ms_per_1k_tokens,
              show_default=True)
@click.option("--stream-interval", type=int, default=_DEFAULTS.stream_interval, show_default=True)
@click.option("--incremental-streaming-output", is_flag=True)
@click.option("--enable-cache-report/--disable-cache-report", default=True, show_default=True)
@click.option("--enable-metrics/--disable-metrics", default=True, show_default=True)
@click.option("--api-key", envvar="HICACHE_BENCH_SIM_API_KEY")
@click.option("--admin-api-key", envvar="HICACHE_BENCH_SIM_ADMIN_API_KEY")
@click.option("--settings-from-stdin", is_flag=True, hidden=True)
def command(port: int, settings_from_stdin: bool, **settings: Any) -> None:
    """A server without a model: SGLang's routes, a simulated cache, made-up timing. Loopback only.

    \b
    Example:
      hicache-bench serve --port 30000 --max-total-tokens 65536 --hicache-ratio 2
    """
    try:
        config = _read_settings() if settings_from_stdin else _config(settings)
        _run_loop(_serve(config, port, until_stdin_ends=settings_from_stdin))
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


def _config(settings: dict[str, Any]) -> SimConfig:
    if settings["hicache_storage_backend"] == "none":
        settings["hicache_storage_backend"] = None
    return SimConfig(**settings)


def _read_settings() -> SimConfig:
    try:
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=SimConfig)
    except msgspec.DecodeError as error:
        raise UsageError(f"settings on standard input: {error}") from None


async def _serve(config: SimConfig, port: int, *, until_stdin_ends: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with await start(config, port) as running:
        click.echo(f"listening on {running.url}")
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
