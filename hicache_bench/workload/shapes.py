"""Made-up streams: from a stream's table and a number of sessions to the sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hicache_bench.pacing import generator
from hicache_bench.records import Prompt, Segment, Turn
from hicache_bench.workload.lengths import draw_lengths, draw_pauses_ns
from hicache_bench.workload.streams import MultiTurn, SharedPrefix, Unique


class Draft(NamedTuple):
    """A session before it has its place in the plan."""

    turns: tuple[Turn, ...]
    affinity: str = ""
    arrival_ns: int = 0
    """When the trace has it start (from the start of its window, at recorded speed)."""


def shared_prefix(stream: SharedPrefix, n: int, first: int, seed: int) -> Iterator[Draft]:
    """`n` single requests, numbered from `first`; each group's prefix keeps its length for the whole run."""
    draw = _drawer(stream.name, seed, first)
    once = generator(seed, f"{stream.name}/prefix_tokens")
    lengths = draw_lengths(stream.prefix_tokens, stream.groups, once).tolist()
    prefixes = [Segment(f"{stream.name}/g{group}", tokens) for group, tokens in enumerate(lengths)]
    groups = draw("group").choice(stream.groups, size=n, p=popularity(stream))
    if stream.order == "grouped":
        groups = np.sort(groups)
    suffixes = draw_lengths(stream.suffix_tokens, n, draw("suffix_tokens"))
    outputs = draw_lengths(stream.output_tokens, n, draw("output_tokens"))
    rows = zip(groups.tolist(), suffixes.tolist(), outputs.tolist(), strict=True)
    for index, (group, size, output) in enumerate(rows, start=first):
        prefix = prefixes[group]
        prompt = Prompt((prefix, Segment(f"{stream.name}/s{index}", size)), n_tokens=prefix.n_tokens + size)
        yield Draft((Turn(prompt, output),), affinity=prefix.key)


def popularity(stream: SharedPrefix) -> NDArray[np.float64]:
    """The probability of each group, most popular first; sums to 1."""
    alpha = stream.zipf_alpha if stream.popularity == "zipf" else 0.0
    weights = np.power(np.arange(1, stream.groups + 1, dtype=np.float64), -alpha)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def unique(stream: Unique, n: int, first: int, seed: int) -> Iterator[Draft]:
    """`n` requests that share nothing with anything."""
    draw = _drawer(stream.name, seed, first)
    prompts = draw_lengths(stream.prompt_tokens, n, draw("prompt_tokens"))
    outputs = draw_lengths(stream.output_tokens, n, draw("output_tokens"))
    rows = zip(prompts.tolist(), outputs.tolist(), strict=True)
    for index, (tokens, output) in enumerate(rows, start=first):
        yield Draft((Turn(Prompt((Segment(f"{stream.name}/u{index}", tokens),), n_tokens=tokens), output),))


def multi_turn(stream: MultiTurn, n: int, first: int, seed: int) -> Iterator[Draft]:
    """`n` conversations."""
    draw = _drawer(stream.name, seed, first)
    turns = draw_lengths(stream.turns, n, draw("turns"))
    total = int(turns.sum())
    firsts = draw_lengths(stream.first_tokens, n, draw("first_tokens")).tolist()
    nexts = draw_lengths(stream.turn_tokens, total, draw("turn_tokens")).tolist()
    outputs = draw_lengths(stream.output_tokens, total, draw("output_tokens")).tolist()
    thinks = draw_pauses_ns(stream.think, total, draw("think")).tolist()
    offset = 0
    for index, count in enumerate(turns.tolist()):
        span = slice(offset, offset + count)
        sizes = [firsts[index], *nexts[span][1:]]
        yield Draft(_conversation(stream, first + index, sizes, outputs[span], thinks[span]))
        offset += count


def _conversation(
    stream: MultiTurn, session: int, sizes: list[int], outputs: list[int], thinks: list[int]
) -> tuple[Turn, ...]:
    live = stream.history == "live"
    context: list[Segment] = []
    if stream.system_tokens:
        context.append(Segment(f"{stream.name}/system", stream.system_tokens))
    turns: list[Turn] = []
    for index, (size, output, think) in enumerate(zip(sizes, outputs, thinks, strict=True)):
        said = Segment(f"{stream.name}/m{session}.{index}", size)
        context.append(said)
        segments = (said,) if live and index else tuple(context)
        turns.append(Turn(
            Prompt(segments, n_tokens=sum(segment.n_tokens for segment in segments)),
            output,
            after=(index - 1,) if index else (),
            think_ns=think if index else 0,
            live=live and index > 0,
            label=f"turn{index}",
        ))
        context.append(Segment(f"{stream.name}/a{session}.{index}", output))
    return tuple(turns)


def _drawer(name: str, seed: int, first: int) -> Callable[[str], np.random.Generator]:
    """One generator a purpose; `first` keeps later batches of a stream apart from earlier ones."""
    batch = f"/{first}" if first else ""
    return lambda purpose: generator(seed, f"{name}/{purpose}{batch}")
