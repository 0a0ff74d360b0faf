"""`hicache-bench calibrate`: measure a model's figures and make a profile of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.options import COUNT, format_option, make_target, own_argv, results_option, server_options


@click.command("calibrate")
@server_options
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Write the profile there (.toml).")
@click.option("--name", help="Name of the profile; default: the file's.")
@click.option("--prompt-tokens", type=COUNT, help="Length of the prompts; default: a twentieth of the device pool.")
@click.option("--no-host", is_flag=True, help="Leave out the host threshold, the longest part.")
@results_option
@format_option
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(**given: Any) -> None:
    """Measure match alignment, priming, resident pages, thresholds, settling and output fidelity of a server.

    The server must be idle and nobody else may use it; device and host tier are flushed again and again.

    \b
    Examples:
      hicache-bench calibrate --url http://127.0.0.1:30000 --write profiles/my-model.toml
      hicache-bench verify --url http://127.0.0.1:30000 --profile profiles/my-model.toml
    """
    import msgspec

    from hicache_bench.verify.calibration_text import calibration_json, render_calibration

    found = asyncio.run(_main(given))
    if given["format_"] == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(calibration_json(found)), indent=1).decode())
        return
    click.echo(f"\n{render_calibration(found)}")
    if given["write"] is not None:
        click.echo(f"profile written to {given['write']}")


async def _main(given: dict[str, Any]) -> Any:
    from hicache_bench.cli.verify import note_to, servers
    from hicache_bench.verify.calibrate import CalibrateOptions, calibrate

    options = CalibrateOptions(given["results"], given["write"], given["name"], given["prompt_tokens"],
                               not given["no_host"], own_argv())
    async with servers((given["url"],) if given["url"] else (), "auto", given) as urls:
        return await calibrate(make_target(given, urls[0]), options, note_to(given))
