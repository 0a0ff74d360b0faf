"""Agent sessions with sub-agents: the traces of callanjfox/kv-cache-tester (WEKA).

One JSON file is one session. An item of type "subagent" nests requests of its own: they start after the
parent's turn before them, side by side with their siblings, and the parent's next turn waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.records import Prompt, Turn
from hicache_bench.workload.shapes import Draft
from hicache_bench.workload.streams import Trace
from hicache_bench.workload.trace import block_segments, missing, scaled

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Item(msgspec.Struct):
    type: Literal["n", "s", "subagent"]
    t: Seconds
    tokens_in: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(default=None, name="in")
    out: Annotated[int, msgspec.Meta(ge=0)] = 0
    hash_ids: list[int] = []
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    requests: list[_Item] = []


class _File(msgspec.Struct):
    requests: list[_Item]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    hash_id_scope: Literal["local", "global"] = "local"


def load_weka(stream: Trace, path: Path) -> Iterator[Draft]:
    """One session a file; `path` is a file or a directory of `*.json`, taken in name order.

    Think times are kept (and divided by `speedup`). Sessions have no common clock, so `window` applies inside
    each and every arrival is 0. Raises UsageError naming the file and the request.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: no *.json trace in this directory")
    decoder = msgspec.json.Decoder(_File)
    for file in files:
        try:
            trace = decoder.decode(file.read_bytes())
        except OSError as error:
            raise missing(file, error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{file}: not a WEKA trace: {error}") from None
        walk = _Walk(stream, trace, file)
        walk.chain(trace.requests, (), 0.0, "")
        if walk.turns:
            yield Draft(tuple(walk.turns))


@dataclass(slots=True)
class _Walk:
    stream: Trace
    trace: _File
    file: Path
    turns: list[Turn] = field(default_factory=list)

    def chain(self, items: list[_Item], before: tuple[int, ...], lead_s: float, label: str) -> tuple[int, ...]:
        """Append one agent's requests in order; returns the turns that a successor must wait for.

        `lead_s` is the pause between the turns in `before` and the agent's first request.
        """
        parent, joined = before, list[int]()
        last: _Item | None = None
        free_at = 0.0  # recorded end of what the next request waits for
        for number, item in enumerate(items):
            if not label and not self._in_window(item):
                continue
            gap = lead_s if last is None else max(0.0, item.t - free_at)
            if item.type == "subagent":
                start = lead_s if last is None else max(0.0, item.t - _end(last))
                ends = self.chain(item.requests, parent, start, f"{label}{number}.")
                joined += [turn for turn in ends if turn not in parent]
                free_at = max(free_at, _end(item))
                continue
            pause = gap if last is None else _pause(item, last, gap)
            parent, joined = (self._add(item, (*parent, *joined), pause, f"{label}{number}"),), []
            free_at, last = _end(item), item
        return (*parent, *joined)

    def _in_window(self, item: _Item) -> bool:
        begin, end = self.stream.window_ns
        return begin <= item.t * NS_PER_S < end

    def _add(self, item: _Item, after: tuple[int, ...], pause_s: float, label: str) -> int:
        where = f"{self.file}: request {label}"
        if item.tokens_in is None:
            raise UsageError(f"{where}: no input length (key in)")
        own = f"{self.stream.name}/{self.file.stem}/"
        segments = block_segments(
            item.hash_ids, item.tokens_in, self.stream.block_tokens or self.trace.block_size, where,
            prefix=own if self.trace.hash_id_scope == "local" else f"{self.stream.name}/",
            tail=f"{own}t{label}", scale=self.stream.length_scale,
        )
        self.turns.append(Turn(
            Prompt(segments, n_tokens=sum(segment.n_tokens for segment in segments)),
            scaled(max(1, item.out), self.stream.output_scale),
            after=after,
            think_ns=round(pause_s * NS_PER_S / self.stream.speedup) if after else 0,
            label="subagent" if "." in label else "agent",
        ))
        return len(self.turns) - 1


def _end(item: _Item) -> float:
    """Recorded end of a request, or of a sub-agent with all its requests (their times may count from the
    sub-agent's start or from the session's)."""
    if item.type != "subagent":
        return item.t + (item.api_time or 0.0)
    if item.duration_ms is not None:
        return item.t + item.duration_ms / 1000
    ends = [_end(nested) + (item.t if nested.t < item.t else 0.0) for nested in item.requests]
    return max(ends, default=item.t)


def _pause(item: _Item, last: _Item, gap_s: float) -> float:
    """Seconds from the recorded end of what came before to this request.

    A think_time counts from the last end that the recorder *knew*: where the turn before has no api_time, or
    sub-agents ran in between, it contains their run time, which the replay spends by itself; `gap_s` does not.
    """
    if item.think_time is None:
        return gap_s
    return item.think_time if last.api_time is not None and item.think_time <= gap_s + 1.0 else min(
        item.think_time, gap_s)
