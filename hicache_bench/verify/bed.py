"""The test bed: servers, one recorder and one run directory, open for as long as something is sent."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hicache_bench.clock import NS_PER_S, ClockAnchor
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.manifest import server_meta
from hicache_bench.phases import Lab
from hicache_bench.preflight import look
from hicache_bench.recording import Recorder
from hicache_bench.records import Attempt, Exchange, ServerInfo, WireRequest
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.scrape import Sample
from hicache_bench.sglang.scraper import Scraper, settle
from hicache_bench.store.rundir import RunDir
from hicache_bench.target import Target, english_space
from hicache_bench.workload.tokens import TokenSpace

QUIET_S = 0.3
"""How long the copy counters must rest. A flush waits for idleness besides, storage backups included."""
RESET_QUIET_S = 0.05
"""Before a reset's flush: that one waits for itself, and its probe tells the rest."""
REQUEST_TIMEOUT_NS = 300 * NS_PER_S
SETTLE_S = 30.0

Note = Callable[[str], None]


@dataclass(slots=True)
class Bench:
    """One server of the bed."""

    target: Target
    admin: Admin
    info: ServerInfo
    lab: Lab
    space: TokenSpace
    scraper: Scraper

    async def samples(self) -> list[Sample] | None:
        """One scrape of the server's own metrics, None without them."""
        return await self.scraper.scrape_one(self.scraper.sources[0])

    async def settle(self, deadline_s: float = SETTLE_S, quiet_s: float = QUIET_S) -> None:
        found = await settle(self.samples, deadline_s, quiet_s, poll_s=0.05)
        self.lab.event("settle", settled=found.settled, waited_ns=found.waited_ns, reason=found.reason)


@dataclass(slots=True)
class Bed:
    """Everything that is open while cases are played. `asked` holds (sent, done) of every request."""

    benches: list[Bench]
    rundir: RunDir
    recorder: Recorder
    meta: dict[str, Any]
    note: Note
    asked: list[tuple[int, int]] = field(default_factory=list)

    def save(self, **fields: Any) -> None:
        self.meta.update(fields)
        self.rundir.write_json("run.json", self.meta)

    def requests_ns(self) -> int:
        """Nanoseconds in which at least one request was under way."""
        busy, until = 0, 0
        for sent, done in sorted(self.asked):
            busy += max(done - max(sent, until), 0)
            until = max(until, done)
        return busy


@asynccontextmanager
async def open_bed(targets: Sequence[Target], results: Path, name: str, note: Note,
                   argv: Sequence[str] = ()) -> AsyncIterator[Bed]:
    """Capture every server, make a run directory, and seal it at the end whatever happens.

    The same nonce serves all servers, so that they see the same prompts. Raises MeasureError when a server
    does not answer.
    """
    nonce = secrets.token_hex(4)
    async with AsyncExitStack() as stack:
        admins = [await stack.enter_async_context(target.connect()) for target in targets]
        infos = [await look(target, admin) for target, admin in zip(targets, admins, strict=True)]
        spaces = [await english_space(target, admin, nonce) for target, admin in zip(targets, admins, strict=True)]
        rundir = RunDir.create(results, name)
        recorder = Recorder(rundir.path)
        bed = Bed([], rundir, recorder, _meta(name, targets, infos, nonce, argv), note)
        bed.save()
        rundir.write_json("server.json", msgspec.to_builtins(dataclasses.asdict(infos[0])))
        try:
            await asyncio.to_thread(recorder.wait_ready)
            for target, admin, info, space in zip(targets, admins, infos, spaces, strict=True):
                bed.benches.append(await _bench(bed, stack, target, admin, info, space, nonce))
            yield bed
        except BaseException as error:
            bed.save(status="aborted" if isinstance(error, asyncio.CancelledError | KeyboardInterrupt) else "failed",
                     error=f"{type(error).__name__}: {error}", ended_wall_ns=time.time_ns())
            await asyncio.to_thread(recorder.close_quietly)
            raise
        progress = await asyncio.to_thread(recorder.close)
        bed.save(status="complete", ended_wall_ns=time.time_ns(), issued=progress.rows, shed=0, cancelled=0)


async def _bench(bed: Bed, stack: AsyncExitStack, target: Target, admin: Admin, info: ServerInfo, space: TokenSpace,
                 nonce: str) -> Bench:
    options = RequestOptions(model=target.model or info.model or "default",
                             incremental=bool(info.incremental_streaming), timeout_ns=REQUEST_TIMEOUT_NS,
                             dp_size=info.dp_size or 1)
    transport = target.transport()
    await transport.open()
    stack.push_async_callback(transport.close)
    scraper = Scraper(admin.session, target.sources()[:1], NS_PER_S, bed.recorder.put_scrape, bed.note)

    def sink(row: Attempt, request: WireRequest, exchange: Exchange) -> None:
        if exchange.sent_ns is not None and exchange.done_ns is not None:
            bed.asked.append((exchange.sent_ns, exchange.done_ns))
        bed.recorder.put(row, request, exchange)

    async def rest() -> None:
        await made.settle(quiet_s=RESET_QUIET_S)

    # Each server counts its own requests; the server's number keeps their ids apart.
    own = nonce if not bed.benches else f"{nonce}-{len(bed.benches) + 1}"
    lab = Lab(admin, transport, RequestBuilder(space, options), sink, info, own, bed.rundir.append_event, rest)
    made = Bench(target, admin, info, lab, space, scraper)
    return made


def _meta(name: str, targets: Sequence[Target], infos: Sequence[ServerInfo], nonce: str,
          argv: Sequence[str]) -> dict[str, Any]:
    anchor, info = ClockAnchor.read(), infos[0]
    return {
        "status": "running", "pid": os.getpid(), "name": name, "workload": name, "plan_digest": None, "loop": "closed",
        "origin": info.origin, "start_state": "as_found", "seed": 0, "nonce": nonce, "api": "generate",
        "url": targets[0].url, "admin_url": targets[0].admin_url,
        "more_urls": [target.url for target in targets[1:]],
        "argv": list(argv), "tags": {}, "warnings": [], "python": sys.version.split()[0],
        "clocks": {"monotonic_ns": anchor.monotonic_ns, "wall_ns": anchor.wall_ns},
        "started_wall_ns": anchor.wall_ns,
        "server": server_meta(info),
    }
