"""`hicache-bench list`: the runs of a results folder."""

from __future__ import annotations

from pathlib import Path

import click

from hicache_bench.cli.options import format_option, results_option

COLUMNS = ("run", "status", "workload", "origin", "start_state", "plan", "model")


@click.command("list")
@results_option
@format_option
def command(results: Path, format_: str) -> None:
    """List the runs of a results folder, oldest first.

    \b
    Example:
      hicache-bench list --results results
    """
    import msgspec
    from tabulate import tabulate

    from hicache_bench.store.rundir import list_runs

    rows = []
    for found in list_runs(results):
        meta = found.meta
        server = meta.get("server")
        values = (found.path.name, found.status, meta.get("workload"), meta.get("origin"), meta.get("start_state"),
                  meta.get("plan_digest"), server.get("model") if isinstance(server, dict) else None)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    if format_ == "json":
        click.echo(msgspec.json.encode(rows).decode())
    elif rows:
        click.echo(tabulate([list(row.values()) for row in rows], headers=COLUMNS, missingval="-"))
    else:
        click.echo(f"no runs in {results}")
