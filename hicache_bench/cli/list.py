"""`hicache-bench list`: the runs of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hicache_bench.cli.options import format_option, results_option

if TYPE_CHECKING:
    from hicache_bench.store.rundir import RunDir

COLUMNS = ("run", "status", "load", "requests", "ttft p50", "hit", "origin", "start", "tags", "plan", "model")


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
    from hicache_bench.units import format_count, format_ns, format_percent

    rows = [_row(found) for found in list_runs(results)]
    if format_ == "json":
        click.echo(msgspec.json.encode(rows).decode())
    elif rows:
        shown = [{**row, "requests": format_count(row["requests"]), "ttft p50": format_ns(row["ttft_p50_ns"]),
                  "hit": format_percent(row["hit_ratio"]), "start": row["start_state"], "plan": row["plan_digest"],
                  "tags": " ".join(f"{key}={text}" for key, text in row["tags"].items()) or None} for row in rows]
        cells = [[row[column] for column in COLUMNS] for row in shown]
        click.echo(tabulate(cells, headers=COLUMNS, missingval="-", disable_numparse=True))
    else:
        click.echo(f"no runs in {results}")


def _row(found: RunDir) -> dict[str, Any]:
    """One run by what tells it from the others; figures are None where its rows cannot be read."""
    from hicache_bench.analysis.summary import load_text, summarize
    from hicache_bench.errors import BenchError

    meta = found.meta
    server, tags = meta.get("server"), meta.get("tags")
    try:
        summary = summarize(found.path)
    except BenchError:
        summary = None  # the list is for finding runs; `show` says what is wrong with this one
    return {
        "run": found.path.name, "status": found.status, "workload": meta.get("workload"), "load": load_text(meta),
        "requests": summary.attempts if summary else None,
        "ttft_p50_ns": summary.latency["ttft"].p50 if summary else None,
        "hit_ratio": summary.tiers[0].hit_ratio if summary and summary.tiers else None,
        "origin": meta.get("origin"), "start_state": meta.get("start_state"),
        "tags": dict(tags) if isinstance(tags, dict) else {}, "plan_digest": meta.get("plan_digest"),
        "model": server.get("model") if isinstance(server, dict) else None,
    }
