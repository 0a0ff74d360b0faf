"""A measured run played again on the simulator: predicted beside measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.rows import rows_of
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import Costs
from hicache_bench.cachesim.schedule import Schedule
from hicache_bench.errors import Inconclusive, UsageError
from hicache_bench.records import Attempt
from hicache_bench.simulate.offline import play
from hicache_bench.simulate.setup import Setup
from hicache_bench.store.reader import read_attempts
from hicache_bench.store.rundir import RunDir
from hicache_bench.workload.mix import Capacity
from hicache_bench.workload.plan import build_plan
from hicache_bench.workload.spec import WorkloadSpec

_FLAGS = {"hicache_write_policy": "write_policy", "hicache_storage_prefetch_policy": "prefetch_policy",
          "radix_eviction_policy": "eviction_policy", "chunked_prefill_size": "chunked_prefill_size"}
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, measured and predicted; `unit` is ns or ratio, None: not known."""

    name: str
    unit: str
    measured: float | None
    predicted: float | None


def spec_of(run: RunDir, trace: Path | None = None) -> WorkloadSpec:
    """The workload of a run with all its options, from its plan.json. Raises UsageError when it is not readable so.

    A trace's path is as it was written; `trace` names where it lies now.
    """
    tables = run.read_json("plan.json").get("spec")
    try:
        if trace is not None:
            for stream in tables["stream"]:
                if "path" in stream:
                    stream["path"] = str(trace.resolve())
        return msgspec.convert(tables, WorkloadSpec, dec_hook=lambda kind, value: kind(value))
    except (msgspec.ValidationError, TypeError, KeyError) as error:
        raise UsageError(f"{run.path / 'plan.json'}: the workload in it is not readable: {error}") from None


def setup_of(run: RunDir, costs: Costs) -> Setup:
    """The cache of the measured server. Raises Inconclusive when its sizes are not known."""
    server = run.read_json("server.json")
    page, device = server.get("page_size"), server.get("device_tokens")
    if not page or not device:
        raise Inconclusive(f"{run.path.name}: the server did not say its page size and device pool, so there is "
                           "nothing to simulate")
    flags = server.get("flags") or {}
    chosen = {ours: flags[theirs] for theirs, ours in _FLAGS.items() if flags.get(theirs)}
    if (chosen.get("chunked_prefill_size") or 0) < page:
        chosen.pop("chunked_prefill_size", None)
    hicache = bool(server.get("hicache"))
    storage = hicache and server.get("storage_backend") is not None
    config = CacheConfig(page_size=page, device_tokens=device, hicache=hicache, storage=storage,
                         host_tokens=server.get("host_tokens") if hicache else None, **chosen)
    limit = flags.get("max_running_requests")
    schedule = Schedule(max_running_requests=limit) if isinstance(limit, int) and limit > 0 else Schedule()
    return Setup(config, costs, schedule)


def predict(run: RunDir, setup: Setup, spec: WorkloadSpec, note: Callable[[str], None]) -> list[Compared]:
    """Play the run's plan on `setup` and set its figures beside the measured ones.

    The plan is built for the sizes the run had; when it comes out different (`note` says so) the comparison is of
    similar loads only.
    """
    server = run.read_json("server.json")
    limits = [limit for limit in (server.get("max_request_tokens"), setup.capacity.max_request_tokens) if limit]
    capacity = Capacity(server.get("device_tokens"), server.get("host_tokens"), min(limits, default=None))
    plan = build_plan(spec, base_dir=Path(), page_size=setup.config.page_size, capacity=capacity)
    if plan.digest != run.meta.get("plan_digest"):
        note(f"warning: the plan built again is {plan.digest}, the run had {run.meta.get('plan_digest')}: sizes or "
             "files have changed")
    state = str(run.meta.get("start_state"))
    if "cold" not in state:
        note(f"warning: the run started {state}; the simulation starts cold")
    primed = run.meta.get("prime") is not None
    played = play(setup, spec, plan, prime=primed)
    predicted = [row for row in played.rows if row.phase == "measure"]
    return compare(_measured(run), _columns(predicted))


def _columns(rows: list[Attempt]) -> dict[str, NDArray[np.float64]]:
    ok = [dataclasses.asdict(dataclasses.replace(row, chunk_ns=[], chunk_tokens=[])) for row in rows
          if row.outcome == "ok"]
    names = ("first_token_ns", "scheduled_ns", "done_ns", "prompt_tokens", "cached_tokens", "device_tokens",
             "host_tokens", "storage_tokens")
    return {name: np.array([np.nan if row[name] is None else row[name] for row in ok], dtype=np.float64)
            for name in names}


def _measured(run: RunDir) -> dict[str, NDArray[np.float64]]:
    rows = rows_of(read_attempts(run.path))
    columns = {name: rows[name][rows.ok] for name in ("first_token_ns", "done_ns", "prompt_tokens", "cached_tokens",
                                                      "device_tokens", "host_tokens", "storage_tokens")}
    return {**columns, "scheduled_ns": rows.due_ns[rows.ok]}


def compare(measured: Mapping[str, NDArray[np.float64]], predicted: Mapping[str, NDArray[np.float64]]
            ) -> list[Compared]:
    """TTFT and end-to-end percentiles (ns, from the schedule) and the share of prompt tokens each tier served."""
    found = []
    for name, end in (("ttft", "first_token_ns"), ("e2e", "done_ns")):
        for percent in PERCENTILES:
            found.append(Compared(f"{name} p{percent}", "ns", *(_percentile(side[end] - side["scheduled_ns"], percent)
                                                                for side in (measured, predicted))))
    for tier in ("cached", "device", "host", "storage"):
        found.append(Compared(f"hit {tier}", "ratio", *(_share(side, tier) for side in (measured, predicted))))
    return found


def _percentile(values: NDArray[np.float64], percent: int) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent)) if len(known) else None


def _share(side: Mapping[str, NDArray[np.float64]], tier: str) -> float | None:
    tokens, prompt = side[f"{tier}_tokens"], side["prompt_tokens"]
    total = float(np.nansum(prompt))
    return None if np.isnan(tokens).all() or not total else float(np.nansum(tokens)) / total


def as_rows(compared: list[Compared]) -> list[dict[str, Any]]:
    """Plain rows."""
    return [dataclasses.asdict(one) for one in compared]
