"""What `run.json` and `plan.json` say about a run before it starts."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hicache_bench import __version__
from hicache_bench.clock import ClockAnchor
from hicache_bench.records import ClosedLoop, OpenLoop, Plan, ServerInfo
from hicache_bench.target import Target
from hicache_bench.workload.footprint import Footprint
from hicache_bench.workload.spec import WorkloadSpec, dump_spec


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is asked to do beyond its workload. `nonce` None: a new one, so no prompt repeats."""

    results: Path
    argv: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    nonce: str | None = None
    reset: bool = True
    prime: bool = True
    slo: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def run_meta(spec: WorkloadSpec, plan: Plan, options: RunOptions, info: ServerInfo, nonce: str,
          target: Target) -> dict[str, Any]:
    """The first `run.json`; what is learned later is added to it."""
    anchor = ClockAnchor.read()
    return {
        "status": "running",
        "pid": os.getpid(),
        "name": spec.name,
        "workload": spec.name,
        "plan_digest": plan.digest,
        "loop": "closed" if isinstance(plan.loop, ClosedLoop) else "open",
        "load": _load_meta(spec, plan),
        "requests": plan.n_requests,
        "origin": info.origin,
        "start_state": "unknown",
        "seed": plan.seed,
        "nonce": nonce,
        "reuse_prompts": spec.prompts.reuse,
        "api": spec.load.api,
        "slo": options.slo or spec.slo_text(),
        "url": target.url,
        "admin_url": target.admin_url,
        "transport": target.transport_name,
        "argv": list(options.argv),
        "tags": dict(options.tags),
        "versions": _versions(),
        "host": {"platform": platform.platform(), "python": sys.version.split()[0], "cpus": os.cpu_count(),
                 "machine": platform.machine()},
        "clocks": {"monotonic_ns": anchor.monotonic_ns, "wall_ns": anchor.wall_ns},
        "started_wall_ns": anchor.wall_ns,
        "server": server_meta(info),
    }


def server_meta(info: ServerInfo) -> dict[str, Any]:
    """What `run.json` says of the server; everything else is in `server.json`."""
    return {"model": info.model, "version": info.version, "fingerprint": info.fingerprint,
            "page_size": info.page_size}


def _load_meta(spec: WorkloadSpec, plan: Plan) -> dict[str, Any]:
    """The loop in figures: concurrency of a closed one; rate (1/s; None with stages or recorded times), arrival
    and limit of an open one; what ends it."""
    load = spec.load
    loop: dict[str, Any] = ({"concurrency": plan.loop.concurrency} if isinstance(plan.loop, ClosedLoop) else
                            {"rate": load.rate, "arrival": load.arrival, "staged": load.stages is not None,
                             "limit": plan.loop.limit})
    return {**loop, "duration_ns": plan.stop.duration_ns, "requests": plan.stop.requests}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"hicache-bench": __version__}
    for name in ("aiohttp", "httptools", "uvloop", "numpy", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def plan_meta(spec: WorkloadSpec, plan: Plan, print_: Footprint, unique: int) -> dict[str, Any]:
    """`plan.json`: the normalised workload, what it amounts to, and how much was checked unique."""
    loop = plan.loop
    return {
        "digest": plan.digest,
        "seed": plan.seed,
        "spec": dump_spec(spec),
        "loop": {"kind": "open", "limit": loop.limit} if isinstance(loop, OpenLoop)
        else {"kind": "closed", "concurrency": loop.concurrency},
        "stop": dataclasses.asdict(plan.stop),
        "sessions": len(plan.sessions),
        "requests": plan.n_requests,
        "unique_checked": unique,
        "last_arrival_ns": int(plan.arrivals_ns[-1]) if len(plan.arrivals_ns) else None,
        "footprint": dataclasses.asdict(print_),
    }
