"""`hicache-bench`: finds the verb's module, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from hicache_bench import __version__
from hicache_bench.errors import EXIT_MEASURE, BenchError

TRACEBACK_ENV = "HICACHE_BENCH_TRACEBACK"
"""Set to anything: an unexpected error shows its traceback instead of one line."""

VERBS: dict[str, tuple[str, str]] = {
    "run": ("hicache_bench.cli.run", "Measure a server under a workload and keep a run directory."),
    "plan": ("hicache_bench.cli.plan", "Show what a workload would send; sends nothing."),
    "show": ("hicache_bench.cli.show", "Print the summary of a run."),
    "list": ("hicache_bench.cli.list", "List the runs of a results folder."),
    "compare": ("hicache_bench.cli.compare", "Put runs side by side, with a verdict where there are several a side."),
    "gate": ("hicache_bench.cli.gate", "Pass or fail runs by thresholds: did the new build get worse?"),
    "verify": ("hicache_bench.cli.verify", "Prove that every tier restores, with the same output."),
    "calibrate": ("hicache_bench.cli.calibrate", "Measure a model's cache figures and write a profile."),
    "capture": ("hicache_bench.cli.capture", "Print a server's resolved configuration."),
    "sim": ("hicache_bench.cli.sim", "The simulator on virtual time: run, sweep, fit."),
    "serve": ("hicache_bench.cli.serve", "Start the built-in simulated server in the foreground."),
}
"""Verb → (module with a `command`, one-line help). Modules are imported when they are used, so that
`--help` stays fast."""


class LazyGroup(click.Group):
    """A click group that imports a verb's module only when that verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[cmd_name][0]).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib  # for this message alone

            close = difflib.get_close_matches(args[0], VERBS, n=1, cutoff=0.5)
            guess = f"; did you mean {close[0]}?" if close else ""
            ctx.fail(f"there is no verb {args[0]!r}{guess} (verbs: {' '.join(VERBS)})")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hicache-bench")
def cli() -> None:
    """Load generator and benchmark harness for SGLang with HiCache.

    \b
    Examples:
      hicache-bench run workloads/smoke.toml                     # on the built-in simulated server
      hicache-bench run workloads/mixed.toml --url http://127.0.0.1:30000 -c 32 -d 60s
      hicache-bench plan workloads/mixed.toml --url http://127.0.0.1:30000
      hicache-bench show latest
      hicache-bench compare RUN_A RUN_B

    \b
    Exit codes: 0 fine · 1 verification failed · 2 usage or configuration ·
    3 could not measure · 4 inconclusive · 130 interrupted
    """


def main(argv: list[str] | None = None) -> Any:
    """Entry point of the console scripts."""
    try:
        code = cli.main(args=argv, prog_name="hicache-bench", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BenchError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of ours.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_MEASURE)
    except MemoryError as error:
        click.echo(f"error: out of memory: {error}; make the plan smaller (-n, -d)", err=True)
        sys.exit(EXIT_MEASURE)
    except Exception as error:
        if os.environ.get(TRACEBACK_ENV):
            raise
        text = " ".join(str(error).split())[:300]
        click.echo(f"error: a fault of hicache-bench itself: {type(error).__name__}: {text} "
                   f"(set {TRACEBACK_ENV}=1 to see where)", err=True)
        sys.exit(EXIT_MEASURE)
