"""`hicache-bench compare`: two runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from hicache_bench.cli.options import format_option, results_option


@click.command("compare")
@click.argument("base")
@click.argument("new")
@click.option("--force", is_flag=True, help="Compare although the runs are not comparable; the reason is printed.")
@results_option
@format_option
def command(base: str, new: str, force: bool, results: Path, format_: str) -> None:
    """Put run NEW beside run BASE: point estimates, one run a side, no verdict.

    Runs are compared only when their plan, loop kind, origin (real or simulated) and start state agree.

    \b
    Example:
      hicache-bench compare results/RUN_A results/RUN_B
    """
    from hicache_bench.analysis.compare import compare, render_json, render_text
    from hicache_bench.store.rundir import find_run

    comparison = compare(find_run(results, base), find_run(results, new), force=force)
    click.echo(render_json(comparison) if format_ == "json" else render_text(comparison))
