"""Options that several verbs share, and what they turn into."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from hicache_bench.clock import NS_PER_MS
from hicache_bench.errors import UsageError
from hicache_bench.units import parse_count, parse_duration_ns, parse_rate

F = TypeVar("F", bound=Callable[..., Any])


class Quantity(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A click type around one of the parsers of `units`; its UsageError becomes a click error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


DURATION = Quantity("duration", parse_duration_ns)
RATE = Quantity("rate", parse_rate)
COUNT = Quantity("count", parse_count)
FORMAT = click.Choice(["text", "json"])

WORKLOAD = click.Path(exists=True, dir_okay=False, path_type=Path)


def _all(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    def apply(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


server_options = _all([
    click.option("--url", envvar="HICACHE_TEST_URL", help="Server base URL. [env: HICACHE_TEST_URL]"),
    click.option("--admin-url", envvar="HICACHE_TEST_SERVER_URL",
                 help="Engine URL for engine-only routes behind a PD router. [env: HICACHE_TEST_SERVER_URL]"),
    click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Extra header. Repeatable."),
    click.option("--api-key-file", type=click.Path(path_type=Path),
                 help="File with the API key. [env HICACHE_BENCH_API_KEY holds the key itself]"),
    click.option("--admin-key-file", type=click.Path(path_type=Path),
                 help="File with the admin API key. [env HICACHE_BENCH_ADMIN_KEY holds the key itself]"),
    click.option("--ca-file", type=click.Path(path_type=Path), help="CA certificates for https."),
    click.option("--insecure", is_flag=True, help="Do not check https certificates."),
    click.option("--proxy-from-env", is_flag=True, help="Obey http_proxy and friends (off: connect directly)."),
    click.option("--transport", type=click.Choice(["auto", "aiohttp"]), default="auto", show_default=True,
                 help="HTTP client of the measured requests: our fast one where it can be used, or aiohttp."),
    click.option("--tokenizer", type=click.Path(path_type=Path),
                 help="A tokenizer.json to use instead of the server's /tokenize."),
])

load_options = _all([
    click.option("-c", "--concurrency", type=COUNT, help="Closed loop: sessions under way at any time."),
    click.option("-r", "--rate", type=RATE, help="Open loop: session starts per second, such as 8/s."),
    click.option("-d", "--duration", type=DURATION, help="Stop issuing after this long, such as 60s."),
    click.option("-n", "--requests", type=COUNT, help="Plan this many requests."),
    click.option("--limit", type=COUNT, help="Open loop: shed sessions above this many under way."),
    click.option("--arrival", type=click.Choice(["constant", "poisson", "gamma", "trace"]),
                 help="Open loop: distribution of the gaps."),
    click.option("--seed", type=int, help="Seed of every draw; 0 is a seed like any other."),
    click.option("--api", type=click.Choice(["generate", "completions", "chat"]), help="Which route is measured."),
    click.option("--stream/--no-stream", default=None, help="Ask for streaming answers."),
    click.option("--timeout", type=DURATION, help="Deadline of one request; 0s for none."),
    click.option("--dp-routing", help="Data-parallel rank: none, round_robin, sticky or a rank number."),
    click.option("--trace", type=click.Path(path_type=Path), help="Use this file in the workload's trace streams."),
    click.option("--reuse-prompts", is_flag=True,
                 help="Same prompts in every run (no nonce): a second run hits the first one's cache."),
])

results_option = click.option("--results", type=click.Path(path_type=Path, file_okay=False), default=Path("results"),
                              show_default=True, help="Folder of run directories.")
format_option = click.option("--format", "format_", type=FORMAT, default="text", show_default=True)


def dp_routing(text: str | None) -> Literal["none", "round_robin", "sticky"] | int | None:
    """The value of --dp-routing: a name or a rank."""
    if text is None:
        return None
    named: dict[str, Literal["none", "round_robin", "sticky"]] = {
        "none": "none", "round_robin": "round_robin", "sticky": "sticky"}
    if text in named:
        return named[text]
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise UsageError(f"--dp-routing {text!r}: allowed are none, round_robin, sticky or a rank number")


def own_argv() -> list[str]:
    """This process's arguments as they can be stored: a path may hold bytes that are no UTF-8."""
    from hicache_bench.scrub import well_formed

    return [well_formed(text) for text in sys.argv[1:]]


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """`("build=1", …)` of `--tag`; UsageError for one that is not KEY=VALUE."""
    tags = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--tag {text!r}: write it like build=1234")
        tags[key] = value
    return tags


def make_target(given: Mapping[str, Any], url: str, metrics: tuple[str, ...] = (), interval_ns: int | None = None,
                model: str | None = None) -> Any:
    """A checked Target from the shared server options (`given` is the verb's own keyword arguments).

    Raises UsageError for whatever is wrong with them: addresses, headers, key files, CA file, tokenizer, pages.
    """
    from hicache_bench.sglang.auth import load_keys, parse_headers
    from hicache_bench.sglang.urls import normalize_base
    from hicache_bench.target import Target

    if interval_ns is not None and interval_ns < NS_PER_MS:
        raise UsageError("--metrics-interval must be at least 1ms")
    target = Target(
        url=normalize_base(url),
        admin_url=normalize_base(given["admin_url"]) if given["admin_url"] else None,
        keys=load_keys(os.environ, given["api_key_file"], given["admin_key_file"]),
        headers=parse_headers(given["headers"]),
        ca_file=given["ca_file"],
        insecure=given["insecure"],
        proxies_from_env=given["proxy_from_env"],
        careful=given["transport"] == "aiohttp",
        tokenizer=given["tokenizer"],
        metrics_urls=metrics,
        model=model,
        **({} if interval_ns is None else {"metrics_interval_ns": interval_ns}),
    )
    target.check()
    return target


def make_spec(workload: Path, given: Mapping[str, Any]) -> Any:
    """The workload with the command line's overrides; its traces and data sets are there. Raises UsageError."""
    from hicache_bench.workload.spec import load_spec, override
    from hicache_bench.workload.trace import check_files

    if given["concurrency"] is not None and given["rate"] is not None:
        raise UsageError("-c/--concurrency (closed loop) and -r/--rate (open loop) exclude each other; give one")
    spec = override(
        load_spec(workload),
        concurrency=given["concurrency"],
        rate=given["rate"],
        duration_ns=given["duration"],
        requests=given["requests"],
        limit=given["limit"],
        arrival=given["arrival"],
        seed=given["seed"],
        api=given["api"],
        stream=given["stream"],
        timeout_ns=given["timeout"],
        dp_routing=dp_routing(given["dp_routing"]),
        trace_path=given["trace"],
        reuse=True if given["reuse_prompts"] else None,
    )
    check_files(spec.stream, workload.parent)
    return spec
