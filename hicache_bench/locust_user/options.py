"""Our options on Locust's command line and start page, and what they mean for a load process."""


from __future__ import annotations

import os
import ssl
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gevent import ssl as gssl

from hicache_bench.errors import UsageError
from hicache_bench.scrub import header_secrets, well_formed
from hicache_bench.sglang.auth import load_keys, parse_headers, request_headers
from hicache_bench.sglang.urls import normalize_base

SHOWN: tuple[tuple[str, str], ...] = (
    ("workload", "Workload file; default: the one the user class names."),
    ("slo", "Goodput condition, such as 'ttft<200ms,itl<50ms'."),
    ("api", "Which route is measured: generate, completions or chat."),
    ("results", "Folder of run directories, on the master."),
    ("requests", "Plan this many requests; replaces the workload's stop rule."),
    ("rate", "Open loop: session starts per second, such as 8/s."),
    ("limit", "Open loop: shed sessions above this many under way, all workers together."),
    ("seed", "Seed of every draw."),
    ("trace", "Use this file in the workload's trace streams."),
    ("model", "Model name for the OpenAI routes; default: the server's."),
    ("nonce", "Fix the run nonce (repeats the prompts of the run that had it)."),
    ("admin-url", "Engine URL for engine-only routes behind a PD router."),
)
HIDDEN: tuple[tuple[str, str], ...] = (
    ("api-key-file", "File with the API key; on every machine. [env HICACHE_BENCH_API_KEY holds the key itself]"),
    ("admin-key-file", "File with the admin API key. [env HICACHE_BENCH_ADMIN_KEY holds the key itself]"),
    ("ca-file", "CA certificates for https; on every machine."),
    ("tokenizer", "A tokenizer.json to use instead of the server's /tokenize."),
    ("dp-routing", "Data-parallel rank: none, round_robin, sticky or a rank number."),
)
LISTS: tuple[tuple[str, str], ...] = (
    ("header", "Extra header 'NAME: VALUE'; repeatable, on every machine."),
    ("metrics-url", "Another Prometheus page to scrape; repeatable."),
)
FLAGS: tuple[tuple[str, str], ...] = (
    ("no-reset", "Measure the cache as found."),
    ("no-prime", "Do not prime shared prefixes."),
    ("insecure", "Do not check https certificates."),
)
APIS = ("", "generate", "completions", "chat")


def add_options(parser: Any) -> None:
    """For `events.init_command_line_parser`. All of it is text until the run starts: the page sends text."""
    for name, help_ in (*SHOWN, *HIDDEN):
        parser.add_argument(f"--{name}", default="results" if name == "results" else "", help=help_,
                            choices=APIS if name == "api" else None, include_in_web_ui=(name, help_) in SHOWN)
    for name, help_ in LISTS:
        parser.add_argument(f"--{name}", action="append", default=[], help=help_, include_in_web_ui=False)
    for name, help_ in FLAGS:
        parser.add_argument(f"--{name}", action="store_true", help=help_, include_in_web_ui=name != "insecure")


@dataclass(frozen=True, slots=True)
class Reach:
    """How a load process reaches the server. `tls` None: certificates are not checked (or no https)."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None
    secrets: tuple[str, ...] = field(default=(), repr=False)


def reach(options: Namespace, host: str) -> Reach:
    """From the process's own options and environment: keys never travel over Locust's channel.

    Raises UsageError for an address, header, key or CA file that cannot be used.
    """
    keys = load_keys(os.environ, options.api_key_file or None, options.admin_key_file or None)
    custom = parse_headers(options.header)
    return Reach(normalize_base(host), request_headers(keys, custom), _tls(options),
                 (*keys.secrets, *header_secrets(custom)))


def _tls(options: Namespace) -> ssl.SSLContext | None:
    if options.insecure:
        return None
    try:
        context: ssl.SSLContext = gssl.create_default_context(cafile=options.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot read the CA file {options.ca_file}: {error}") from None
    return context


def settings(options: Namespace, host: str | None, *, closed: bool, duration_s: float | None) -> dict[str, Any]:
    """What the companion is told: our options by name, None where nothing was given, and Locust's own."""
    given: dict[str, Any] = {}
    for name, _ in (*SHOWN, *HIDDEN):
        dest = name.replace("-", "_")
        given[dest] = getattr(options, dest) or None
    for name, _ in (*LISTS, *FLAGS):
        dest = name.replace("-", "_")
        given[dest] = getattr(options, dest)
    return {**given, "host": host, "closed": closed, "users": options.num_users,
            "duration_ns": None if duration_s is None else round(duration_s * 10**9),
            "argv": [well_formed(text) for text in sys.argv[1:]]}
