"""What a run shows while it runs: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hicache_bench.bench import Observer
from hicache_bench.load.turns import Counts
from hicache_bench.recording import Progress
from hicache_bench.records import Plan
from hicache_bench.stats import percentile
from hicache_bench.units import format_ns, format_percent

PLAIN_EVERY_S = 10.0


def describe(counts: Counts, progress: Progress, elapsed_ns: int, plan: Plan) -> str:
    """One line: time, requests, failures, TTFT so far, hit ratio so far."""
    failed = sum(n for outcome, n in progress.outcomes.items() if outcome not in ("ok", "empty", "shed"))
    parts = [f"{elapsed_ns / 1e9:.0f}s", f"{counts.finished}/{plan.n_requests} requests",
             f"{counts.in_flight} in flight"]
    if counts.shed:
        parts.append(f"{counts.shed} shed")
    if failed:
        parts.append(f"{failed} failed")
    if progress.recent_ttft_ns:
        parts.append(f"ttft p50 {format_ns(percentile(progress.recent_ttft_ns, 50))}")
    if progress.prompt_tokens:
        parts.append(f"hit {format_percent(progress.cached_tokens / progress.prompt_tokens)}")
    if failed and progress.last_error:
        parts.append(progress.last_error[:80])
    return " · ".join(parts)


class Quiet:
    """Shows nothing."""

    def note(self, text: str) -> None: ...

    def phase(self, name: str) -> None: ...

    def tick(self, counts: Counts, progress: Progress, elapsed_ns: int, plan: Plan) -> None: ...


class Plain:
    """Lines on standard error, a progress line every 10 s: for logs and pipes."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def phase(self, name: str) -> None:
        self.note(f"[{name}]")

    def tick(self, counts: Counts, progress: Progress, elapsed_ns: int, plan: Plan) -> None:
        if time.monotonic() - self._told >= PLAIN_EVERY_S:
            self._told = time.monotonic()
            self.note(describe(counts, progress, elapsed_ns, plan))


class Live:
    """A spinner line that is rewritten, notes above it."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False)
        self.status = self.console.status("starting")

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def phase(self, name: str) -> None:
        self.status.update(name)

    def tick(self, counts: Counts, progress: Progress, elapsed_ns: int, plan: Plan) -> None:
        self.status.update(describe(counts, progress, elapsed_ns, plan).replace("[", "\\["))


@contextmanager
def make_observer(*, quiet: bool) -> Iterator[Observer]:
    """The right observer for where standard error goes."""
    if quiet:
        yield Quiet()
    elif sys.stderr.isatty():
        live = Live()
        with live.status:
            yield live
    else:
        yield Plain()
