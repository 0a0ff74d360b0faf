"""How `run` and `sim run` end: the summary of what was measured."""

from __future__ import annotations

from pathlib import Path

import click


def print_run(run_dir: Path, format_: str) -> bool:
    """Print the summary of a run directory and, as text, where it is; returns whether every request failed."""
    from hicache_bench.analysis.summary import render_json, render_text, summarize

    summary = summarize(run_dir)
    click.echo(render_json(summary) if format_ == "json" else render_text(summary))
    if format_ == "text":
        click.echo(f"\nrun directory: {run_dir}")
    return bool(summary.meta.get("every_request_failed"))
