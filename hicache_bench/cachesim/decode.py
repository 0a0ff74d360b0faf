"""Decoding: all running requests advance together, many steps at a time while nothing can happen between them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import numpy as np

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.costs import Clockwork
from hicache_bench.cachesim.stint import Due, StepLog, Stint

_VECTOR_FROM = 24
_MOST_STEPS = 1 << 15
RETRACT_DECODE_STEPS = 20
"""Steps the rest must be able to go on for after a retraction (managers/schedule_batch.py RETRACT_DECODE_STEPS)."""


class Decoder:
    """The running requests. A round is a series of decode steps between two changes: a request ends, one needs a new
    page, or the caller cuts it because somebody else wants to be served."""

    def __init__(self, cache: HiCache, clockwork: Clockwork, *, stepwise: bool) -> None:
        self.running: dict[Stint, None] = {}
        self.log = StepLog()
        self.owed_tokens = 0
        self._cache = cache
        self._clockwork = clockwork
        self._stepwise = stepwise
        self._page_size = cache.config.page_size
        self._context = 0
        self._first_steps = 0
        self._ends: list[int] = []
        self._endings = Due()
        self._pages = Due()

    # ------------------------------------------------------------------ who runs

    def join(self, stint: Stint, now_ns: int) -> None:
        """A request whose prefill has just given its first token (of at least two)."""
        step, size = self.log.n_steps, self._page_size
        stint.phase = "running"
        stint.first_step = step
        stint.done_step = step + stint.left - 1
        self.running[stint] = None
        self.owed_tokens += stint.left
        self._first_steps += step
        self._context += stint.n_tokens
        self._endings.add(stint.done_step, stint)
        to_page = step + -stint.n_tokens % size
        if to_page < stint.done_step:
            self._pages.add(to_page, stint)

    def leave(self, stint: Stint) -> None:
        """Not running any more; its token instants are kept in its result."""
        log, result = self.log, stint.result
        step = log.n_steps
        del self.running[stint]
        stint.phase = "over"
        result.instants.extend(log.between(stint.first_step, step))
        result.n_out = self.n_out(stint)
        result.last_token_ns = result.instants[-1]
        self.owed_tokens -= stint.left
        self._first_steps -= stint.first_step
        self._context -= stint.n_tokens + step - stint.first_step
        oldest = next(iter(self.running)).first_step if self.running else step
        log.prune(oldest)

    def n_out(self, stint: Stint) -> int:
        """Tokens generated so far."""
        return stint.base_out + 1 + self.log.n_steps - stint.first_step

    def reserve_tokens(self, ratio: float) -> int:
        """Tokens set aside for those that run: a share of what they may still generate."""
        done = (self.log.n_steps + 1) * len(self.running) - self._first_steps
        return int((self.owed_tokens - done) * ratio)

    # ------------------------------------------------------------------ one round

    def make_room(self) -> list[Stint]:
        """Evict a page a running request, which is more than is needed: only those whose next token begins a page
        must have one (mem_cache/allocation.py, managers/schedule_batch.py check_decode_mem).

        Returns those who have to give way: fewest tokens generated first, longest prompt first (retract_decode); the
        last one never is.
        """
        victims: list[Stint] = []
        if self._cache.decode_room(len(self.running)):
            return victims
        while len(self.running) > 1 and not self._cache.decode_room(self._pages_needed()):
            victim = min(self.running, key=lambda s: (self.n_out(s), -s.job.n_tokens))
            victims.append(victim)
            self.leave(victim)
            assert victim.request is not None
            self._cache.abort(victim.request)
        return victims

    def _pages_needed(self) -> int:
        return sum(stint.phase == "running" for stint in self._pages.peek(self.log.n_steps))

    def take_pages(self) -> list[Stint]:
        """Give a page to those whose next token begins one; returns those for whom there is none."""
        step, size, failed = self.log.n_steps, self._page_size, []
        for stint in self._pages.take(step):
            if stint.phase != "running":
                continue
            assert stint.request is not None
            if not self._cache.grow(stint.request, stint.n_tokens + step - stint.first_step + 1):
                failed.append(stint)
            elif step + size < stint.done_step:
                self._pages.add(step + size, stint)
        return failed

    def begin(self, now_ns: int, until_ns: int | None) -> int:
        """Plan the steps up to the next change, or to the first that ends at or after `until_ns`; returns the end."""
        step = self.log.n_steps
        limit = min(self._endings.next_step or step + 1, self._pages.next_step or step + _MOST_STEPS)
        n_steps = 1 if self._stepwise else max(1, min(limit - step, _MOST_STEPS))
        self._ends = self._step_ends(now_ns, n_steps)
        if until_ns is not None:
            self.cut(until_ns)
        return self._ends[-1]

    def cut(self, at_ns: int) -> int:
        """End the round with the first step that ends at or after `at_ns`; returns the new end of the round."""
        keep = bisect_left(self._ends, at_ns) + 1
        del self._ends[keep:]
        return self._ends[-1]

    def end(self) -> tuple[int, list[Stint]]:
        """The round is over. Returns (steps made, requests that have all their tokens)."""
        made, self._ends = self._ends, []
        self.log.extend(made)
        self._context += len(self.running) * len(made)
        done = [stint for stint in self._endings.take(self.log.n_steps) if stint.phase == "running"]
        return len(made), done

    def _step_ends(self, now_ns: int, n_steps: int) -> list[int]:
        clock, n = self._clockwork, len(self.running)
        first = clock.step_base + n * clock.step_request + clock.step_context * self._context
        growth = clock.step_context * n
        if n_steps < _VECTOR_FROM:
            return list(accumulate((round(first + growth * i) for i in range(n_steps)), initial=now_ns))[1:]
        took = np.rint(first + growth * np.arange(n_steps)).astype(np.int64)
        ends: list[int] = (now_ns + np.cumsum(took)).tolist()
        return ends
