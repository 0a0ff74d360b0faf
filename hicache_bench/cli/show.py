"""`hicache-bench show`: the summary of a run, computed anew from its rows."""

from __future__ import annotations

from pathlib import Path

import click

from hicache_bench.cli.options import format_option, results_option


@click.command("show")
@click.argument("run", default="latest")
@results_option
@format_option
def command(run: str, results: Path, format_: str) -> None:
    """Print the summary of RUN: a run directory, the start of its name, or `latest`.

    \b
    Examples:
      hicache-bench show
      hicache-bench show results/20261129T215234Z-prefix_reuse-6f3a --format json
    """
    from hicache_bench.analysis.summary import render_json, render_text, summarize
    from hicache_bench.store.rundir import find_run

    found = find_run(results, run)
    summary = summarize(found.path)
    click.echo(render_json(summary) if format_ == "json" else render_text(summary))
