"""One run: capture, plan, reset, prime, warm up, measure, settle, and a run directory that tells it all."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from hicache_bench.analysis.tiers import reconcile
from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.errors import BenchError, MeasureError
from hicache_bench.load.driver import Driver, DriveResult
from hicache_bench.load.health import LoopWatch
from hicache_bench.load.limits import ensure_descriptors
from hicache_bench.load.requests import RequestBuilder
from hicache_bench.load.turns import Counts
from hicache_bench.manifest import RunOptions, plan_meta, run_meta
from hicache_bench.phases import Lab, ResetResult, prime, reset
from hicache_bench.preflight import capacity_of, connections, describe, look, request_options, token_space
from hicache_bench.recording import Progress, Recorder
from hicache_bench.records import ClosedLoop, Plan, Prompt, Segment, ServerInfo, Session, Stop, Turn
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.scrape import Sample
from hicache_bench.sglang.scraper import Scraper, SettleResult, settle
from hicache_bench.store.reader import read_attempts
from hicache_bench.store.rundir import RunDir
from hicache_bench.target import ENGINE, Target
from hicache_bench.workload.footprint import footprint
from hicache_bench.workload.plan import build_plan, prime_prompts
from hicache_bench.workload.spec import WorkloadSpec
from hicache_bench.workload.tokens import TokenSpace, check_unique

PROGRESS_S = 0.5
WARMUP_OUTPUT_TOKENS = 4


class Observer(Protocol):
    """Who watches a run: the terminal, or nobody."""

    def note(self, text: str) -> None: ...

    def phase(self, name: str) -> None: ...

    def tick(self, counts: Counts, progress: Progress, elapsed_ns: int, plan: Plan) -> None: ...


@dataclass(slots=True)
class Interrupt:
    """Passes Ctrl-C on to whatever is running: once drains, twice stops."""

    driver: Driver | None = None
    requested: bool = False

    def signal(self) -> None:
        self.requested = True
        if self.driver is not None:
            self.driver.interrupt()


Measure = Callable[["Run", Any, RequestBuilder, str], Awaitable[DriveResult]]
"""(run, open transport, builder, start state) → what was driven: the measured phase, which Locust has its own of."""


@dataclass(slots=True)
class Run:
    """One run under way: everything its phases share."""

    spec: WorkloadSpec
    spec_path: Path
    target: Target
    options: RunOptions
    observer: Observer
    interrupt: Interrupt
    rundir: RunDir
    meta: dict[str, Any]
    nonce: str
    info: ServerInfo
    plan: Plan
    recorder: Recorder
    scraper: Scraper
    measure: Measure
    warnings: list[dict[str, str]] = field(default_factory=list)

    def warn(self, code: str, text: str, advice: str = "") -> None:
        self.warnings.append({"code": code, "text": text, "advice": advice})
        self.observer.note(f"warning: {text}" + (f" ({advice})" if advice else ""))

    def save(self, **fields: Any) -> None:
        """Rewrite run.json: it is true at every moment, so a killed run can be read."""
        self.meta.update(fields, warnings=self.warnings)
        self.rundir.write_json("run.json", self.meta)


async def run(spec: WorkloadSpec, spec_path: Path, target: Target, options: RunOptions, observer: Observer,
              interrupt: Interrupt, measure: Measure | None = None) -> Path:
    """Measure once; returns the run directory. Raises BenchError after sealing what there is."""
    if not options.prime:
        spec = msgspec.structs.replace(spec, prime=msgspec.structs.replace(spec.prime, enabled=False))
    # Reused prompts depend on the seed alone, as everything else of the plan does.
    fresh = f"seed{spec.seed}" if spec.prompts.reuse else secrets.token_hex(4)
    nonce = fresh if options.nonce is None else options.nonce
    async with target.connect() as admin:
        observer.phase("capture")
        info = await look(target, admin)
        observer.note(describe(info))
        space = await token_space(spec, target, admin, nonce)
        notes: list[str] = []
        plan = build_plan(spec, base_dir=spec_path.parent, page_size=info.page_size or 1,
                          capacity=capacity_of(info), notes=notes)
        for note in notes:
            observer.note(note)
        unique = check_unique(space, plan, info.page_size or 1)
        print_ = footprint(plan, info.page_size or 1)
        observer.note(f"plan {plan.digest}: {plan.n_requests:,} requests in {len(plan.sessions):,} sessions, "
                      f"{unique:,} unique prompts checked")
        ensure_descriptors(connections(plan))
        rundir = RunDir.create(options.results, spec.name)
        # Everything from here on leaves a readable run directory, whatever happens.
        recorder = Recorder(rundir.path)
        scraper = Scraper(admin.session, target.sources(), target.metrics_interval_ns,
                          recorder.put_scrape, lambda text: observer.note(f"warning: {text}"))
        this = Run(spec, spec_path, target, options, observer, interrupt, rundir,
                   run_meta(spec, plan, options, info, nonce, target), nonce, info, plan, recorder, scraper,
                   measure or _measure)
        this.save()
        rundir.write_text("workload.toml", await asyncio.to_thread(spec_path.read_text, encoding="utf-8"))
        rundir.write_json("plan.json", plan_meta(spec, plan, print_, unique))
        rundir.write_json("server.json", msgspec.to_builtins(dataclasses.asdict(info)))
        try:
            await _phases(this, admin, space)
        except BaseException as error:
            this.save(status="aborted" if isinstance(error, asyncio.CancelledError) else "failed",
                      error=f"{type(error).__name__}: {error}", ended_wall_ns=time.time_ns())
            await asyncio.to_thread(recorder.close_quietly)
            raise
    return rundir.path


async def _phases(this: Run, admin: Admin, space: TokenSpace) -> None:
    options = request_options(this.spec, this.plan, this.info, this.target, this.options.extra_body)
    builder = RequestBuilder(space, options)
    transport = this.target.transport(connections(this.plan))
    await asyncio.to_thread(this.recorder.wait_ready)
    await transport.open()
    try:
        before = (await this.scraper.scrape_all()).get(ENGINE)
        if before is None:
            this.warn("no_metrics", "the server gives no /metrics: tiers cannot be reconciled, settling is blind",
                      "start SGLang with --enable-metrics")
        lab = Lab(admin, transport, builder, this.recorder.put, this.info, this.nonce,
                  this.rundir.append_event, lambda: _settle(this))
        start_state = await _prepare(this, lab)
        result = await this.measure(this, transport, builder, start_state)
        this.observer.phase("settle")
        await _settle(this)
        after = (await this.scraper.scrape_all()).get(ENGINE)
        try:
            this.rundir.write_json("server_after.json",
                                   msgspec.to_builtins(dataclasses.asdict(await look(this.target, admin))))
        except BenchError as error:
            this.warn("server_after", f"the server could not be captured after the run: {error}")
    finally:
        await transport.close()
    progress = await asyncio.to_thread(this.recorder.close)
    _finish(this, result, progress, before, after)


async def _prepare(this: Run, lab: Lab) -> str:
    """Reset, prime, warm up; returns the start state."""
    spec, found = this.spec, ResetResult(None, None, None, 0, "not asked for")
    if this.options.reset and (spec.reset.device_host or spec.reset.storage):
        this.observer.phase("reset")
        try:
            found = await reset(lab, flush=True, clear_storage=_clears_storage(this),
                                storage_absent=this.info.hicache is not None and this.info.storage_backend is None)
        except MeasureError as error:
            if spec.reset.on_failure == "error":
                raise MeasureError(f"reset failed: {error}; set reset.on_failure = \"warn\" or use --no-reset "
                                   "to measure the cache as found") from error
            this.warn("reset_failed", f"reset failed: {error}", "the cache is as found")
        if found.verified is not True:
            if spec.reset.on_failure == "error":
                raise MeasureError(f"the reset is not proven: {found.reason}; set reset.on_failure = \"warn\" or use "
                                   "--no-reset to measure the cache as found")
            this.warn("reset_unverified", f"the reset is not proven: {found.reason}")
    state = found.state
    primed: dict[str, int] | None = None
    if spec.prime.enabled and (prompts := prime_prompts(this.plan, spec)):
        this.observer.phase("prime")
        primed = await prime(lab, prompts, spec.prime.max_attempts)
        if primed["resident"] < primed["prompts"]:
            this.warn("prime", f"{primed['resident']} of {primed['prompts']} prefixes were resident after priming")
        state = f"primed_{state}"
    this.save(start_state=state, reset=dataclasses.asdict(found), prime=primed)
    if spec.warmup.requests:
        this.observer.phase("warm-up")
        await _warmup(this, lab)
    if primed is not None or spec.warmup.requests:
        await _settle(this)
    this.observer.note(f"start state: {state}")
    return state


def _clears_storage(this: Run) -> bool:
    return this.spec.reset.storage and this.info.storage_backend is not None


async def _warmup(this: Run, lab: Lab) -> None:
    """Requests of their own content: they warm the server's kernels, never the measured prompts' cache."""
    lengths = [turn.prompt_tokens or 64 for session in this.plan.sessions[:64] for turn in session.turns] or [64]
    length = max(2, sorted(lengths)[len(lengths) // 2])
    sessions = tuple(
        Session(i, "-", "warmup", (Turn(_fresh(f"warmup/{i}", length), WARMUP_OUTPUT_TOKENS, prompt_tokens=length),))
        for i in range(this.spec.warmup.requests)
    )
    concurrency = this.plan.loop.concurrency if isinstance(this.plan.loop, ClosedLoop) else 8
    plan = Plan("warmup", this.plan.seed, sessions, np.zeros(len(sessions), dtype=np.int64),
                ClosedLoop(min(concurrency, len(sessions))), Stop(), "")
    await Driver(lab.transport, lab.builder, lab.sink, phase="warmup", rid_prefix=this.nonce).run(plan)


def _fresh(key: str, tokens: int) -> Prompt:
    return Prompt((Segment(key, tokens),), n_tokens=tokens)


async def _measure(this: Run, transport: Any, builder: RequestBuilder, start_state: str) -> DriveResult:
    this.observer.phase("build")
    driver = Driver(transport, builder, this.recorder.put, rid_prefix=this.nonce,
                    drain_ns=this.spec.drain.deadline)
    driver.prebuild(this.plan)
    this.interrupt.driver = driver
    if this.interrupt.requested:
        driver.interrupt()
    watch = LoopWatch()
    this.observer.phase("measure")
    this.scraper.start()
    watch.start()
    started = now_ns()
    this.rundir.append_event("measure_start", start_state=start_state)
    ticker = asyncio.get_running_loop().create_task(_tick(this, driver, started))
    try:
        result = await driver.run(this.plan)
    finally:
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        health = await watch.stop()
        await this.scraper.stop()
        this.interrupt.driver = None
    this.rundir.append_event("measure_end", interrupted=result.interrupted, cancelled=result.cancelled)
    this.save(
        measure_start_ns=result.start_ns,
        issue_end_ns=result.issue_end_ns,
        measure_end_ns=result.end_ns,
        client={**dataclasses.asdict(health), "recorder_backlog_bytes": this.recorder.max_backlog_bytes},
    )
    this.recorder.check()
    return result


async def _tick(this: Run, driver: Driver, started_ns: int) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        this.observer.tick(driver.counts, this.recorder.progress, now_ns() - started_ns, this.plan)
        try:
            this.recorder.check()
        except BenchError:
            driver.interrupt()  # nothing more can be stored: stop issuing, the error is raised after the drain
            return


async def _settle(this: Run) -> SettleResult:
    source = this.scraper.sources[0]
    result = await settle(lambda: this.scraper.scrape_one(source), this.spec.settle.deadline / NS_PER_S,
                          this.spec.settle.quiet / NS_PER_S)
    this.rundir.append_event("settle", settled=result.settled, waited_ns=result.waited_ns, reason=result.reason)
    return result


def _finish(this: Run, result: DriveResult, progress: Progress, before: list[Sample] | None,
            after: list[Sample] | None) -> None:
    checks = reconcile(read_attempts(this.rundir.path), before, after)
    for check in checks:
        if check.verdict == "differs":
            this.warn("tiers_differ", f"{check.tier}: the answers say {check.client_tokens} tokens, the server's "
                      f"counters {check.server_tokens}", "other traffic, or lost answers")
    if result.planned_out:
        this.warn("planned_out", "the plan ran out of sessions before the asked duration", "raise --requests")
    issued = [outcome for outcome in progress.outcomes if progress.outcomes[outcome]]
    measured = result.counts.issued + result.counts.shed
    failed = measured > 0 and not any(outcome in ("ok", "empty") for outcome in issued)
    status = "aborted" if result.interrupted else "complete"
    this.save(status=status, ended_wall_ns=time.time_ns(), reconcile=[dataclasses.asdict(check) for check in checks],
              issued=result.counts.issued, shed=result.counts.shed, cancelled=result.cancelled,
              every_request_failed=failed)
