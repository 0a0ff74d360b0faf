"""A model profile: the server it was taken on, the prompt it speaks of, and its figures with their origin."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from hicache_bench.cachesim.config import C128, CacheConfig, Mamba, Swa
from hicache_bench.errors import UsageError
from hicache_bench.workload.decode import convert, need, read_toml

How = Literal["measured", "computed"]

DEFAULT_SWA_RATIO = 0.8
"""SGLang's own --swa-full-tokens-ratio (server_args.py)."""
DEFAULT_MAMBA_STATES = 64


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number and where it comes from. `server` is a fingerprint (see `records.ServerInfo`) or a name."""

    value: int
    how: How
    date: str = ""
    server: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        need(self.value >= 0, "value", self.value, "0 or more")


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server the figures hold for, in the names of SGLang's flags. None: not part of this model.

    A sliding window brings a pool of its own (`swa_full_tokens_ratio` of the device pool), recurrent states a
    grid of checkpoints, the C128 sidecar groups of 128 * `c128_page_size` tokens.
    """

    page_size: int = 128
    max_total_tokens: int = 65536
    hicache_ratio: float = 2.0
    chunked_prefill_size: int | None = None
    swa_window: int | None = None
    swa_full_tokens_ratio: float | None = None
    mamba_chunk: int | None = None
    mamba_track_interval: int | None = None
    max_mamba_cache_size: int | None = None
    c128_page_size: int | None = None

    def __post_init__(self) -> None:
        need(self.page_size >= 1, "page_size", self.page_size, "1 or more")
        need(self.max_total_tokens >= self.page_size, "max_total_tokens", self.max_total_tokens, "a page or more")
        need(0 < self.hicache_ratio < 1e6, "hicache_ratio", self.hicache_ratio, "above 0")

    @property
    def components(self) -> tuple[str, ...]:
        """FULL, and what else the radix tree keeps for this model (mem_cache/registry.py)."""
        more = (("SWA", self.swa_full_tokens_ratio), ("MAMBA", self.mamba_chunk), ("C128", self.c128_page_size))
        return ("FULL", *(name for name, size in more if size is not None))

    @property
    def device_pages(self) -> int:
        return self.max_total_tokens // self.page_size

    def cache(self, *, hicache: bool = True, storage: bool = True) -> CacheConfig:
        """The same server in the cache model; storage is read completely before a request is admitted. Raises
        UsageError for sizes that do not fit together."""
        return CacheConfig(
            page_size=self.page_size, device_tokens=self.max_total_tokens, host_ratio=self.hicache_ratio,
            hicache=hicache, storage=storage and hicache, prefetch_policy="wait_complete",
            chunked_prefill_size=self.chunked_prefill_size,
            swa=None if self.swa_window is None else Swa(
                self.swa_window, self.swa_full_tokens_ratio or DEFAULT_SWA_RATIO),
            mamba=None if self.mamba_chunk is None else Mamba(
                self.max_mamba_cache_size or DEFAULT_MAMBA_STATES, self.mamba_chunk, self.mamba_track_interval or 256),
            c128=None if self.c128_page_size is None else C128(self.c128_page_size),
        )


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was learned of prompts of `prompt_tokens` tokens.

    `match_tokens`: cached tokens that a resident prompt reports. `resident_pages`: device pages a peer keeps;
    they can be more than match (the last token never matches, facts 0.1). `prime_requests`: requests until the
    first answer from the device, that one included. `commit_lag`: requests after the first that still miss.
    `evict_peers` push a primed prompt off the device, `stay_peers` do not; both have a margin where there is
    room for one, `first_evicting_peers` is the threshold itself. `host_peers` push it off the host, too.
    """

    match_tokens: Figure
    prime_requests: Figure
    stay_peers: Figure
    evict_peers: Figure
    commit_lag: Figure | None = None
    resident_pages: Figure | None = None
    align_tokens: Figure | None = None
    first_evicting_peers: Figure | None = None
    host_peers: Figure | None = None
    settle_ms: Figure | None = None

    def __post_init__(self) -> None:
        need(self.prime_requests.value >= 1, "prime_requests", self.prime_requests.value, "1 or more")
        need(self.stay_peers.value < self.evict_peers.value, "evict_peers", self.evict_peers.value,
             f"more than stay_peers ({self.stay_peers.value})")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model on one size of server. Every figure in `figures` is for prompts of `prompt_tokens`."""

    name: str
    prompt_tokens: int
    server: Sizes
    figures: Figures
    description: str = ""
    output_tokens: int = 16

    def __post_init__(self) -> None:
        need(self.prompt_tokens >= 2, "prompt_tokens", self.prompt_tokens, "2 or more")
        need(self.output_tokens >= 1, "output_tokens", self.output_tokens, "1 or more")
        need(self.figures.match_tokens.value < self.prompt_tokens, "prompt_tokens", self.prompt_tokens,
             "more than figures.match_tokens: the last token of a prompt is always recomputed")


def shipped_profiles() -> dict[str, Path]:
    """Name → data file of the profiles that come with the package."""
    folder = Path(str(resources.files(__package__)))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_profile(text: str | Path) -> Profile:
    """The profile of that name, or in that file (anything with a slash or ending in `.toml`).

    Raises UsageError naming file, key and what is allowed.
    """
    shipped = shipped_profiles()
    path = Path(text)
    if str(text) in shipped:
        path = shipped[str(text)]
    elif path.suffix != ".toml" and len(path.parts) < 2:
        raise UsageError(f"no profile {str(text)!r}; shipped are {', '.join(shipped)}, or give a .toml file "
                         "(hicache-bench calibrate --write FILE makes one)")
    return parse_profile(read_toml(path), str(path))


def parse_profile(tables: Mapping[str, Any], where: str) -> Profile:
    """A profile from decoded TOML; `where` begins every message of the UsageError."""
    return convert(tables, Profile, where)


def dump_profile(profile: Profile, comment: str = "") -> str:
    """The profile as TOML text that `load_profile` reads back equal."""
    plain = msgspec.to_builtins(profile)
    server, figures = plain.pop("server"), plain.pop("figures")
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{key} = {_toml(value)}" for key, value in plain.items()]
    lines += ["", "[server]", *(f"{key} = {_toml(value)}" for key, value in server.items() if value is not None)]
    lines += ["", "[figures]"]
    for name, figure in figures.items():
        if figure is not None:
            inner = ", ".join(f"{key} = {_toml(value)}" for key, value in figure.items() if value != "")
            lines.append(f"{name} = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def _toml(value: str | int | float) -> str:
    # A JSON string is a TOML basic string as well, but for the delete character.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
