"""Models as the cache sees them: TOML files beside this module, read by name."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hicache_bench.cachesim.config import C128, CacheConfig, Mamba, Swa
from hicache_bench.errors import UsageError

_FOLDER = Path(__file__).parent

PROFILES: tuple[str, ...] = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
"""Names `load_profile` knows."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model's cache layout and what a server with it has been seen to do.

    A prompt of `prompt_tokens` reports `cached_tokens` from request number `prime_requests` on; it stays on the
    device under `peers_stay` unrelated prompts of the same length with one new token each, and has left it after
    `peers_evict`. `origin` says which of these figures were measured and where.
    """

    name: str
    page_size: int
    device_tokens: int
    prompt_tokens: int
    prime_requests: int
    cached_tokens: int
    peers_stay: int
    peers_evict: int
    origin: str
    host_ratio: float = 2.0
    chunked_prefill_size: int | None = None
    swa: Swa | None = None
    mamba: Mamba | None = None
    c128: C128 | None = None

    def config(self, *, hicache: bool = True, storage: bool = True) -> CacheConfig:
        """The profile's cache; storage is read completely before a request is admitted."""
        return CacheConfig(page_size=self.page_size, device_tokens=self.device_tokens, host_ratio=self.host_ratio,
                           hicache=hicache, storage=storage and hicache, prefetch_policy="wait_complete",
                           chunked_prefill_size=self.chunked_prefill_size, swa=self.swa, mamba=self.mamba,
                           c128=self.c128)


def load_profile(name: str) -> Profile:
    """The profile called `name` (see PROFILES). Raises UsageError for another name or a broken file."""
    if name not in PROFILES:
        raise UsageError(f"no profile {name!r}; there are {', '.join(PROFILES)}")
    return parse_profile((_FOLDER / f"{name}.toml").read_bytes(), name)


def parse_profile(data: bytes, where: str) -> Profile:
    """A profile from TOML; `where` names its source in messages. Raises UsageError."""
    try:
        profile = msgspec.toml.decode(data, type=Profile)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"profile {where}: {error}") from error
    profile.config()
    return profile
