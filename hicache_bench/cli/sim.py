"""`hicache-bench sim`: the simulator on virtual time."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.ending import print_run
from hicache_bench.cli.options import (
    WORKLOAD,
    format_option,
    load_options,
    make_spec,
    own_argv,
    parse_tags,
    results_option,
)
from hicache_bench.cli.simoptions import make_setup, setup_options
from hicache_bench.errors import EXIT_MEASURE, EXIT_OK

SUBVERBS: dict[str, tuple[str, str]] = {
    "run": ("hicache_bench.cli.sim", "Play a workload offline and keep a run directory."),
    "sweep": ("hicache_bench.cli.simsweep", "Hit ratios and TTFT over cache sizes and policies."),
    "fit": ("hicache_bench.cli.simfit", "Fit the costs to a measured run and check them."),
    "serve": ("hicache_bench.cli.serve", "Serve SGLang's routes on the simulator in the foreground."),
}
"""Subverb → (module with a `command`, one-line help)."""


class SimGroup(click.Group):
    """A click group that imports a subverb's module only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBVERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "run":
            return run
        if cmd_name not in SUBVERBS:
            return None
        found: click.Command = importlib.import_module(SUBVERBS[cmd_name][0]).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBVERBS.items()])


@click.group("sim", cls=SimGroup)
def command() -> None:
    """The simulator on virtual time: SGLang's cache rules, page by page, with costs you name.

    Its figures are labelled simulated and say about hardware only what the costs say.

    \b
    Examples:
      hicache-bench sim run workloads/prefix_reuse.toml --hicache-ratio 2
      hicache-bench sim sweep workloads/pressure.toml --hicache-ratio 0.5,1,2,4
      hicache-bench sim fit latest --out costs.toml
    """


@click.command("run")
@click.argument("workload", type=WORKLOAD)
@setup_options
@load_options
@click.option("--slo", help="Goodput condition, such as 'ttft<200ms,itl<50ms'.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Note kept with the run. Repeatable.")
@click.option("--no-prime", is_flag=True, help="Do not prime shared prefixes.")
@results_option
@format_option
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def run(workload: Path, **given: Any) -> int:
    """Play WORKLOAD on the simulator, without sockets, and keep a run directory like `run` does.

    The plan is the one a server would be sent; time is virtual, so an hour of load takes seconds. The same
    workload, seed and options give the same rows.

    \b
    Examples:
      hicache-bench sim run workloads/smoke.toml
      hicache-bench sim run workloads/pressure.toml --max-total-tokens 64k --hicache-ratio 4 --page-size 64
      hicache-bench sim run workloads/multi_turn.toml --profile glm5.2-dsa --costs costs.toml -r 8/s -d 10m
    """
    from hicache_bench.analysis.slo import parse_slo
    from hicache_bench.cli.progress import make_observer
    from hicache_bench.manifest import RunOptions
    from hicache_bench.simulate.offline import simulate

    if given["slo"] is not None:
        parse_slo(given["slo"])
    spec, setup = make_spec(workload, given), make_setup(given)
    options = RunOptions(results=given["results"], argv=own_argv(), tags=parse_tags(given["tags"]),
                         prime=not given["no_prime"], slo=given["slo"])
    with make_observer(quiet=given["quiet"]) as observer:
        run_dir = simulate(setup, spec, workload, options, observer.note, observer.tick)
    return EXIT_MEASURE if print_run(run_dir, given["format_"]) else EXIT_OK
