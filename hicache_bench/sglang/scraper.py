"""Poll metrics pages during a run, and wait until the server's background copying has come to rest."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from hicache_bench.clock import NS_PER_S, now_ns, sleep_until
from hicache_bench.errors import ServerError, UsageError
from hicache_bench.sglang.scrape import Sample, scrape
from hicache_bench.sglang.urls import join, normalize_base

OnSamples = Callable[[int, int, str, list[Sample]], None]
"""Called with (scrape instant monotonic ns, wall ns, source name, samples)."""

COPY_COUNTERS = (
    "sglang:hicache_backup_tokens_total", "sglang:backuped_tokens_total", "sglang:prefetched_tokens_total",
    "sglang:load_back_tokens_total", "sglang:evicted_tokens_total",
)
"""Device→host, host→storage, storage→host, host→device, and evictions (which write back under write_back)."""


@dataclass(frozen=True, slots=True)
class Source:
    """One page to poll; `headers` belong to this page alone, a key never goes to another exporter."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_source(text: str, default_name: str) -> Source:
    """`"gpu=http://h:9400/metrics"` or `"h:9400"` → a source; a URL without a path means `/metrics`."""
    name, equals, address = text.partition("=")
    if not equals or "/" in name or ":" in name:
        name, address = default_name, text
    if not name.strip():
        raise UsageError(f"metrics source {text!r} has an empty name; write it like gpu=http://host:9400/metrics")
    url = normalize_base(address)
    has_path = "/" in url.partition("://")[2]
    return Source(name.strip(), url if has_path else join(url, "/metrics"))


class Scraper:
    """Polls several sources, each in its own task, so that a slow one delays no other.

    A failing source is warned about once, counted in `failures` and polled on. An exception of `on_samples`
    ends the poller of that source and is raised by `stop`.
    """

    def __init__(self, session: aiohttp.ClientSession, sources: Sequence[Source], interval_ns: int,
                 on_samples: OnSamples, on_warning: Callable[[str], None], timeout_s: float = 10.0) -> None:
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise UsageError(f"metrics sources need different names; got {' '.join(names)}")
        self.sources = tuple(sources)
        self.scrapes = dict.fromkeys(names, 0)
        self.failures = dict.fromkeys(names, 0)
        self._session = session
        self._interval_ns = interval_ns
        self._on_samples = on_samples
        self._on_warning = on_warning
        self._timeout_s = timeout_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin polling; the first scrape is due at once."""
        self._tasks = [asyncio.create_task(self._poll(source)) for source in self.sources]

    async def stop(self) -> None:
        """End polling; raises what a callback raised."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def scrape_all(self) -> dict[str, list[Sample] | None]:
        """Scrape every source once, now (before and after a run); None for a source that failed."""
        results = await asyncio.gather(*(self.scrape_one(source) for source in self.sources))
        return {source.name: samples for source, samples in zip(self.sources, results, strict=True)}

    async def scrape_one(self, source: Source) -> list[Sample] | None:
        """Scrape one source and hand its samples to the callback; None when it failed."""
        try:
            samples = await scrape(self._session, source.url, source.headers, self._timeout_s)
        except ServerError as error:
            self.failures[source.name] += 1
            if self.failures[source.name] == 1:
                self._on_warning(f"metrics source {source.name}: {error}")
            return None
        self.scrapes[source.name] += 1
        self._on_samples(now_ns(), time.time_ns(), source.name, samples)
        return samples

    async def _poll(self, source: Source) -> None:
        due_ns = now_ns()
        while True:
            await self.scrape_one(source)
            # instants that passed during a slow scrape are skipped, not made up for
            due_ns += self._interval_ns * max(1, -(-(now_ns() - due_ns) // self._interval_ns))
            await sleep_until(due_ns)


@dataclass(frozen=True, slots=True)
class SettleResult:
    """Whether the copy counters came to rest; `settled` is None when the server shows none of them."""

    settled: bool | None
    waited_ns: int
    reason: str
    last: Mapping[str, float]


async def settle(get_samples: Callable[[], Awaitable[Sequence[Sample] | None]], deadline_s: float,
                 quiet_s: float, poll_s: float = 0.25) -> SettleResult:
    """Wait until `COPY_COUNTERS` have not moved for `quiet_s` seconds, at most `deadline_s` seconds.

    `get_samples` scrapes once; it returns None or raises `ServerError` when it cannot. Only scrapes that
    succeed count as evidence of rest; without any for `quiet_s` seconds from the start, the answer is None.
    """
    started_ns = now_ns()
    deadline_ns = started_ns + round(deadline_s * NS_PER_S)
    last: dict[str, float] = {}
    since_ns = started_ns
    reason = "no metrics"
    while True:
        try:
            samples = await get_samples()
            reason = "no metrics" if samples is None else "the server shows no cache copy counters"
        except ServerError as error:
            samples, reason = None, str(error)
        seen = _copy_counters(samples or ())
        at_ns = now_ns()
        if seen and seen != last:
            last, since_ns = seen, at_ns
        elif seen and at_ns - since_ns >= quiet_s * NS_PER_S:
            return SettleResult(True, at_ns - started_ns, f"counters at rest for {quiet_s:g} s", last)
        elif not last and at_ns - started_ns >= quiet_s * NS_PER_S:
            return SettleResult(None, at_ns - started_ns, reason, {})
        if at_ns >= deadline_ns:
            still = f"counters still moving after {deadline_s:g} s" if seen else reason
            return SettleResult(False if last else None, at_ns - started_ns, still, last)
        await sleep_until(min(at_ns + round(poll_s * NS_PER_S), deadline_ns))


def _copy_counters(samples: Sequence[Sample]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in samples:
        if sample.name in COPY_COUNTERS and math.isfinite(sample.value):
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums
