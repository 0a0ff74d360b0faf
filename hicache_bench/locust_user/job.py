"""What a load process is given and what it says at the end; how one plan is cut and clocks are related. Pure."""

from __future__ import annotations

import dataclasses
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from hicache_bench.errors import UsageError
from hicache_bench.load.requests import RequestBuilder
from hicache_bench.records import Attempt, ClosedLoop, OpenLoop, Plan

PART_BYTES = 512 * 1024
"""Largest message on Locust's channel; what is bigger goes in parts."""

_ROWS = msgspec.msgpack.Decoder(list[Attempt])
_INSTANTS = tuple(name for name in Attempt.__dataclass_fields__ if name.endswith("_ns") and name != "chunk_ns")


@dataclass(frozen=True, slots=True)
class Job:
    """One load process's share of the run."""

    plan: Plan
    builder: RequestBuilder
    rid_prefix: str
    drain_ns: int


@dataclass(slots=True)
class Ending:
    """How a load process's share ended; instants on its own clock, `None` when it never started.

    `stopped`: it was told to stop before its plan had ended.
    """

    issued: int = 0
    shed: int = 0
    cancelled: int = 0
    issue_end_ns: int | None = None
    end_ns: int | None = None
    planned_out: bool = False
    stopped: bool = False
    rows: int = 0
    failure: str | None = None
    health: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clock:
    """Another process's monotonic clock less ours (ns), known to ± `uncertainty_ns`."""

    offset_ns: int
    uncertainty_ns: int


class Figures(NamedTuple):
    """What Locust's statistics show of one row; None where the answer does not say."""

    outcome: str
    error: str | None
    e2e_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None
    body_bytes: int
    prompt_tokens: int | None
    cached_tokens: int | None
    device_tokens: int | None
    host_tokens: int | None
    storage_tokens: int | None
    output_tokens: int | None


class RowBatch(NamedTuple):
    """Some rows, encoded for Locust's channel, with the figures of each."""

    n: int
    data: bytes
    figures: list[Figures]


def cut(plan: Plan, n: int) -> list[Plan]:
    """`n` disjoint shares that together are the plan: every n-th session with its start, a share of the limit.

    A share keeps its sessions' numbers, so request ids and rows are those of the whole plan. Raises UsageError
    when a share would be empty or have no place for a session.
    """
    if len(plan.sessions) < n:
        raise UsageError(f"the plan has {len(plan.sessions)} sessions, too few for {n} workers; raise the number "
                         "of requests or start fewer workers")
    return [dataclasses.replace(plan, sessions=plan.sessions[i::n], arrivals_ns=plan.arrivals_ns[i::n],
                                loop=_share(plan.loop, i, n)) for i in range(n)]


def _share(loop: OpenLoop | ClosedLoop, i: int, n: int) -> OpenLoop | ClosedLoop:
    whole = loop.limit if isinstance(loop, OpenLoop) else loop.concurrency
    part = whole // n + (i < whole % n)
    if part == 0:
        what = "a limit" if isinstance(loop, OpenLoop) else "a concurrency (users)"
        raise UsageError(f"{what} of {whole} cannot be shared by {n} workers; allowed: at least {n}")
    return OpenLoop(part) if isinstance(loop, OpenLoop) else ClosedLoop(part)


def relate(pings: Sequence[tuple[int, int, int]]) -> Clock:
    """The clock of the other end from (sent, its clock, received): the fastest exchange says most (as NTP does).

    Raises UsageError without any exchange.
    """
    if not pings:
        raise UsageError("no clock exchange was answered")
    sent, theirs, received = min(pings, key=lambda ping: ping[2] - ping[0])
    return Clock(theirs - (sent + received) // 2, (received - sent + 1) // 2)


def to_correct(measured: Clock, same_kernel: bool) -> int:
    """What to subtract from the other end's instants. Processes of one kernel share CLOCK_MONOTONIC, so an
    offset within the exchange's own uncertainty is noise there."""
    return 0 if same_kernel and abs(measured.offset_ns) <= measured.uncertainty_ns else measured.offset_ns


def pack_job(job: Job) -> bytes:
    """Only a master sends this to its worker, which trusts it with more: Locust sends code that way."""
    return zlib.compress(pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL), 1)


def unpack_job(data: bytes) -> Job:
    """The reverse of `pack_job`."""
    job = pickle.loads(zlib.decompress(data))
    assert isinstance(job, Job)
    return job


def parts(data: bytes, size: int = PART_BYTES) -> list[bytes]:
    """`data` in pieces of at most `size` bytes, at least one."""
    return [data[at : at + size] for at in range(0, max(1, len(data)), size)]


def pack_rows(rows: Sequence[Attempt]) -> bytes:
    """Typed and safe to read from anyone who reaches the master's port, unlike pickle."""
    return msgspec.msgpack.encode(rows)


def unpack_rows(data: bytes, offset_ns: int = 0) -> list[Attempt]:
    """The rows, their instants moved from a clock that is `offset_ns` ahead. Raises msgspec.DecodeError."""
    rows = _ROWS.decode(data)
    if offset_ns:
        for row in rows:
            for name in _INSTANTS:
                value = getattr(row, name)
                if value is not None:
                    setattr(row, name, value - offset_ns)
            row.chunk_ns = [value - offset_ns for value in row.chunk_ns]
    return rows
