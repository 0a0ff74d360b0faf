"""`hicache-bench gate`: did NEW get worse than it may?"""

from __future__ import annotations

from pathlib import Path

import click

from hicache_bench.cli.options import results_option


@click.command("gate")
@click.argument("base")
@click.argument("new")
@click.option("-f", "--file", "file", required=True, type=click.Path(path_type=Path),
              help="The thresholds, a gate.toml.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Also write JUnit XML to this file.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Also write a summary to this file.")
@click.option("--force", is_flag=True, help="Judge although the runs are not comparable; the reason is printed.")
@results_option
@click.option("--format", "format_", type=click.Choice(["text", "markdown", "json", "junit"]), default="text",
              show_default=True)
def command(base: str, new: str, file: Path, junit: Path | None, markdown: Path | None, force: bool, results: Path,
            format_: str) -> int:
    """Judge the runs NEW by the runs BASE and the thresholds of a gate.toml. Sets are written as for `compare`.

    It never passes on missing evidence: absent figures, too few runs, runs that did not finish, or a client that
    was too slow make it inconclusive.

    \b
    gate.toml:
      min_runs = 5
      [metrics."ttft p50"]
      worse_by = "5%"          # than BASE
      max = "300ms"            # or min; absolute
      [[slo]]
      objective = "ttft<200ms,itl<50ms"
      min_share = "99%"

    \b
    Exit codes: 0 pass · 1 fail · 4 inconclusive · 2 not comparable or bad gate.toml · 3 unreadable

    \b
    Example:
      hicache-bench gate 'results/base-*' 'results/new-*' -f gate.toml --junit gate.xml
    """
    from hicache_bench.analysis.gate import EXITS, gate
    from hicache_bench.analysis.gatefile import load_gate
    from hicache_bench.analysis.junit import render_json, render_junit, render_markdown, render_text
    from hicache_bench.analysis.sets import parse_sets

    spec = load_gate(file)
    before, after = parse_sets((base, new), results)
    found = gate(before, after, spec, force=force)
    for path, render in ((junit, render_junit), (markdown, render_markdown)):
        if path is not None:
            path.write_text(render(found) + "\n", encoding="utf-8")
    renders = {"text": render_text, "markdown": render_markdown, "json": render_json, "junit": render_junit}
    click.echo(renders[format_](found))
    return EXITS[found.result]
