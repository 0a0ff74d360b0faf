"""One plan over many setups: hit ratios by tier and TTFT for every point, on all cores."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hicache_bench.errors import UsageError
from hicache_bench.records import Attempt, Plan
from hicache_bench.simulate.offline import play
from hicache_bench.simulate.setup import Setup
from hicache_bench.workload.plan import build_plan
from hicache_bench.workload.spec import WorkloadSpec

MOST_POINTS = 4096
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """What one setup gives. Ratios are of the prompt tokens of ok requests; TTFT in nanoseconds from the schedule;
    None where nothing was ok. `duration_ns` is virtual; `retractions` counts requests put back for want of pages."""

    requests: int
    ok: int
    shed: int
    hit_ratio: float | None
    device_ratio: float | None
    host_ratio: float | None
    storage_ratio: float | None
    ttft_p50_ns: float | None
    ttft_p99_ns: float | None
    output_tokens_per_s: float | None
    duration_ns: int
    retractions: int


def combinations(axes: Mapping[str, Sequence[T]]) -> list[dict[str, T]]:
    """Every combination of the axes' values, the last axis running fastest. Raises UsageError for an empty axis or
    too many points."""
    for name, values in axes.items():
        if not values:
            raise UsageError(f"{name}: a sweep needs at least one value")
    found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(found) > MOST_POINTS:
        raise UsageError(f"{len(found)} points; a sweep has at most {MOST_POINTS}")
    return found


class Tally:
    """Sums over the rows of a run as they come, so that a sweep keeps no row."""

    def __init__(self) -> None:
        self._ttft: list[int] = []
        self._tokens = dict.fromkeys(("prompt", "cached", "device", "host", "storage", "output"), 0)
        self._rows = self._ok = self._shed = self._retractions = 0

    def add(self, row: Attempt) -> None:
        """Take one row; those of other phases than the measured one are left out."""
        if row.phase != "measure":
            return
        self._rows += 1
        self._shed += row.outcome == "shed"
        self._retractions += row.retractions or 0
        if row.outcome != "ok":
            return
        self._ok += 1
        for name in self._tokens:
            self._tokens[name] += getattr(row, f"{name}_tokens") or 0
        if row.first_token_ns is not None and row.scheduled_ns is not None:
            self._ttft.append(row.first_token_ns - row.scheduled_ns)

    def point(self, duration_ns: int) -> Point:
        """The figures of everything added."""
        prompt = self._tokens["prompt"]
        ratios = {name: self._tokens[name] / prompt if prompt else None for name in ("cached", "device", "host",
                                                                                     "storage")}
        p50, p99 = (float(np.percentile(self._ttft, q)) if self._ttft else None for q in (50, 99))
        speed = self._tokens["output"] / (duration_ns / 1e9) if duration_ns > 0 else None
        return Point(self._rows, self._ok, self._shed, ratios["cached"], ratios["device"], ratios["host"],
                     ratios["storage"], p50, p99, speed, duration_ns, self._retractions)


def evaluate(setup: Setup, spec: WorkloadSpec, plan: Plan) -> Point:
    """Play the plan once and reduce it to a point."""
    tally = Tally()
    driven = play(setup, spec, plan, take=tally.add).driven
    return tally.point(driven.end_ns - driven.start_ns)


def sweep(setups: Sequence[Setup], spec: WorkloadSpec, base_dir: Path, *, jobs: int | None = None,
          done: Callable[[int, Point], None] | None = None) -> list[Point]:
    """A point for every setup, in their order, on `jobs` processes (None: one a core; 1: in this one).

    `done` hears of each point when it is ready. Every process plans once for each page size and capacity; the
    points do not depend on `jobs`. Raises UsageError for setups that the workload does not fit.
    """
    n_jobs = min(jobs or os.cpu_count() or 1, len(setups))
    points: dict[int, Point] = {}
    work = _in_processes if n_jobs > 1 else _in_turn
    for number, point in work(setups, spec, base_dir, n_jobs):
        points[number] = point
        if done is not None:
            done(number, point)
    return [points[number] for number in range(len(setups))]


def table(axes: Sequence[Mapping[str, Any]], points: Sequence[Point]) -> list[dict[str, Any]]:
    """Rows of axes and figures side by side."""
    return [{**values, **asdict(point)} for values, point in zip(axes, points, strict=True)]


# ------------------------------------------------------------------ where the work is done

_planned: dict[tuple[Any, ...], Plan] = {}
_job: tuple[WorkloadSpec, Path] | None = None


def _in_turn(setups: Sequence[Setup], spec: WorkloadSpec, base_dir: Path, _: int) -> Iterator[tuple[int, Point]]:
    _begin(spec, base_dir)
    for number, setup in enumerate(setups):
        yield number, _one(setup)


def _in_processes(setups: Sequence[Setup], spec: WorkloadSpec, base_dir: Path, n_jobs: int
                  ) -> Iterator[tuple[int, Point]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, mp_context=context, initializer=_begin, initargs=(spec, base_dir)) as pool:
        numbers = {pool.submit(_one, setup): number for number, setup in enumerate(setups)}
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(spec: WorkloadSpec, base_dir: Path) -> None:
    global _job
    _job = (spec, base_dir)
    _planned.clear()


def _one(setup: Setup) -> Point:
    assert _job is not None
    spec, base_dir = _job
    sized = (setup.config.page_size, setup.capacity)
    if sized not in _planned:
        _planned[sized] = build_plan(spec, base_dir=base_dir, page_size=sized[0], capacity=setup.capacity)
    return evaluate(setup, spec, _planned[sized])
