"""`hicache-bench compare`: sets of runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from hicache_bench.cli.options import results_option


@click.command("compare")
@click.argument("sets", nargs=-1, required=True, metavar="BASE NEW...")
@click.option("--force", is_flag=True, help="Compare although the runs are not comparable; the reason is printed.")
@click.option("--floor", help="Smallest relative difference worth a word, such as 3% (default: 2% to 5% by row).")
@click.option("--slo", help="Objective for goodput, such as 'ttft<200ms,itl<50ms' (default: that of each run).")
@click.option("--primary", multiple=True, metavar="ROW", help="Test these rows first (instead of ttft p50 and p99, "
              "tpot p50, output_per_s, hit_ratio, error_rate); fewer find smaller differences. Repeatable.")
@click.option("--metric", "metrics", multiple=True, help="Show only rows that fit, such as 'ttft*'. Repeatable.")
@click.option("--row", help="One table for each value of this key, such as load.concurrency.")
@click.option("--col", help="Make the sets anew, one for each value of this key, such as "
              "server.hicache_write_policy.")
@click.option("--filter", "filters", multiple=True, metavar="KEY=VALUE",
              help="Only runs that have it (or, with !=, have it not). Repeatable.")
@results_option
@click.option("--format", "format_", type=click.Choice(["text", "markdown", "csv", "json"]), default="text",
              show_default=True)
def command(
    sets: tuple[str, ...], force: bool, floor: str | None, slo: str | None, primary: tuple[str, ...],
    metrics: tuple[str, ...], row: str | None, col: str | None, filters: tuple[str, ...], results: Path, format_: str,
) -> None:
    """Compare runs: each NEW set with BASE. A set is runs separated by commas, a glob in quotes or a folder of
    runs, with NAME= before it to call it so.

    Several runs a side give verdicts: better, worse, same, or ~ where the runs cannot tell. One run a side gives
    intervals within the run only. Runs are compared when plan, loop kind, origin and start state agree. Keys
    begin with run., tags., load., server. or plan.

    \b
    Examples:
      hicache-bench compare RUN_A RUN_B
      hicache-bench compare old='results/a-*' new='results/b-*'
      hicache-bench compare 'results/*' --col server.hicache_write_policy --row load.concurrency
    """
    from hicache_bench.analysis.compare import compare
    from hicache_bench.analysis.comparison_text import render_csv, render_json, render_markdown, render_text, shown
    from hicache_bench.analysis.gatefile import parse_share
    from hicache_bench.analysis.sets import by_column, by_row, filtered, parse_sets
    from hicache_bench.errors import UsageError

    if len(sets) < 2 and col is None:
        raise UsageError(f"compare needs BASE and NEW, got only {sets[0]!r}; to compare inside one set give --col")
    limit = None if floor is None else parse_share(floor, "--floor")
    chosen = filtered(parse_sets(sets, results), filters)
    if col is not None:
        chosen = by_column(chosen, col)
    tables = {"": chosen} if row is None else by_row(chosen, row)
    found = [compare(item, force=force, floor=limit, slo=slo, primary=primary, title=title)
             for title, item in tables.items()]
    shown(found[0], metrics)
    renders = {"text": render_text, "markdown": render_markdown, "csv": render_csv}
    click.echo(render_json(found) if format_ == "json" else renders[format_](found, metrics))
