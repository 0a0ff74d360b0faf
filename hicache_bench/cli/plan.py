"""`hicache-bench plan`: what a workload would send."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.options import (
    COUNT,
    WORKLOAD,
    format_option,
    load_options,
    make_spec,
    make_target,
    server_options,
)
from hicache_bench.errors import UsageError
from hicache_bench.units import format_count, format_percent

ASSUMED_PAGE = 1
"""Tokens a page where nobody says: SGLang's default on CUDA (0.5.23, srt/arg_groups/overrides.py)."""


@click.command("plan")
@click.argument("workload", type=WORKLOAD)
@server_options
@load_options
@click.option("--device-tokens", type=COUNT, help="Device capacity to plan for, instead of asking a server.")
@click.option("--host-tokens", type=COUNT, help="Host capacity to plan for, instead of asking a server.")
@click.option("--page-size", type=COUNT,
              help=f"Page size to plan for, instead of asking a server; without either, {ASSUMED_PAGE} is assumed.")
@format_option
def command(workload: Path, format_: str, device_tokens: int | None, host_tokens: int | None,
            page_size: int | None, **given: Any) -> None:
    """Show what WORKLOAD would send: sessions, tokens, pages, and the footprint against each tier.

    Sends no request for generation. With --url the server is asked for its sizes.

    \b
    Examples:
      hicache-bench plan workloads/smoke.toml
      hicache-bench plan workloads/pressure.toml --device-tokens 64k --host-tokens 128k --page-size 64
    """
    import msgspec

    from hicache_bench.preflight import capacity_of
    from hicache_bench.workload.footprint import footprint
    from hicache_bench.workload.plan import Capacity, build_plan

    sizes = (("--device-tokens", device_tokens), ("--host-tokens", host_tokens), ("--page-size", page_size))
    for option, size in sizes:
        if size is not None and not 1 <= size < 2**40:
            raise UsageError(f"{option} {size}: allowed are 1 to 2^40 - 1")
    spec = make_spec(workload, given)
    page, capacity = page_size, Capacity(device_tokens, host_tokens, None)
    if given["url"] is not None:
        info = asyncio.run(_sizes(given))
        page, found = page_size or info.page_size, capacity_of(info)
        capacity = Capacity(device_tokens or found.device_tokens, host_tokens or found.host_tokens,
                            found.max_request_tokens)
    assumed, page = page is None, page or ASSUMED_PAGE
    notes: list[str] = []
    plan = build_plan(spec, base_dir=workload.parent, page_size=page, capacity=capacity, notes=notes)
    print_ = footprint(plan, page)
    if format_ == "json":
        out = {"name": plan.name, "digest": plan.digest, "seed": plan.seed, "page_size": page,
               "page_size_assumed": assumed, "capacity": dataclasses.asdict(capacity),
               "footprint": dataclasses.asdict(print_), "notes": notes}
        click.echo(msgspec.json.format(msgspec.json.encode(out), indent=2).decode())
    else:
        click.echo("\n".join([*notes, _text(plan, print_, capacity, page, assumed=assumed)]))


async def _sizes(given: dict[str, Any]) -> Any:
    from hicache_bench.preflight import look

    target = make_target(given, given["url"])
    async with target.connect() as admin:
        return await look(target, admin)


def _text(plan: Any, print_: Any, capacity: Any, page: int, *, assumed: bool) -> str:
    from tabulate import tabulate

    headers = ("stream", "sessions", "requests", "prompt tok", "output tok", "unique tok", "unique pages",
               "shared pages", "ideal hit")
    rows = [
        (name, *(format_count(getattr(f, column)) for column in
                 ("sessions", "requests", "prompt_tokens", "output_tokens", "unique_tokens", "unique_pages",
                  "shared_pages")), format_percent(f.ideal_hit_ratio))
        for name, f in [*print_.streams.items(), ("whole", print_.whole)]
    ]
    table = tabulate(rows, headers=headers, stralign="right", colalign=("left",), disable_numparse=True)
    source = " assumed, SGLang's default on CUDA (give --page-size or --url)" if assumed else ""
    return f"plan {plan.digest} · {plan.name} · seed {plan.seed} · page {page}{source}\n{table}\n" + "\n".join(
        _against(tier, size, print_.whole.unique_tokens)
        for tier, size in (("device", capacity.device_tokens), ("host", capacity.host_tokens)))


def _against(tier: str, size: int | None, tokens: int) -> str:
    if not size:
        return f"{tier}: capacity unknown (give --url or --{tier}-tokens)"
    return f"{tier}: {format_count(size)} tokens; the unique footprint is {tokens / size:.2f} times that"
