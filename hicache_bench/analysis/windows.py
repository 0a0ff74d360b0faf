"""Time windows of a run: the measured phase, and the part of it with the load fully on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache_bench.analysis.rows import Flags, Floats, Rows

LEVEL = 0.9
MIN_SHARE = 0.1
BRIDGE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Window:
    """`start_ns`..`end_ns` after the origin of the rows; `how` says how it was found."""

    start_ns: float
    end_ns: float
    how: str

    @property
    def duration_ns(self) -> float:
        return self.end_ns - self.start_ns


def measured(rows: Rows) -> Window | None:
    """The whole measured phase; None without any instant."""
    return None if rows.window is None else Window(*rows.window, "from the start to the end of the measured phase")


def steady(rows: Rows) -> Window | None:
    """The steady state; None when it would be under a tenth of the measured phase.

    Closed loop: the longest time with at least 0.9 of the concurrency (or of the peak, if lower) in flight,
    bridging dips under 1 % of the phase, since a worker between two requests is no idle load. Open loop, where
    the peak is one chance burst: from the first to the last time that 0.9 of the median was in flight.
    """
    whole = measured(rows)
    if whole is None or whole.duration_ns <= 0:
        return None
    times, flying = _in_flight(rows, whole)
    spans = np.diff(times)
    if not spans.size or not flying.any():
        return None
    if rows.loop == "closed":
        peak = int(flying.max())
        base = min(rows.concurrency or peak, peak)
        level = max(1, int(LEVEL * base))
        found = _longest(times, flying >= level, BRIDGE_SHARE * whole.duration_ns)
        how = f"longest time with {level} or more in flight (0.9 of {base}), dips under 1 % of the run bridged"
    else:
        base = _weighted_median(flying, spans)
        level = max(1, int(LEVEL * base))
        up = np.flatnonzero(flying >= level)
        found = (float(times[up[0]]), float(times[up[-1] + 1])) if up.size else None
        how = f"first to last time with {level} or more in flight (0.9 of the median {base})"
    if found is None or found[1] - found[0] < MIN_SHARE * whole.duration_ns:
        return None
    return Window(*found, how)


def _in_flight(rows: Rows, whole: Window) -> tuple[Floats, Floats]:
    """(times, flying): `flying[i]` requests were out between `times[i]` and `times[i + 1]`."""
    sent, done = rows["sent_ns"], rows["done_ns"]
    seen = ~(np.isnan(sent) | np.isnan(done))
    starts = np.clip(sent[seen], whole.start_ns, whole.end_ns)
    ends = np.clip(done[seen], whole.start_ns, whole.end_ns)
    times, which = np.unique(np.concatenate(([whole.start_ns, whole.end_ns], starts, ends)), return_inverse=True)
    steps = np.bincount(
        which, weights=np.concatenate(([0, 0], np.ones(starts.size), -np.ones(ends.size))), minlength=times.size
    )
    return times, np.cumsum(steps).astype(np.float64)[:-1]


def _longest(times: Floats, up: Flags, bridge_ns: float) -> tuple[float, float] | None:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], up, [False])).astype(np.int8)))
    starts, ends = times[edges[0::2]], times[edges[1::2]]
    if not starts.size:
        return None
    apart = starts[1:] - ends[:-1] > bridge_ns
    starts, ends = starts[np.concatenate(([True], apart))], ends[np.concatenate((apart, [True]))]
    best = int(np.argmax(ends - starts))
    return float(starts[best]), float(ends[best])


def _weighted_median(values: Floats, weights: Floats) -> int:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(total, total[-1] / 2)])
