"""Prompts that are too long: refuse them, or cut or leave out recorded ones as the stream says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hicache_bench.errors import UsageError
from hicache_bench.records import Prompt, Segment, Turn
from hicache_bench.workload.streams import StreamSpec, Trace


@dataclass(slots=True)
class Fitted:
    """How many turns were changed, for the notes of the plan."""

    truncated: int = 0
    dropped: int = 0


def fit(stream: StreamSpec, turns: tuple[Turn, ...], most: int | None, counts: Fitted) -> tuple[Turn, ...]:
    """The turns that a server taking `most` prompt and output tokens a request can answer.

    A trace with `over = "truncate"` loses the end of long prompts (their shared beginnings stay); with
    `over = "drop"`, long turns and whatever waits for them. Raises UsageError for anything else too long.
    """
    limit = stream.max_prompt_tokens if isinstance(stream, Trace) else None
    over = stream.over if isinstance(stream, Trace) else "error"
    if most is None and limit is None:
        return turns
    sizes = context_sizes(turns)
    if all(_excess(size, turn, most, limit) <= 0 for size, turn in zip(sizes, turns, strict=True)):
        return turns
    if over == "truncate":
        return tuple(_truncated(turn, size or 0, most, limit, counts)
                     for turn, size in zip(turns, sizes, strict=True))
    if over == "drop":
        return _without(turns, [_excess(size, turn, most, limit) > 0
                                for size, turn in zip(sizes, turns, strict=True)], counts)
    raise UsageError(_complaint(stream, turns, sizes, most, limit))


def context_sizes(turns: Sequence[Turn]) -> list[int | None]:
    """Prompt tokens of each turn with its live history; None where only the server can count."""
    sizes: list[int | None] = []
    for turn in turns:
        own = turn.prompt.n_tokens
        if turn.live and own is not None:
            before = sizes[turn.after[0]]
            own = None if before is None else before + turns[turn.after[0]].output_tokens + own
        sizes.append(own)
    return sizes


def _excess(size: int | None, turn: Turn, most: int | None, limit: int | None) -> int:
    if size is None:
        return 0
    by_server = 0 if most is None else size + turn.output_tokens - most
    return max(by_server, 0 if limit is None else size - limit)


def _truncated(turn: Turn, size: int, most: int | None, limit: int | None, counts: Fitted) -> Turn:
    excess = _excess(size, turn, most, limit)
    if excess <= 0:
        return turn
    left = size - excess
    if left < 1:
        raise UsageError(f"an output of {turn.output_tokens} tokens leaves no room for a prompt in {most} tokens; "
                         "set output_scale below 1")
    counts.truncated += 1
    segments: list[Segment] = []
    for segment in turn.prompt.segments:
        take = min(left, segment.n_tokens)
        if take:
            segments.append(Segment(segment.key, take))
        left -= take
    return dataclasses.replace(turn, prompt=Prompt(tuple(segments), n_tokens=size - excess))


def _without(turns: tuple[Turn, ...], bad: list[bool], counts: Fitted) -> tuple[Turn, ...]:
    new_index: dict[int, int] = {}
    kept: list[Turn] = []
    for index, turn in enumerate(turns):
        if bad[index] or any(before not in new_index for before in turn.after):
            counts.dropped += 1
            continue
        new_index[index] = len(kept)
        after = tuple(new_index[before] for before in turn.after)
        kept.append(turn if after == turn.after else dataclasses.replace(turn, after=after))
    return tuple(kept)


def _complaint(stream: StreamSpec, turns: Sequence[Turn], sizes: Sequence[int | None], most: int | None,
               limit: int | None) -> str:
    excess, size, turn = max(
        ((_excess(size, turn, most, limit), size or 0, turn) for size, turn in zip(sizes, turns, strict=True)),
        key=lambda row: row[0],
    )
    asked = f"{size} prompt tokens" if limit is not None and size > limit else (
        f"{size} prompt + {turn.output_tokens} output tokens")
    allowed = f"max_prompt_tokens = {limit}" if limit is not None and size > limit else (
        f"the {most} that the server takes in one request")
    way = ('set over = "truncate" or "drop", or length_scale below 1' if isinstance(stream, Trace)
           else "make the stream's lengths smaller")
    return f"stream {stream.name}: a request of {asked} is {excess} over {allowed}; {way}"
