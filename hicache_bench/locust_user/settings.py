"""From what Locust's command line and page say to what a run is made of; the companion's side of `options`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from hicache_bench.analysis.slo import parse_slo
from hicache_bench.cli.options import dp_routing
from hicache_bench.errors import UsageError
from hicache_bench.manifest import RunOptions
from hicache_bench.sglang.auth import load_keys, parse_headers
from hicache_bench.sglang.urls import normalize_base
from hicache_bench.target import Target
from hicache_bench.units import parse_count, parse_rate
from hicache_bench.workload.spec import Api, WorkloadSpec, load_spec, override
from hicache_bench.workload.trace import check_files

T = TypeVar("T")

_NONCE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def read_settings(given: Mapping[str, Any]) -> tuple[WorkloadSpec, Path, Target, RunOptions]:
    """(spec, its path, target, options) from what Locust's command line and page say, all of it text.

    Raises UsageError naming the option.
    """
    if given["workload"] is None:
        raise UsageError("no workload: give --workload FILE or set `workload` in the user class")
    if given["host"] is None:
        raise UsageError("no server: give --host http://server:30000")
    path = Path(given["workload"])
    if not path.is_file():
        raise UsageError(f"--workload {path}: no such file")
    if given["api"] not in (None, *get_args(Api)):
        raise UsageError(f"--api {given['api']!r}: allowed are {', '.join(get_args(Api))}")
    if given["nonce"] is not None and not _NONCE.fullmatch(given["nonce"]):
        raise UsageError(f"--nonce {given['nonce'][:70]!r}: allowed are 1 to 64 letters, digits and - _ .")
    spec = override(
        load_spec(path),
        concurrency=given["users"] if given["closed"] and given["rate"] is None else None,
        rate=_number("--rate", given["rate"], parse_rate),
        duration_ns=given["duration_ns"],
        requests=_number("--requests", given["requests"], parse_count),
        limit=_number("--limit", given["limit"], parse_count),
        seed=_number("--seed", given["seed"], int),
        api=given["api"],
        dp_routing=dp_routing(given["dp_routing"]),
        trace_path=given["trace"],
    )
    check_files(spec.stream, path.parent)
    target = _target(given)
    if given["slo"] is not None:
        parse_slo(given["slo"])
    options = RunOptions(results=Path(given["results"]), argv=given["argv"], tags={"engine": "locust"},
                         nonce=given["nonce"], reset=not given["no_reset"], prime=not given["no_prime"],
                         slo=given["slo"])
    return spec, path, target, options


def _target(given: Mapping[str, Any]) -> Target:
    target = Target(
        url=normalize_base(given["host"]),
        admin_url=None if given["admin_url"] is None else normalize_base(given["admin_url"]),
        keys=load_keys(os.environ, given["api_key_file"], given["admin_key_file"]),
        headers=parse_headers(given["header"]),
        ca_file=None if given["ca_file"] is None else Path(given["ca_file"]),
        insecure=given["insecure"],
        tokenizer=None if given["tokenizer"] is None else Path(given["tokenizer"]),
        metrics_urls=tuple(given["metrics_url"]),
        model=given["model"],
    )
    target.check()
    return target


def _number(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if text is None else parse(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a whole number") from None
