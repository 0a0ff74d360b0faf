"""What the engine is asked to do and what it says about it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hicache_bench.cachesim.node import PageKey
from hicache_bench.cachesim.request import TierTokens

EventKind = Literal["admitted", "first_token", "token", "finished", "aborted", "rejected"]


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `keys` are the prompt's full pages, `output_tokens` what will be generated (0: prefill only).

    `output_keys(n)` gives the keys of all full pages of the prompt and the first n - 1 output tokens; None: pages
    that hold output are unique to this job.
    """

    id: Hashable
    keys: Sequence[PageKey]
    n_tokens: int
    output_tokens: int
    priority: int = 0
    match_limit_tokens: int | None = None
    output_keys: Callable[[int], Sequence[PageKey]] | None = None


@dataclass(slots=True)
class Result:
    """What has become of a job so far; instants are virtual nanoseconds, None: not yet, or never.

    `output_tokens` is the job's after the pool's limit, `n_out` how many there are now. `instants` holds those of
    the tokens once the job has left the engine. `error` says why it was rejected or aborted.
    """

    job: Job
    arrival_ns: int
    output_tokens: int
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finished_ns: int | None = None
    tiers: TierTokens | None = None
    prefetch_wait_ns: int | None = None
    retractions: int = 0
    n_out: int = 0
    error: str | None = None
    instants: array[int] = field(default_factory=lambda: array("q"))

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were not computed; None before the admission."""
        return None if self.tiers is None else self.tiers.cached

    def token_ns(self) -> list[int]:
        """Instants of the tokens; complete when the job is over."""
        return self.instants.tolist()


class Event(NamedTuple):
    """Something happened to a job. `token` comes only from a stepwise engine."""

    at_ns: int
    kind: EventKind
    job_id: Hashable
    result: Result


@dataclass(slots=True)
class Totals:
    """Counters since the engine was made; tokens unless named otherwise."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    rejected: int = 0
    retractions: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    storage_tokens: int = 0
    generated_tokens: int = 0
    prefill_batches: int = 0
    decode_steps: int = 0
    busy_ns: int = 0
