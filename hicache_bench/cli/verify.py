"""`hicache-bench verify`: does the cache restore from every tier, with the same output?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from hicache_bench.cli.options import F, format_option, make_target, own_argv, results_option, server_options


def several_urls(command: F) -> F:
    """The shared server options, with a `--url` that may be given twice."""
    command = server_options(command)
    parameters = command.__click_params__  # type: ignore[attr-defined]
    parameters[:] = [one for one in parameters if one.name != "url"]
    return click.option("--url", "urls", multiple=True, envvar="HICACHE_TEST_URL",
                        help="Server base URL; twice for two servers on one store. [env: HICACHE_TEST_URL]")(command)


@click.command("verify")
@click.argument("cases", nargs=-1)
@several_urls
@click.option("--profile", envvar="HICACHE_TEST_MODEL", default="auto", show_default=True,
              help="Model profile: a shipped name, a .toml file, or auto (computed from the server's sizes). "
                   "[env: HICACHE_TEST_MODEL]")
@click.option("--restart-command", metavar="SHELL", help="Stops and starts the server; allows the restart case.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML there, too.")
@results_option
@format_option
@click.option("-q", "--quiet", is_flag=True, help="Print the result only.")
def command(cases: tuple[str, ...], **given: Any) -> int:
    """Prove each tier: CASES by name (l1 l2 l3 ...) or .toml file; without any, all that apply to the server.

    Without --url the built-in simulated server is started with the profile's sizes.

    \b
    Examples:
      hicache-bench verify l1 l2 l3 --url http://127.0.0.1:30000 --profile glm5.2-dsa
      hicache-bench verify --url http://127.0.0.1:2000 --admin-url http://127.0.0.1:8869
      hicache-bench verify shared --url http://127.0.0.1:30000 --url http://127.0.0.1:30001

    Exit codes: 0 all passed · 1 a case failed · 3 could not be played · 4 inconclusive
    """
    from hicache_bench.verify.report import render_json, render_text

    result = asyncio.run(_main(cases, given))
    click.echo(render_json(result) if given["format_"] == "json" else f"\n{render_text(result)}")
    code: int = result.exit_code
    return code


async def _main(cases: tuple[str, ...], given: dict[str, Any]) -> Any:
    from hicache_bench.profiles.profile import load_profile
    from hicache_bench.verify.ground import AUTO
    from hicache_bench.verify.steps import load_scenarios
    from hicache_bench.verify.suite import VerifyOptions, verify

    load_scenarios(cases)  # a wrong name is told before anything is started
    if given["profile"] != AUTO:
        load_profile(given["profile"])
    options = VerifyOptions(cases, given["profile"], given["results"], own_argv(), given["restart_command"],
                            given["junit"])
    async with servers(given["urls"], given["profile"], given) as urls:
        # Only the first server can sit behind a router: a second one is reached as it is.
        targets = [make_target(given if index == 0 else {**given, "admin_url": None}, url)
                   for index, url in enumerate(urls)]
        return await verify(targets, options, note_to(given))


def note_to(given: dict[str, Any]) -> Any:
    """Where progress lines go: nowhere with --quiet, to the error stream beside JSON."""

    def note(text: str) -> None:
        if not given["quiet"]:
            click.echo(text, err=given["format_"] == "json")

    return note


@asynccontextmanager
async def servers(urls: tuple[str, ...], profile: str, given: dict[str, Any]) -> AsyncIterator[tuple[str, ...]]:
    """The given URLs, or the URL of a simulated server of the profile's sizes."""
    if urls:
        yield urls
        return
    from hicache_bench.simserver.config import SimConfig, profile_settings
    from hicache_bench.simserver.embedded import embedded

    note_to(given)("no --url: starting the built-in SIMULATED server")
    settings = profile_settings("glm5.2-dsa" if profile == "auto" else profile)
    config = SimConfig(**{**settings, "costs": "free"})
    given["admin_url"] = None
    async with embedded(config) as url:
        yield (url,)
