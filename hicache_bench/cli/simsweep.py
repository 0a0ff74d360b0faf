"""`hicache-bench sim sweep`: which ratio, size or policy does this traffic need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.options import WORKLOAD, format_option, load_options, make_spec, results_option
from hicache_bench.cli.simoptions import fixed_options, make_setup
from hicache_bench.errors import UsageError
from hicache_bench.units import format_count, format_ns, format_percent, parse_count


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number") from None


AXES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "page_size": ("--page-size", parse_count),
    "device_tokens": ("--max-total-tokens", parse_count),
    "hicache_ratio": ("--hicache-ratio", _number),
    "write_policy": ("--write-policy", str),
    "prefetch_policy": ("--prefetch-policy", str),
    "storage_tokens": ("--storage-tokens", str),
    "eviction_policy": ("--radix-eviction-policy", str),
    "profile": ("--profile", str),
}
"""Axis → (option, how one of its comma-separated values is read)."""


@click.command("sweep")
@click.argument("workload", type=WORKLOAD)
@click.option("--profile", metavar="LIST", help="Model profiles.")
@click.option("--page-size", metavar="LIST", help="Page sizes in tokens.")
@click.option("--max-total-tokens", "--device-tokens", "device_tokens", metavar="LIST", help="Device pools in tokens.")
@click.option("--hicache-ratio", metavar="LIST", help="Host pools as multiples of the device pool.")
@click.option("--hicache-write-policy", "--write-policy", "write_policy", metavar="LIST", help="Write policies.")
@click.option("--hicache-storage-prefetch-policy", "--prefetch-policy", "prefetch_policy", metavar="LIST",
              help="Prefetch policies.")
@click.option("--storage-tokens", metavar="LIST", help="Storage sizes in tokens; 0: none; unlimited.")
@fixed_options
@load_options
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes. [default: one a core]")
@results_option
@format_option
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(workload: Path, **given: Any) -> None:
    """Play WORKLOAD over every combination of the lists, and show hit ratios by tier and TTFT.

    LISTs are comma-separated. The table is printed and kept as Parquet, with a plot (SVG), in a folder of its own
    under --results. Simulated: TTFT is as good as the costs are; the hit ratios need none.

    \b
    Examples:
      hicache-bench sim sweep workloads/prefix_reuse.toml --hicache-ratio 0.5,1,2,4
      hicache-bench sim sweep workloads/pressure.toml --hicache-ratio 1,2 --write-policy write_through,write_back
      hicache-bench sim sweep workloads/multi_turn.toml --storage-tokens 0,256k,unlimited --costs costs.toml
    """
    from hicache_bench.cli.progress import make_observer
    from hicache_bench.simulate.sweep import combinations, sweep, table

    spec = make_spec(workload, given)
    axes = combinations({name: _values(name, given[name]) for name in AXES if given.get(name) is not None})
    setups = [make_setup({**given, **values}) for values in axes]
    with make_observer(quiet=given["quiet"]) as observer:
        observer.note(f"{len(setups)} points, costs {setups[0].costs.name} ({setups[0].costs.source})")
        ready: list[int] = []

        def done(number: int, point: Any) -> None:
            ready.append(number)
            observer.note(f"{len(ready)}/{len(setups)} {_label(axes[number])}: hit {format_percent(point.hit_ratio)}, "
                          f"ttft p50 {format_ns(point.ttft_p50_ns)}")

        points = sweep(setups, spec, workload.parent, jobs=given["jobs"], done=done)
    rows = table(axes, points)
    folder = _keep(given["results"], spec.name, axes, points, rows)
    if given["format_"] == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode())
    else:
        click.echo(f"{_text(axes, points)}\n\ntable and plot: {folder}")


def _values(name: str, text: str) -> list[Any]:
    option, read = AXES[name]
    try:
        found = [read(part.strip()) for part in text.split(",") if part.strip()]
    except UsageError as error:
        raise UsageError(f"{option} {text!r}: {error}") from None
    return list(dict.fromkeys(found))


def _label(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items()) or "defaults"


def _keep(results: Path, name: str, axes: Any, points: Any, rows: Any) -> Path:
    from hicache_bench.simulate.plot import sweep_svg
    from hicache_bench.store.frames import write_frame
    from hicache_bench.store.rundir import RunDir

    folder = RunDir.create(results, f"sweep_{name}")
    write_frame(folder.path / "sweep.parquet", rows)
    folder.write_text("sweep.svg", sweep_svg(name, [_label(values) for values in axes], points))
    folder.write_json("sweep.json", {"origin": "simulated", "workload": name, "argv": sys.argv[1:], "rows": rows})
    return folder.path


def _text(axes: Any, points: Any) -> str:
    from tabulate import tabulate

    headers = [*axes[0], "requests", "ok", "hit", "device", "host", "storage", "ttft p50", "ttft p99", "out tok/s",
               "retracted"]
    rows = [[*values.values(), format_count(p.requests), format_count(p.ok), format_percent(p.hit_ratio),
             format_percent(p.device_ratio), format_percent(p.host_ratio), format_percent(p.storage_ratio),
             format_ns(p.ttft_p50_ns), format_ns(p.ttft_p99_ns),
             format_count(None if p.output_tokens_per_s is None else round(p.output_tokens_per_s)),
             format_count(p.retractions)] for values, p in zip(axes, points, strict=True)]
    return str(tabulate(rows, headers=headers, stralign="right", disable_numparse=True))
