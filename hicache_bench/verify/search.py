"""The arithmetic of calibration, without a server: thresholds by bisection, and the grid that lengths betray."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hicache_bench.errors import Inconclusive

CONFIRMATIONS = 2
"""How often a threshold and the number below it must be seen to behave as such."""


async def threshold(evicts: Callable[[int], Awaitable[bool]], guess: int, limit: int) -> int | None:
    """The smallest n in 1..`limit` for which `evicts(n)`, found from `guess` outwards; None when none does.

    n - 1 and n are both seen `CONFIRMATIONS` times. Raises Inconclusive when a number answers both ways.
    """
    seen: dict[int, list[bool]] = {}

    async def ask(n: int) -> bool:
        seen.setdefault(n, []).append(await evicts(n))
        if len(set(seen[n])) > 1:
            raise Inconclusive(f"the threshold is not stable: with {n} peers the prompt once stayed and once left; "
                               "other traffic, or pages that are still held")
        return seen[n][-1]

    low, high = await _bracket(ask, min(max(guess, 1), limit), limit)
    if high is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if await ask(middle) else (middle, high)
    for n in (high, low):
        while n > 0 and len(seen.get(n, [])) < CONFIRMATIONS:
            if await ask(n) != (n == high):
                raise Inconclusive(f"the threshold is not stable around {high} peers")
    return high


async def _bracket(ask: Callable[[int], Awaitable[bool]], guess: int, limit: int) -> tuple[int, int | None]:
    """(an n that stays, an n that evicts), by steps that double away from the guess. 0 peers evict nothing."""
    step = 1
    if await ask(guess):
        high = guess
        while (low := max(high - step, 0)) > 0 and await ask(low):
            high, step = low, 2 * step
        return low, high
    low = guess
    while low < limit:
        high = min(low + step, limit)
        if await ask(high):
            return low, high
        low, step = high, 2 * step
    return low, None


@dataclass(frozen=True, slots=True)
class Grid:
    """Cached tokens of a resident prompt of L tokens are floor((L - 1) / tokens) * tokens with rule `L-1`, or
    floor(L / tokens) * tokens with rule `L`. SGLang's is `L-1` (schedule_batch.py `_compute_max_prefix_len`)."""

    tokens: int
    rule: Literal["L-1", "L"]


def fit_grid(matches: Sequence[tuple[int, int]]) -> Grid | None:
    """The coarsest grid that explains every (prompt tokens, cached tokens); None when none does.

    One length cannot tell grids apart: 3,200 tokens give 3,072 on a grid of 128, of 256 and of 1,024.
    """
    common = math.gcd(*(match for _, match in matches)) if matches else 0
    rules: tuple[tuple[Literal["L-1", "L"], int], ...] = (("L-1", 1), ("L", 0))
    for rule, less in rules:
        for tokens in sorted(_divisors(common), reverse=True):
            if all(match == (length - less) // tokens * tokens for length, match in matches):
                return Grid(tokens, rule)
    return None


def probe_lengths(page: int, pages: int) -> list[int]:
    """Prompt lengths around `pages` pages that tell the page, multiples of it up to 16, and both rules apart."""
    counts = [pages - back for back in (1, 2, 4, 9, 17) if pages - back >= 2]
    return sorted({pages * page, pages * page + 1, pages * page + page // 2 + 1, *(n * page + 1 for n in counts)})


def _divisors(number: int) -> set[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0] if number else []
    return {*small, *(number // n for n in small)}
