"""The engine's own notes on a job, and the log of decode steps that all running jobs share."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush

from hicache_bench.cachesim.jobs import Job, Result
from hicache_bench.cachesim.node import PageKey
from hicache_bench.cachesim.request import CacheRequest
from hicache_bench.cachesim.transfers import Transfer

_PRUNE_FROM = 1 << 16


class Stint:
    """A job in the engine. `base_out` tokens were generated before its last retraction and are part of the prompt
    now; while it decodes, its token number n comes with decode step `first_step` + n."""

    __slots__ = ("base_out", "blocked_ns", "computed", "done_step", "first_step", "gone", "job", "n_tokens", "passes",
                 "phase", "read", "request", "result", "seen_ns", "tries", "wake_ns")

    def __init__(self, job: Job, result: Result) -> None:
        self.job = job
        self.result = result
        self.request: CacheRequest | None = None
        self.n_tokens = job.n_tokens
        self.base_out = 0
        self.computed = 0
        self.phase = "inbox"  # inbox, waiting, prefill, running, over
        self.gone = False
        self.first_step = 0
        self.done_step = 0
        self.read: Transfer | None = None
        self.passes = 0
        self.tries = 0
        self.seen_ns = 0
        self.blocked_ns: int | None = None
        self.wake_ns: int | None = None

    @property
    def left(self) -> int:
        """Tokens this stint still has to generate."""
        return self.result.output_tokens - self.base_out

    def keys(self, page_size: int) -> Sequence[PageKey]:
        """Keys of the full pages of prompt and what was generated before a retraction."""
        if not self.base_out:
            return self.job.keys
        if self.job.output_keys is not None:
            return self.job.output_keys(self.base_out + 1)
        known = list(self.job.keys[: self.job.n_tokens // page_size])
        return [*known, *(("output", self.job.id, page) for page in range(len(known), self.n_tokens // page_size))]


class StepLog:
    """Instants of all decode steps, numbered from 0 for ever; those that nobody needs any more are dropped."""

    __slots__ = ("_dropped", "_instants")

    def __init__(self) -> None:
        self._instants = array("q")
        self._dropped = 0

    @property
    def n_steps(self) -> int:
        return self._dropped + len(self._instants)

    def extend(self, instants: Sequence[int]) -> None:
        self._instants.extend(instants)

    def between(self, first: int, end: int) -> array[int]:
        return self._instants[first - self._dropped : end - self._dropped]

    def prune(self, oldest: int) -> None:
        """Forget the steps before `oldest`, when that is worth the copy."""
        spare = oldest - self._dropped
        if spare > _PRUNE_FROM:
            del self._instants[:spare]
            self._dropped = oldest


class Due:
    """Who has to be looked at before decode step n: buckets by step, the nearest one known at once."""

    __slots__ = ("_buckets", "_heap")

    def __init__(self) -> None:
        self._buckets: dict[int, list[Stint]] = {}
        self._heap: list[int] = []

    def add(self, step: int, stint: Stint) -> None:
        bucket = self._buckets.get(step)
        if bucket is None:
            self._buckets[step] = [stint]
            heappush(self._heap, step)
        else:
            bucket.append(stint)

    @property
    def next_step(self) -> int | None:
        return self._heap[0] if self._heap else None

    def peek(self, step: int) -> list[Stint]:
        """Everybody due at or before `step`, who stays due."""
        return [stint for due, bucket in self._buckets.items() if due <= step for stint in bucket]

    def take(self, step: int) -> list[Stint]:
        """Everybody due at or before `step`."""
        found: list[Stint] = []
        while self._heap and self._heap[0] <= step:
            found += self._buckets.pop(heappop(self._heap))
        return found
