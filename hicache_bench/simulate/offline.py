"""One simulated run: prime, play the plan, and a run directory that reads like a measured one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hicache_bench.cachesim.engine import Engine
from hicache_bench.clock import NS_PER_S, ClockAnchor
from hicache_bench.load.turns import Counts
from hicache_bench.manifest import RunOptions, plan_meta, run_meta
from hicache_bench.recording import Progress
from hicache_bench.records import Attempt, ClosedLoop, Plan, Prompt, Session, Stop, Turn
from hicache_bench.simulate.drive import Driven, Ended, PlanDriver
from hicache_bench.simulate.rows import RowMaker
from hicache_bench.simulate.setup import Setup
from hicache_bench.store.rundir import RunDir
from hicache_bench.store.writer import PartWriter
from hicache_bench.target import Target
from hicache_bench.workload.footprint import footprint
from hicache_bench.workload.plan import build_plan, prime_prompts
from hicache_bench.workload.spec import WorkloadSpec

ORIGIN_NS = NS_PER_S
"""Virtual zero of a run: not 0, so that an instant is never mistaken for an absent one."""
URL = "offline simulation"

_ZERO = np.zeros(1, dtype=np.int64)
Note = Callable[[str], None]
Tick = Callable[[Counts, Progress, int, Plan], None]


@dataclass(slots=True)
class Played:
    """What came of playing a plan. `rows` is filled only when nobody took them as they came."""

    engine: Engine
    driven: Driven
    primed: dict[str, int] | None
    rows: list[Attempt] = field(default_factory=list)


def play(setup: Setup, spec: WorkloadSpec, plan: Plan, *, prime: bool = True,
         take: Callable[[Attempt], None] | None = None, tick: Callable[[Counts, int], None] | None = None) -> Played:
    """Prime as the workload asks, settle, then play the plan on a cold cache. Same arguments, same rows.

    `take` gets every row as its request ends; without it they are gathered.
    """
    engine, gathered = Engine(setup.config, setup.costs, setup.schedule), list[Attempt]()
    put = gathered.append if take is None else take
    maker = RowMaker("measure", spec.load.api, spec.load.stream, setup.config.storage)
    prompts = prime_prompts(plan, spec) if prime and spec.prime.enabled else []
    at_ns, primed = _prime(engine, prompts, spec, dataclasses.replace(maker, phase="prime"), put) if prompts \
        else (ORIGIN_NS, None)
    driver = PlanDriver(engine, plan, lambda ended: put(maker.row(ended)), timeout_ns=spec.load.timeout or None,
                        drain_ns=spec.drain.deadline, tick=tick)
    return Played(engine, driver.run(at_ns), primed, gathered)


def _prime(engine: Engine, prompts: list[Prompt], spec: WorkloadSpec, maker: RowMaker,
           put: Callable[[Attempt], None]) -> tuple[int, dict[str, int]]:
    """Each prompt alone, one after the other, until it is resident or tried often enough; then all copies settle.

    Returns the instant at which everything is at rest, and the counts of `phases.prime`.
    """
    counts = {"prompts": len(prompts), "resident": 0, "unknown": 0, "requests": 0}
    page, at_ns = engine.config.page_size, ORIGIN_NS
    for number, prompt in enumerate(prompts):
        before = 0
        for attempt in range(max(1, spec.prime.max_attempts)):
            turn = Turn(prompt, 1, label=f"prime {number}", prompt_tokens=prompt.n_tokens)
            session = Session(number * 1000 + attempt, "-", "prime", (turn,))
            ended: list[Ended] = []
            alone = Plan("prime", 0, (session,), _ZERO, ClosedLoop(1), Stop(requests=1), "")
            PlanDriver(engine, alone, ended.append).run(at_ns)
            engine.run()
            at_ns = engine.now_ns
            put(maker.row(ended[0]))
            counts["requests"] += 1
            result = ended[0].result
            cached = (result.cached_tokens if result is not None else None) or 0
            length = result.job.n_tokens if result is not None else 0
            # The last token is always computed, then the page floor applies; coarser grids repeat themselves.
            if cached >= (length - 1) // page * page or 0 < cached == before:
                counts["resident"] += 1
                break
            before = cached
    return at_ns, counts


def simulate(setup: Setup, spec: WorkloadSpec, spec_path: Path, options: RunOptions, note: Note,
             tick: Tick | None = None) -> Path:
    """`hicache-bench sim run`: plan, play, and seal a run directory with `origin` simulated; returns its path.

    Raises UsageError for a workload or sizes that cannot be, StoreError when the directory cannot be written.
    """
    if not options.prime:
        spec = msgspec.structs.replace(spec, prime=msgspec.structs.replace(spec.prime, enabled=False))
    plan = plan_for(setup, spec, spec_path.parent, note)
    info, anchor = setup.info(), ClockAnchor.read()
    rundir = RunDir.create(options.results, spec.name)
    meta = run_meta(spec, plan, options, info, f"seed{spec.seed}", Target(URL))
    meta |= {"reset": None, "clocks": {"monotonic_ns": ORIGIN_NS, "wall_ns": anchor.wall_ns}, "warnings": []}
    rundir.write_json("run.json", meta)
    rundir.write_text("workload.toml", spec_path.read_text(encoding="utf-8"))
    rundir.write_json("plan.json", plan_meta(spec, plan, footprint(plan, setup.config.page_size), 0))
    rundir.write_json("server.json", msgspec.to_builtins(dataclasses.asdict(info)))
    writer, progress = PartWriter(rundir.path), Progress()
    batch: list[Attempt] = []

    def take(row: Attempt) -> None:
        progress.add(row)
        batch.append(row)
        if len(batch) >= 1000:
            writer.add(batch)
            batch.clear()

    try:
        played = play(setup, spec, plan, prime=options.prime, take=take,
                      tick=None if tick is None else lambda counts, ns: tick(counts, progress, ns, plan))
        writer.add(batch)
        writer.close()
    except BaseException as error:
        status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
        rundir.write_json("run.json", meta | {"status": status, "error": f"{type(error).__name__}: {error}",
                                              "ended_wall_ns": time.time_ns()})
        raise
    _seal(rundir, meta, played, progress)
    return rundir.path


def plan_for(setup: Setup, spec: WorkloadSpec, base_dir: Path, note: Note) -> Plan:
    """The plan for the sizes of `setup`; what was cut or assumed is said to `note`."""
    notes: list[str] = []
    plan = build_plan(spec, base_dir=base_dir, page_size=setup.config.page_size, capacity=setup.capacity, notes=notes)
    if any(turn.prompt.text is not None or turn.prompt.messages for s in plan.sessions for turn in s.turns):
        notes.append("literal prompts: one token is taken for four characters, since there is no tokenizer here")
    for text in notes:
        note(text)
    note(f"plan {plan.digest}: {plan.n_requests:,} requests in {len(plan.sessions):,} sessions, simulated with costs "
         f"{setup.costs.name} ({setup.costs.source})")
    return plan


def _seal(rundir: RunDir, meta: dict[str, Any], played: Played, progress: Progress) -> None:
    driven, counts = played.driven, played.driven.counts
    state = "cold" if played.primed is None else "primed_cold"
    rundir.append_event("measure_start", start_state=state, virtual_ns=driven.start_ns)
    rundir.append_event("measure_end", interrupted=False, cancelled=driven.cancelled, virtual_ns=driven.end_ns)
    warnings = []
    if driven.planned_out:
        warnings.append({"code": "planned_out", "text": "the plan ran out of sessions before the asked duration",
                         "advice": "raise --requests"})
    good = any(progress.outcomes.get(outcome) for outcome in ("ok", "empty"))
    rundir.write_json("run.json", meta | {
        "status": "complete", "start_state": state, "prime": played.primed, "warnings": warnings,
        "measure_start_ns": driven.start_ns, "issue_end_ns": driven.issue_end_ns, "measure_end_ns": driven.end_ns,
        "issued": counts.issued, "shed": counts.shed, "cancelled": driven.cancelled,
        "every_request_failed": counts.issued + counts.shed > 0 and not good, "ended_wall_ns": time.time_ns()})
