"""`hicache-bench capture`: a server's resolved configuration."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import click

from hicache_bench.cli.options import format_option, make_target, server_options
from hicache_bench.errors import UsageError


@click.command("capture")
@server_options
@format_option
@click.option("--raw", is_flag=True, help="With --format json: the whole answers, too.")
def command(format_: str, raw: bool, **given: Any) -> None:
    """Print the configuration a server has resolved: versions, sizes, HiCache flags, storage.

    \b
    Example:
      hicache-bench capture --url http://127.0.0.1:30000
    """
    import msgspec
    from tabulate import tabulate

    if given["url"] is None:
        raise UsageError("capture needs --url, or HICACHE_TEST_URL in the environment")
    info = dataclasses.asdict(asyncio.run(_capture(given)))
    if not raw:
        del info["raw"]
    if format_ == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(info), indent=2).decode())
        return
    flags = info.pop("flags")
    info.pop("raw", None)
    click.echo(tabulate([*info.items(), *(flags.items())], headers=("name", "value"), missingval="-",
                        disable_numparse=True))


async def _capture(given: dict[str, Any]) -> Any:
    from hicache_bench.preflight import look

    target = make_target(given, given["url"])
    async with target.connect() as admin:
        return await look(target, admin)
