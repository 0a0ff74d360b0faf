"""The workload file as typed data: load, override from the command line, normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.pacing import Stage
from hicache_bench.workload.decode import Duration, Rate, convert, need, read_toml
from hicache_bench.workload.streams import StreamSpec, Trace

Api = Literal["generate", "completions", "chat"]
Arrival = Literal["constant", "poisson", "gamma", "trace"]

MOST_REQUESTS = 10_000_000
"""A plan is held in memory whole; more than so many requests or starts are refused before they are drawn."""


class Prompts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where prompt content comes from. `vocab` = [lo, hi): the ids of `random_ids`, hi not included."""

    source: Literal["english", "random_ids"] = "english"
    format: Literal["ids", "text"] = "ids"
    vocab: tuple[int, int] = (1000, 30000)
    reuse: bool = False

    def __post_init__(self) -> None:
        lo, hi = self.vocab
        need(lo >= 0 and lo + 2 <= hi < 2**32, "vocab", list(self.vocab),
             "must be [lo, hi] with 0 <= lo, at least 2 ids between them (hi itself is not drawn) and hi < 2^32")
        need(self.source == "english" or self.format == "ids", "format", self.format,
             'random ids have no text; use format = "ids" or source = "english"')


class StageSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage of an open loop: `rate` held, or a linear ramp from `rate` to `to`."""

    duration: Duration
    rate: Rate
    to: Rate | None = None

    def __post_init__(self) -> None:
        need(self.duration > 0, "duration", int(self.duration), "must be above 0")
        need(self.rate >= 0, "rate", float(self.rate), "must not be negative")
        need(self.to is None or self.to >= 0, "to", self.to, "must not be negative")

    def stage(self) -> Stage:
        return Stage(int(self.duration), float(self.rate), float(self.rate if self.to is None else self.to))


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the sessions are offered: `concurrency` (closed loop), or an open loop by `rate`, `stages` or
    `arrival = "trace"`. In an open loop the rate counts session starts; later turns follow their session."""

    concurrency: int | None = None
    rate: Rate | None = None
    arrival: Arrival = "poisson"
    cv: float = 1.0
    stages: tuple[StageSpec, ...] | None = None
    duration: Duration | None = None
    requests: int | None = None
    limit: int = 1024
    api: Api = "generate"
    stream: bool = True
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout: Duration = Duration(600 * 10**9)
    dp_routing: Literal["none", "round_robin", "sticky"] | int = "none"

    def __post_init__(self) -> None:
        for key in ("concurrency", "requests", "limit"):
            value = getattr(self, key)
            need(value is None or value >= 1, key, value, "must be at least 1")
            need(value is None or value <= MOST_REQUESTS, key, value, f"must be at most {MOST_REQUESTS}")
        need(self.rate is None or self.rate > 0, "rate", self.rate, "must be above 0")
        need(0 < self.cv < math.inf, "cv", self.cv, "must be above 0 and finite")
        need(self.duration is None or self.duration > 0, "duration", self.duration, "must be above 0")
        need(self.stages != (), "stages", [], "must not be empty")
        need(0 <= self.temperature < math.inf, "temperature", self.temperature, "must be at least 0 and finite")
        fixed = self.dp_routing
        need(isinstance(fixed, str) or 0 <= fixed < 2**31, "dp_routing", fixed, "a fixed rank is 0 to 2^31 - 1")
        ways = [key for key in ("concurrency", "rate", "stages") if getattr(self, key) is not None]
        need(len(ways) <= 1, ways[0] if ways else "rate", getattr(self, ways[0]) if ways else None,
             f"give only one of {', '.join(ways)}")
        need(self.arrival != "trace" or not ways, "arrival", self.arrival,
             f"plays the recorded times, so it goes without {' and '.join(ways)}; to send a trace that way, say "
             'arrival = "poisson", "constant" or "gamma" (--arrival)')
        self._check_starts()

    def _check_starts(self) -> None:
        """A loop by time alone must give a plan that fits in memory."""
        if self.stages is not None:
            starts = sum(max(stage.rate, stage.to or 0.0) * stage.duration / NS_PER_S for stage in self.stages)
            need(starts <= MOST_REQUESTS, "stages", f"{len(self.stages)} stages",
                 f"together they make up to {starts:.3g} session starts; a plan has at most {MOST_REQUESTS:,}")
        elif self.rate is not None and self.duration is not None and self.requests is None:
            starts = self.rate * self.duration / NS_PER_S
            need(starts <= MOST_REQUESTS, "rate", f"{self.rate:g}/s",
                 f"for {self.duration / NS_PER_S:g} s it makes {starts:.3g} session starts; a plan has at most "
                 f"{MOST_REQUESTS:,}: lower the rate or the duration, or give requests")

    @property
    def timeout_ns(self) -> int | None:
        """None when the file says `timeout = "0s"`: wait for ever."""
        return int(self.timeout) or None


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Before the run: empty device and host (`device_host`), and the storage tier (`storage`)."""

    device_host: bool = True
    storage: bool = True
    on_failure: Literal["error", "warn"] = "warn"

    def __post_init__(self) -> None:
        # Pages that stay in L2 keep their "is in L3" mark after a clear and are never written again (facts 0.9).
        need(self.device_host or not self.storage, "device_host", self.device_host,
             "storage can be cleared only after device and host: give device_host = true or storage = false")


class Prime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Send every shared prefix until the server reports it cached, at most `max_attempts` times."""

    enabled: bool = False
    max_attempts: int = 3

    def __post_init__(self) -> None:
        need(self.max_attempts >= 1, "max_attempts", self.max_attempts, "must be at least 1")


class Warmup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests sent before the measured phase, with prompts of their own."""

    requests: int = 0

    def __post_init__(self) -> None:
        need(0 <= self.requests <= MOST_REQUESTS, "requests", self.requests, f"must be 0 to {MOST_REQUESTS}")


class Settle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wait until the server's backup counters have stood still for `quiet`, at most until `deadline`."""

    deadline: Duration = Duration(30 * 10**9)
    quiet: Duration = Duration(2 * 10**9)


class Drain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long requests under way may take after the last one was issued."""

    deadline: Duration = Duration(60 * 10**9)


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a good request is (goodput); a figure left out is not judged."""

    ttft: Duration | None = None
    itl: Duration | None = None
    tpot: Duration | None = None
    e2e: Duration | None = None

    def conditions_ns(self) -> dict[str, int]:
        """Metric → limit in nanoseconds, for the figures that are judged."""
        limits = {key: getattr(self, key) for key in self.__struct_fields__}
        return {key: int(limit) for key, limit in limits.items() if limit is not None}


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload file."""

    name: str
    description: str = ""
    seed: int = 0
    prompts: Prompts = Prompts()
    load: Load = Load()
    reset: Reset = Reset()
    prime: Prime = Prime()
    warmup: Warmup = Warmup()
    settle: Settle = Settle()
    drain: Drain = Drain()
    slo: Slo = Slo()
    stream: tuple[StreamSpec, ...]

    def __post_init__(self) -> None:
        need(self.name != "", "name", self.name, "must not be empty")
        need(self.seed >= 0, "seed", self.seed, "must be at least 0")
        need(len(self.stream) > 0, "stream", [], "give at least one [[stream]] table")
        names = [stream.name for stream in self.stream]
        twice = sorted({name for name in names if names.count(name) > 1})
        need(not twice, "stream", twice, "every stream has a name of its own")

    def slo_text(self) -> dict[str, str]:
        """The conditions of `[slo]` as they are written: `{"ttft": "200ms"}`."""
        return {key: f"{limit / 10**6:g}ms" for key, limit in self.slo.conditions_ns().items()}


def load_spec(path: Path) -> WorkloadSpec:
    """Read and check one workload file. Raises UsageError naming file, dotted key and rule."""
    return convert(read_toml(path), WorkloadSpec, str(path))


def parse_spec(tables: Mapping[str, Any], where: str = "workload") -> WorkloadSpec:
    """The same from tables already decoded (the copy kept in a run directory, tests)."""
    return convert(tables, WorkloadSpec, where)


def override(
    spec: WorkloadSpec,
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    duration_ns: int | None = None,
    requests: int | None = None,
    limit: int | None = None,
    arrival: Arrival | None = None,
    seed: int | None = None,
    api: Api | None = None,
    stream: bool | None = None,
    reuse: bool | None = None,
    dp_routing: Literal["none", "round_robin", "sticky"] | int | None = None,
    timeout_ns: int | None = None,
    trace_path: str | None = None,
) -> WorkloadSpec:
    """The spec with command-line options put over it.

    `concurrency` and `rate` replace the file's loop whole. Recorded times (`arrival = "trace"`) give way to a
    concurrency, but not to a rate unless `arrival` says which gaps stand for them. `duration_ns` and `requests`
    replace its stop rule whole. `trace_path` (from the working directory) goes to the only trace stream.
    Raises UsageError for two loops at once, a rate over recorded times, values out of range, or a trace path
    without one trace stream.
    """
    if concurrency is not None and rate is not None:
        raise UsageError("give a concurrency (closed loop) or a rate (open loop), not both")
    changed: dict[str, Any] = {
        key: value
        for key, value in (("limit", limit), ("api", api), ("stream", stream), ("dp_routing", dp_routing),
                           ("timeout", None if timeout_ns is None else Duration(timeout_ns)))
        if value is not None
    }
    if concurrency is not None or rate is not None:
        changed |= {"concurrency": concurrency, "rate": None if rate is None else Rate(rate), "stages": None}
        if concurrency is not None and spec.load.arrival == "trace":
            changed["arrival"] = "poisson"  # a closed loop has no arrivals
    if arrival is not None:
        changed["arrival"] = arrival
    if duration_ns is not None or requests is not None:
        changed |= {"duration": None if duration_ns is None else Duration(duration_ns), "requests": requests}
    try:
        load = msgspec.structs.replace(spec.load, **changed)
        prompts = spec.prompts if reuse is None else msgspec.structs.replace(spec.prompts, reuse=reuse)
        new = msgspec.structs.replace(
            spec, load=load, prompts=prompts, seed=spec.seed if seed is None else seed
        )
    except ValueError as error:
        raise UsageError(f"{spec.name}: {error}") from None
    return new if trace_path is None else _with_trace(new, trace_path)


def dump_spec(spec: WorkloadSpec) -> dict[str, Any]:
    """Plain tables with every default filled in; durations in nanoseconds, rates per second."""

    def plain(value: object) -> object:
        if isinstance(value, Duration):
            return int(value)
        if isinstance(value, Rate):
            return float(value)
        raise NotImplementedError(type(value))

    tables: dict[str, Any] = msgspec.to_builtins(spec, enc_hook=plain)
    return tables


def _with_trace(spec: WorkloadSpec, path: str) -> WorkloadSpec:
    traces = [stream for stream in spec.stream if isinstance(stream, Trace)]
    if len(traces) != 1:
        raise UsageError(f"{spec.name}: --trace needs exactly one trace stream, not {len(traces)}")
    streams = tuple(
        msgspec.structs.replace(stream, path=str(Path(path).absolute())) if isinstance(stream, Trace) else stream
        for stream in spec.stream
    )
    return msgspec.structs.replace(spec, stream=streams)
