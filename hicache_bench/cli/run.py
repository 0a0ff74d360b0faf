"""`hicache-bench run`: measure a server under a workload."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.ending import print_run
from hicache_bench.cli.options import (
    DURATION,
    WORKLOAD,
    format_option,
    load_options,
    make_spec,
    make_target,
    own_argv,
    parse_tags,
    results_option,
    server_options,
)
from hicache_bench.errors import EXIT_MEASURE, EXIT_OK, UsageError

EXIT_INTERRUPTED = 130
_NONCE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@click.command("run")
@click.argument("workload", type=WORKLOAD)
@server_options
@load_options
@click.option("--metrics-url", "metrics", multiple=True, metavar="[NAME=]URL",
              help="Another Prometheus page to scrape (GPU exporter, Mooncake master). Repeatable.")
@click.option("--metrics-interval", type=DURATION, default="5s", show_default=True, help="Scrape period.")
@click.option("--model", help="Model name for the OpenAI routes; default: the server's.")
@click.option("--slo", help="Goodput condition, such as 'ttft<200ms,itl<50ms'.")
@click.option("--extra-body", metavar="JSON", help="JSON object merged into every request body.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Note kept with the run. Repeatable.")
@click.option("--nonce", help="Fix the run nonce (repeats the prompts of the run that had it).")
@click.option("--no-reset", is_flag=True, help="Measure the cache as found.")
@click.option("--no-prime", is_flag=True, help="Do not prime shared prefixes.")
@results_option
@format_option
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(workload: Path, **given: Any) -> int:
    """Measure a server under WORKLOAD and keep a run directory.

    Without --url the built-in simulated server is started for the run; its figures are labelled simulated
    and say nothing about hardware.

    \b
    Examples:
      hicache-bench run workloads/smoke.toml
      hicache-bench run workloads/mixed.toml --url http://127.0.0.1:30000 -c 32 -d 60s
      hicache-bench run workloads/prefix_reuse.toml --url http://127.0.0.1:30000 -r 8/s -d 2m --slo 'ttft<200ms'
      hicache-bench run workloads/mooncake_conversation.toml --trace conversation_trace.jsonl -n 500 --url URL

    Ctrl-C once stops issuing, drains and seals the run as aborted; twice cancels what is in flight. Either ends
    with exit code 130.
    """
    from hicache_bench.bench import Interrupt
    from hicache_bench.cli.progress import make_observer
    from hicache_bench.manifest import RunOptions

    _check_texts(given)
    spec = make_spec(workload, given)
    target = _target(given)
    options = RunOptions(
        results=given["results"],
        argv=own_argv(),
        tags=parse_tags(given["tags"]),
        nonce=given["nonce"],
        reset=not given["no_reset"],
        prime=not given["no_prime"],
        slo=_slo(given["slo"]),
        extra_body=_json_object(given["extra_body"]),
    )
    interrupt, began_ns = Interrupt(), time.time_ns()
    with make_observer(quiet=given["quiet"]) as observer:
        run_dir = _uvloop_run(_main(spec, workload, target, options, observer, interrupt,
                                    simulated=given["url"] is None))
    if run_dir is None:
        click.echo(_interrupted(given["results"], began_ns), err=True)
        return EXIT_INTERRUPTED
    return _report(run_dir, given["format_"], interrupt.requested)


async def _main(spec: Any, workload: Path, target: Any, options: Any, observer: Any, interrupt: Any, *,
                simulated: bool) -> Path | None:
    """The run directory; None when the run was interrupted outside its measured phase."""
    from hicache_bench.bench import run
    from hicache_bench.simserver.embedded import embedded

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def on_signal() -> None:
        observer.note(stopping(interrupt))
        interrupt.signal()
        if interrupt.driver is None and task is not None:
            task.cancel()  # outside the measured phase there is nothing to drain

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        if not simulated:
            return await run(spec, workload, target, options, observer, interrupt)
        observer.note("no --url: starting the built-in SIMULATED server (figures are not measurements)")
        async with embedded() as url:
            return await run(spec, workload, dataclasses.replace(target, url=url), options, observer, interrupt)
    except asyncio.CancelledError:
        if interrupt.requested:
            return None
        raise


def stopping(interrupt: Any) -> str:
    """What is said at a Ctrl-C, before it is passed on."""
    if interrupt.driver is None:
        return "stopping"
    counts = interrupt.driver.counts
    if interrupt.requested:
        return f"stopping at once: cancelling {_some(counts.in_flight, 'request')} in flight"
    return f"draining {_some(counts.active, 'in-flight session')}, Ctrl-C again to stop at once"


def _some(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _interrupted(results: Path, began_ns: int) -> str:
    """What a run of this process leaves behind that was interrupted outside its measured phase."""
    from hicache_bench.store.rundir import list_runs

    mine = [run for run in list_runs(results)
            if run.meta.get("pid") == os.getpid() and run.meta.get("started_wall_ns", 0) >= began_ns]
    if not mine:
        return "interrupted before the run began; nothing was measured and there is no run directory"
    when = "after" if mine[-1].meta.get("measure_end_ns") is not None else "before"
    return f"interrupted {when} the measured phase; the run is sealed as aborted: {mine[-1].path}"


def _target(given: dict[str, Any]) -> Any:
    """The server to measure, checked; with the address still open when it is the built-in one."""
    if given["url"] is None:
        given = {**given, "admin_url": None, "url": "127.0.0.1"}
    return make_target(given, given["url"], given["metrics"], given["metrics_interval"], given["model"])


def _uvloop_run(main: Any) -> Path | None:
    run_loop: Callable[[Any], Path | None] = asyncio.run
    try:
        import uvloop
    except ImportError:
        pass  # Windows and PyPy: the standard loop does
    else:
        run_loop = uvloop.run
    return run_loop(main)


def _report(run_dir: Path, format_: str, interrupted: bool) -> int:
    if print_run(run_dir, format_):
        click.echo("error: every request failed; the error table above says how", err=True)
        return EXIT_MEASURE
    return EXIT_INTERRUPTED if interrupted else EXIT_OK


def _check_texts(given: dict[str, Any]) -> None:
    """What goes into requests and files must be text; the nonce is part of every request id, too."""
    for name in ("model", "extra_body", "tags"):
        try:
            "".join(given[name] or "").encode()
        except UnicodeEncodeError:
            raise UsageError(f"--{name.rstrip('s').replace('_', '-')} is not UTF-8 text") from None
    nonce = given["nonce"]
    if nonce is not None and not _NONCE.fullmatch(nonce):
        raise UsageError(f"--nonce {nonce[:70]!r}: allowed are 1 to 64 letters, digits and - _ .")


def _slo(text: str | None) -> str | None:
    """Checked here so that a typo fails at second 0, stored as it was written."""
    from hicache_bench.analysis.slo import parse_slo

    if text is not None:
        parse_slo(text)
    return text


def _json_object(text: str | None) -> dict[str, Any]:
    import msgspec

    if text is None:
        return {}
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"--extra-body is not a JSON object: {error}") from None
