"""The `[[stream]]` tables of a workload file: one struct a kind.

Every kind has `name`, and `share` (of the sessions) or `count` (sessions). A stream that says neither has
share 1, but a trace or data set is then played whole.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from hicache_bench.errors import UsageError
from hicache_bench.units import parse_duration_ns
from hicache_bench.workload.decode import need
from hicache_bench.workload.lengths import MOST_TOKENS, Length, Pause, check_length, check_pause

MOST_COUNT = MOST_GROUPS = 10_000_000
MOST_FILL = 1_000_000
"""Beyond these a plan does not fit in memory; refused rather than drawn."""


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind",
                   tag="shared_prefix"):
    """Single requests: one of `groups` prefixes and a suffix of its own."""

    name: str
    share: float | None = None
    count: int | None = None
    groups: int
    prefix_tokens: Length
    suffix_tokens: Length
    output_tokens: Length
    popularity: Literal["uniform", "zipf"] = "uniform"
    zipf_alpha: float = 1.0
    order: Literal["interleaved", "grouped"] = "interleaved"

    def __post_init__(self) -> None:
        _check_head(self.name, self.share, self.count)
        need(1 <= self.groups <= MOST_GROUPS, "groups", self.groups, f"must be 1 to {MOST_GROUPS}")
        need(0 < self.zipf_alpha < math.inf, "zipf_alpha", self.zipf_alpha, "must be above 0 and finite")
        check_length("prefix_tokens", self.prefix_tokens)
        check_length("suffix_tokens", self.suffix_tokens)
        check_length("output_tokens", self.output_tokens)


class Unique(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind",
             tag="unique"):
    """Single requests that share nothing: pressure. `fill` sizes the stream by the server's capacity."""

    name: str
    share: float | None = None
    count: int | None = None
    fill: float | None = None
    of: Literal["device", "host"] = "device"
    prompt_tokens: Length
    output_tokens: Length

    def __post_init__(self) -> None:
        _check_head(self.name, self.share, self.count)
        if self.fill is not None:
            need(0 < self.fill <= MOST_FILL, "fill", self.fill, f"must be above 0, at most {MOST_FILL}")
            alone = self.count is None and self.share is None
            need(alone, "fill", self.fill, "stands instead of share and count")
        check_length("prompt_tokens", self.prompt_tokens)
        check_length("output_tokens", self.output_tokens)


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind",
                tag="multi_turn"):
    """Conversations. `history = "live"` puts the server's own answers into the next prompt; `"scripted"`
    puts made-up answers of the same length there, so that every run sends the same prompts."""

    name: str
    share: float | None = None
    count: int | None = None
    turns: Length
    first_tokens: Length
    turn_tokens: Length
    output_tokens: Length
    system_tokens: int = 0
    think: Pause = "0s"
    history: Literal["live", "scripted"] = "live"

    def __post_init__(self) -> None:
        _check_head(self.name, self.share, self.count)
        check_length("turns", self.turns)
        check_length("first_tokens", self.first_tokens)
        check_length("turn_tokens", self.turn_tokens)
        check_length("output_tokens", self.output_tokens)
        need(0 <= self.system_tokens <= MOST_TOKENS, "system_tokens", self.system_tokens,
             f"must be 0 to {MOST_TOKENS}")
        check_pause("think", self.think)


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind",
            tag="trace"):
    """Recorded requests; see `workload.trace` and `workload.weka` for the formats."""

    name: str
    share: float | None = None
    count: int | None = None
    format: Literal["mooncake", "weka", "azure_csv"]
    path: str
    speedup: float = 1.0
    window: tuple[str, str] | None = None
    max_requests: int | None = None
    length_scale: float = 1.0
    output_scale: float = 1.0
    max_prompt_tokens: int | None = None
    over: Literal["error", "truncate", "drop"] = "error"
    block_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_head(self.name, self.share, self.count)
        for key in ("speedup", "length_scale", "output_scale"):
            need(0 < getattr(self, key) < math.inf, key, getattr(self, key), "must be above 0 and finite")
        for key in ("max_requests", "max_prompt_tokens", "block_tokens"):
            value = getattr(self, key)
            need(value is None or value >= 1, key, value, "must be at least 1")
        _check_path(self.path)
        if self.window is not None:
            try:
                begin, end = self.window_ns
            except UsageError as error:
                raise ValueError(f"window = {list(self.window)!r}: {error}") from None
            need(end > begin, "window", list(self.window), "must end after it begins")

    @property
    def window_ns(self) -> tuple[int, int]:
        """[begin, end) on the trace's own clock, before the speed-up."""
        if self.window is None:
            return (0, 2**62)
        return (parse_duration_ns(self.window[0]), parse_duration_ns(self.window[1]))


class Dataset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind",
              tag="dataset"):
    """Literal prompts or conversations from a file. Their text is sent as it is, without the run nonce."""

    name: str
    share: float | None = None
    count: int | None = None
    path: str
    format: Literal["auto", "jsonl", "openai", "sharegpt"] = "auto"
    output_tokens: Length = 128
    max_requests: int | None = None
    loop: bool = False

    def __post_init__(self) -> None:
        _check_head(self.name, self.share, self.count)
        check_length("output_tokens", self.output_tokens)
        value = self.max_requests
        need(value is None or value >= 1, "max_requests", value, "must be at least 1")
        _check_path(self.path)


StreamSpec: TypeAlias = SharedPrefix | Unique | MultiTurn | Trace | Dataset


def kind_of(stream: StreamSpec) -> str:
    """The value of the stream's `kind` key."""
    return str(stream.__struct_config__.tag)


def _check_head(name: str, share: float | None, count: int | None) -> None:
    fine = name != "" and all(letter.isalnum() or letter in "-_." for letter in name)
    need(fine, "name", name, "must be made of letters, digits, - _ .")
    need(share is None or count is None, "share", share, "give share or count, not both")
    need(share is None or 0 < share < math.inf, "share", share, "must be above 0 and finite")
    need(count is None or 0 <= count <= MOST_COUNT, "count", count, f"must be 0 to {MOST_COUNT}")


def _check_path(path: str) -> None:
    need(path != "" and "\0" not in path, "path", path, "must name a file")
