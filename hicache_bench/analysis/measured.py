"""One run reduced to the figures a comparison needs, part by part: 5 million rows fit in a gigabyte."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_bench.analysis.cautions import Caution, cautions
from hicache_bench.analysis.figures import FIGURES, POINTS, REQUEST_METRICS, RUN_METRICS
from hicache_bench.analysis.gaps import Gaps, read_gaps
from hicache_bench.analysis.metrics import BY_NAME, TIERS, rate_over, samples, value
from hicache_bench.analysis.rows import COLUMNS, Floats, Rows, rows_of
from hicache_bench.analysis.slo import Bound, keeps, parse_slo
from hicache_bench.analysis.summary import loop_kind
from hicache_bench.analysis.tiers import ttft_by_tier
from hicache_bench.analysis.windows import measured, steady
from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.stats import Summary, ratio
from hicache_bench.store.parts import iter_attempts
from hicache_bench.store.rundir import RunDir

MIX_SLICES = 8

_STEADY = {"requests_per_s_steady": None, "output_per_s_steady": "output_tokens"}
_UNUSED = ("server_queue_s", "prefetch_wait_s", "outcome")
"""Columns `rows_of` reads that no row of a comparison needs (outcomes are in `Rows.ended`)."""
_NEEDED = ("session", "turn", *(name for name in COLUMNS if name not in ("stream", "error", "phase")))

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Slice:
    """Prompt tokens of ok requests in one slice of the measured phase, by where they came from, as shares;
    None where no request said it. `start` and `end` are shares of the phase."""

    start: float
    end: float
    requests: int
    device: float | None
    host: float | None
    storage: float | None
    recomputed: float | None


@dataclass(frozen=True, slots=True)
class Detail:
    """What resampling within a run needs, one entry a row: NaN where not known. Durations in nanoseconds."""

    session: NDArray[np.int64]
    turn: NDArray[np.int32]
    due_ns: Floats
    ok: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    shed: NDArray[np.bool_]
    good: NDArray[np.bool_] | None
    durations: Mapping[str, Float32s]
    tokens: Mapping[str, Float32s]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """`values` by row name of `figures.FIGURES`, in the unit of the row; absent is None."""

    run: RunDir
    name: str
    meta: Mapping[str, Any]
    status: str
    cautions: tuple[Caution, ...]
    attempts: int
    values: Mapping[str, float | None]
    tiers: Mapping[str, Summary]
    mix: tuple[Slice, ...]


def load_run(run: RunDir, slo: str | None = None) -> tuple[RunFigures, Detail]:
    """Everything but the figures of single tokens (`add_gaps`). `slo` overrides the objective of the run.

    Raises StoreError for a run of a newer schema, UsageError for a bad `slo`.
    """
    meta, status = run.meta, run.status
    rows, session, turn, unreadable = _read(run, meta)
    bounds = _bounds(slo, meta)
    durations = {name: samples(BY_NAME[name], rows).astype(np.float32) for name in REQUEST_METRICS}
    values: dict[str, float | None] = {name: value(BY_NAME[name], rows) for name in RUN_METRICS if name not in _STEADY}
    window = steady(rows)  # found once: it takes longer than all other figures of the run together
    values |= {name: rate_over(column, lambda _: window)(rows) for name, column in _STEADY.items()}
    values |= {f"{name} {point}": figure for name, found in durations.items() for point, figure in _points(found)}
    values |= _client(meta)
    good = keeps(rows, tuple(item for item in bounds if item.metric != "itl")) if bounds else None
    detail = Detail(
        session, turn, rows.due_ns, rows.ok, ~rows.outcome("ok", "empty", "shed", "aborted"), rows.outcome("shed"),
        good, durations,
        {name: rows[f"{name}_tokens"].astype(np.float32) for name in ("prompt", "cached", *TIERS)},
    )  # fmt: skip
    figures = RunFigures(run, run.path.name, meta, status, cautions(rows, meta, status, unreadable), rows.n, values,
                         ttft_by_tier(rows), _mix(rows))  # fmt: skip
    return figures, detail


def add_gaps(
    figures: RunFigures, detail: Detail, slo: str | None = None, block: NDArray[np.int32] | None = None, blocks: int = 0
) -> tuple[RunFigures, Detail, Gaps]:
    """The figures of single tokens and, with them, goodput; `block` assigns rows to blocks (see `Gaps`)."""
    bounds = _bounds(slo, figures.meta)
    gaps = read_gaps(figures.run.path, tuple(item for item in bounds if item.metric == "itl"), block, blocks)
    good = detail.good
    if good is not None and gaps.good is not None and good.size == gaps.good.size:
        good = good & gaps.good
    values = dict(figures.values) | {f"itl {point}": figure for point, figure in gaps.points().items()}
    values |= {"goodput": None, "goodput_per_s": None}
    if good is not None and figures.attempts:
        span = _span_ns(figures.meta, detail)
        values["goodput"] = float(good.mean())
        values["goodput_per_s"] = ratio(float(good.sum()), None if span is None else span / NS_PER_S)
    unknown = [figure.name for figure in FIGURES if figure.name not in values]
    values |= dict.fromkeys(unknown)
    return dataclasses.replace(figures, values=values), dataclasses.replace(detail, good=good), gaps


def _read(run: RunDir, meta: Mapping[str, Any]) -> tuple[Rows, NDArray[np.int64], NDArray[np.int32], list[str]]:
    """All rows as one view without chunks, put together from the parts (a table of them all would take as much
    again)."""
    unreadable: list[str] = []
    start, load = _int(meta.get("measure_start_ns")), meta.get("load")
    how: dict[str, Any] = {
        "loop": loop_kind(meta),
        "concurrency": _int(load.get("concurrency")) if isinstance(load, Mapping) else None,
    }
    pieces: list[Rows] = []
    sessions: list[NDArray[np.int64]] = []
    turns: list[NDArray[np.int32]] = []
    for table in iter_attempts(run.path, _NEEDED, "measure", unreadable):
        if not table.num_rows:
            continue
        piece = rows_of(table, phase=None, start_ns=start, end_ns=_int(meta.get("measure_end_ns")), **how)
        if start is None:  # instants of every part count from one origin
            start = piece.origin_ns
            piece = rows_of(table, phase=None, start_ns=start, end_ns=_int(meta.get("measure_end_ns")), **how)
        pieces.append(dataclasses.replace(
            piece, cols={name: _light(name, item) for name, item in piece.cols.items() if name not in _UNUSED},
            text={name: _shared(item) for name, item in piece.text.items() if name not in _UNUSED},
        ))  # fmt: skip
        sessions.append(np.asarray(table["session"].to_numpy(), dtype=np.int64))
        turns.append(np.asarray(table["turn"].to_numpy()).astype(np.int32))
    if not pieces:
        from hicache_bench.store.reader import read_attempts

        empty = rows_of(read_attempts(run.path).slice(0, 0), start_ns=start,
                        end_ns=_int(meta.get("measure_end_ns")), **how)  # fmt: skip
        return empty, np.zeros(0, np.int64), np.zeros(0, np.int32), unreadable
    return _join(pieces, meta), np.concatenate(sessions), np.concatenate(turns), unreadable


def _light(name: str, column: Floats) -> Any:
    """Counts as float32, which holds every count up to 16 million exactly."""
    return column if name.endswith("_ns") else column.astype(np.float32)


def _shared(column: NDArray[np.object_]) -> NDArray[np.object_]:
    """The same words, each kept once: a string object a row takes more memory than all numbers of the row."""
    found = np.full(column.size, None, dtype=np.object_)
    for word in set(column) - {None}:
        found[column == word] = word
    return found


def _join(pieces: list[Rows], meta: Mapping[str, Any]) -> Rows:
    """One view of them all. Each column of the pieces is let go once it is joined, which halves the peak."""
    given = [dict(piece.cols) for piece in pieces]
    light = [dataclasses.replace(piece, cols={}) for piece in pieces]
    pieces.clear()
    pieces, first, cols = light, light[0], dict[str, Any]()
    for name in list(given[0]):
        cols[name] = np.concatenate([columns.pop(name) for columns in given])
    text = {name: np.concatenate([piece.text[name] for piece in pieces]) for name in first.text}
    outcomes = sorted({name for piece in pieces for name in piece.ended})
    ended = {
        name: np.concatenate([piece.ended.get(name, np.zeros(piece.n, dtype=np.bool_)) for piece in pieces])
        for name in outcomes
    }
    starts = [piece.window[0] for piece in pieces if piece.window]
    ends = [piece.window[1] for piece in pieces if piece.window]
    if _int(meta.get("measure_start_ns")) is None:
        known = np.fmin(cols["scheduled_ns"], cols["sent_ns"])
        starts = [float(np.nanmin(known))] if not np.isnan(known).all() else []
    return dataclasses.replace(
        first, n=sum(piece.n for piece in pieces), cols=cols, text=text, ended=ended,
        window=(min(starts), max(ends)) if starts and ends else None,
    )  # fmt: skip


def _points(found: Float32s) -> list[tuple[str, float | None]]:
    known = found[~np.isnan(found)]
    if not known.size:
        return [(point, None) for point in POINTS]
    figures = [*np.percentile(known, (50, 90, 99)).tolist(), float(known.mean(dtype=np.float64))]
    return list(zip(POINTS, figures, strict=True))


def _client(meta: Mapping[str, Any]) -> dict[str, float | None]:
    client = meta.get("client")
    health: Mapping[str, Any] = client if isinstance(client, Mapping) else {}
    keys = {"loop_lag p99": "loop_lag_p99_ns", "client_cpu": "cpu_fraction"}
    return {name: _number(health.get(key)) for name, key in keys.items()}


def _bounds(slo: str | None, meta: Mapping[str, Any]) -> tuple[Bound, ...]:
    if slo is not None:
        return parse_slo(slo)
    stored = meta.get("slo")
    text = ",".join(f"{k}<{v}" for k, v in stored.items()) if isinstance(stored, Mapping) else stored
    try:
        return parse_slo(text) if isinstance(text, str) and text else ()
    except UsageError:
        return ()  # an objective of another version must not hide the other figures


def _span_ns(meta: Mapping[str, Any], detail: Detail) -> float | None:
    start, end = _int(meta.get("measure_start_ns")), _int(meta.get("measure_end_ns"))
    if start is not None and end is not None:
        return float(end - start)
    ends = detail.due_ns + detail.durations["e2e"]
    known = ~np.isnan(ends)
    return float(np.max(ends[known]) - np.nanmin(detail.due_ns)) if known.any() else None


def _mix(rows: Rows) -> tuple[Slice, ...]:
    whole = measured(rows)
    if whole is None or whole.duration_ns <= 0:
        return ()
    said = rows.ok & ~np.isnan(rows["cached_tokens"]) & ~np.isnan(rows["prompt_tokens"])
    at = np.where(said, (rows.due_ns - whole.start_ns) / whole.duration_ns * MIX_SLICES, -1)
    number = np.clip(np.nan_to_num(at, nan=-1), -1, MIX_SLICES - 1).astype(np.int8)
    return tuple(_slice(rows, number == i, i / MIX_SLICES, (i + 1) / MIX_SLICES) for i in range(MIX_SLICES))


def _slice(rows: Rows, among: NDArray[np.bool_], start: float, end: float) -> Slice:
    prompt = float(rows["prompt_tokens"][among].sum())
    device, host, storage = (_share(rows[f"{tier}_tokens"][among], prompt) for tier in TIERS)
    return Slice(start, end, int(among.sum()), device, host, storage,
                 ratio(prompt - float(rows["cached_tokens"][among].sum()), prompt))  # fmt: skip


def _share(tokens: Floats, prompt: float) -> float | None:
    known = tokens[~np.isnan(tokens)]
    return ratio(float(known.sum()), prompt) if known.size else None


def _int(number: Any) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _number(item: Any) -> float | None:
    return float(item) if isinstance(item, int | float) and not isinstance(item, bool) else None
