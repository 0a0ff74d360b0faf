"""Faults that the simulated server shows on demand, so that a suite can prove that it would notice them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hicache_bench.cachesim.costs import Costs, replace_costs
from hicache_bench.cachesim.request import TierTokens
from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.units import parse_duration_ns

KINDS = {
    "stall": "a stream pauses once (stall=2s@0.1)",
    "cut": "the connection is closed in the middle of an answer",
    "http-500": "a request is answered with status 500",
    "lost-details": "the tier split is left out of an answer",
    "wrong-text": "another text after pages were restored from host or storage",
    "lost-storage": "the storage tier has lost its pages when a request comes",
    "slow-storage": "storage reads and writes take so many times as long (slow-storage=10)",
    "clear-without-effect": "clearing the storage tier answers 200 and clears nothing",
    "salts-leak": "cache_salt and extra_key do not separate tenants",
}
"""Name → what happens. `NAME[=VALUE][@SHARE]`; the share of requests (default all) is drawn from a seed."""

_PATTERN = re.compile(r"(?P<name>[a-z0-9-]+)(=(?P<value>[^@]+))?(@(?P<share>[0-9.]+))?")
_WHOLE = ("slow-storage", "clear-without-effect", "salts-leak")
_SEED = 20


@dataclass(slots=True)
class Faults:
    """The faults in force. Draws are seeded: the same sequence of requests meets the same faults."""

    shares: dict[str, float] = field(default_factory=dict)
    stall_ns: int = 0
    storage_slowdown: float = 1.0
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(_SEED))

    @property
    def clear_without_effect(self) -> bool:
        return "clear-without-effect" in self.shares

    @property
    def salts_leak(self) -> bool:
        return "salts-leak" in self.shares

    def stall_s(self) -> float:
        """How long this stream pauses, in seconds; 0 for most."""
        return self.stall_ns / NS_PER_S if self._drawn("stall") else 0.0

    def cut(self) -> bool:
        return self._drawn("cut")

    def error_500(self) -> bool:
        return self._drawn("http-500")

    def lost_details(self) -> bool:
        return self._drawn("lost-details")

    def spoil(self, output_ids: list[int], tiers: TierTokens) -> None:
        """Change an answer whose prompt was restored from below the device, where that fault is in force."""
        if tiers.cached > tiers.device and self._drawn("wrong-text"):
            output_ids[:] = output_ids[1:] + output_ids[:1]

    def lost_storage(self) -> bool:
        return self._drawn("lost-storage")

    def slowed(self, costs: Costs) -> Costs:
        """The costs with a slower storage tier."""
        factor = self.storage_slowdown
        if factor == 1.0:
            return costs
        # Bandwidths of 0 are infinite, and stay so.
        return replace_costs(
            costs,
            storage_read_gb_per_s=costs.storage_read_gb_per_s / factor,
            storage_write_gb_per_s=costs.storage_write_gb_per_s / factor,
            storage_op_us=costs.storage_op_us * factor,
            storage_page_us=costs.storage_page_us * factor,
        )

    def _drawn(self, name: str) -> bool:
        share = self.shares.get(name, 0.0)
        return share > 0 and (share >= 1 or float(self._rng.random()) < share)


def parse_faults(texts: Iterable[str]) -> Faults:
    """`["stall=2s@0.1", "wrong-text"]` → `Faults`; UsageError naming what is allowed for anything else."""
    found = Faults()
    for text in texts:
        match = _PATTERN.fullmatch(text)
        name = match["name"] if match else ""
        if match is None or name not in KINDS:
            raise UsageError(f"fault {text!r}: write NAME[=VALUE][@SHARE] with one of {', '.join(KINDS)}")
        found.shares[name] = _share(text, name, match["share"])
        _value(found, text, name, match["value"])
    return found


def _share(text: str, name: str, given: str | None) -> float:
    if given is None:
        return 1.0
    if name in _WHOLE:
        raise UsageError(f"fault {text!r}: {name} holds for every request; leave out the share")
    try:
        share = float(given)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(f"fault {text!r}: the share is above 0 and at most 1")
    return share


def _value(found: Faults, text: str, name: str, given: str | None) -> None:
    if name == "stall":
        found.stall_ns = parse_duration_ns(given or "1s")
    elif name == "slow-storage":
        try:
            found.storage_slowdown = float(given or "10")
        except ValueError:
            found.storage_slowdown = 0.0
        if not 1 <= found.storage_slowdown <= 1e6:
            raise UsageError(f"fault {text!r}: slow-storage is a factor from 1 to 1e6")
    elif given is not None:
        raise UsageError(f"fault {text!r}: {name} takes no value")
