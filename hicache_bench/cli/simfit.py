"""`hicache-bench sim fit`: the costs of your own machine, from a measured run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.options import format_option, results_option
from hicache_bench.errors import BenchError, StoreError
from hicache_bench.units import format_ns, format_percent


@click.command("fit")
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("costs.toml"), show_default=True,
              help="Where the fitted costs go.")
@click.option("--costs", default="toy", show_default=True, metavar="NAME|FILE",
              help="What stays where the run does not tell.")
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="Where the run's trace file lies now.")
@click.option("--no-replay", is_flag=True, help="Fit only; do not play the run's plan again.")
@results_option
@format_option
def command(run: str, **given: Any) -> None:
    """Fit recompute, host and storage times to a measured RUN, write a costs file, and check it.

    The check plays the run's own plan on the simulator with the fitted costs and prints predicted beside measured.

    \b
    Examples:
      hicache-bench sim fit latest --out costs.toml
      hicache-bench sim run workloads/prefix_reuse.toml --costs costs.toml --hicache-ratio 4
    """
    from hicache_bench.cachesim.costs import dump_costs, load_costs
    from hicache_bench.simulate.fit import fit_run, fit_table, fitted_costs
    from hicache_bench.simulate.replay import as_rows
    from hicache_bench.store.rundir import find_run

    found = find_run(given["results"], run)
    base = load_costs(given["costs"])
    fit = fit_run(found.path, found.meta)
    source = f"fitted to run {found.path.name} ({found.meta.get('origin')}), the rest from {base.name}"
    costs = fitted_costs(fit, base, given["out"].stem, source)
    try:
        given["out"].write_text(dump_costs(costs, source), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {given['out']}: {error.strerror or error}") from None
    compared = [] if given["no_replay"] else _replayed(found, costs, given["trace"])
    if given["format_"] == "json":
        import msgspec

        out = {"run": found.path.name, "rows": fit.rows, "terms": fit_table(fit), "compared": as_rows(compared),
               "decode_step_ms": fit.decode_step_ms, "decode_ms_per_request": fit.decode_ms_per_request}
        click.echo(msgspec.json.format(msgspec.json.encode(out), indent=1).decode())
    else:
        click.echo(_text(fit, compared))
        click.echo(f"\ncosts: {given['out']}")


def _replayed(found: Any, costs: Any, trace: Path | None) -> list[Any]:
    from hicache_bench.simulate.replay import predict, setup_of, spec_of

    try:
        return predict(found, setup_of(found, costs), spec_of(found, trace), lambda text: click.echo(text, err=True))
    except BenchError as error:
        click.echo(f"warning: not replayed: {error}", err=True)
        return []


def _text(fit: Any, compared: list[Any]) -> str:
    from tabulate import tabulate

    units = {"start": "ms", "recompute": "ms/1k tok", "host": "ms/1k tok", "storage": "ms/1k tok"}
    rows = [[term.name, units[term.name], *("not told" if value is None and i == 0 else _ms(value)
             for i, value in enumerate((term.value, term.low, term.high))), term.n] for term in fit.terms]
    for name, value in (("decode step", fit.decode_step_ms), ("per request", fit.decode_ms_per_request)):
        rows.append([name, "ms", "not told" if value is None else _ms(value), "-", "-", "-"])
    text = str(tabulate(rows, headers=["cost", "unit", "fitted", "2.5%", "97.5%", "requests"], disable_numparse=True,
                        stralign="right", colalign=("left", "left")))
    if not fit.queue_known:
        text += ("\nThe server does not name its queue time (--enable-metrics): under load the start holds queueing, "
                 "too.")
    if compared:
        lines = [[one.name, _figure(one.measured, one.unit), _figure(one.predicted, one.unit), _off(one)]
                 for one in compared]
        text += "\n\n" + str(tabulate(lines, headers=["figure", "measured", "predicted", "off by"],
                                      disable_numparse=True, stralign="right", colalign=("left",)))
    return text


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _figure(value: float | None, unit: str) -> str:
    return format_ns(value) if unit == "ns" else format_percent(value)


def _off(one: Any) -> str:
    if one.measured is None or one.predicted is None:
        return "-"
    if one.unit == "ratio":
        return f"{100 * (one.predicted - one.measured):+.1f} pp"
    return f"{100 * (one.predicted / one.measured - 1):+.0f}%" if one.measured else "-"
