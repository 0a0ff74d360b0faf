"""`verify`: the cases that apply to a server, played one after the other, and their common verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_bench.clock import now_ns
from hicache_bench.errors import EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_MEASURE, EXIT_OK, MeasureError, UsageError
from hicache_bench.profiles.profile import Profile
from hicache_bench.target import Target
from hicache_bench.verify.bed import Bed, Bench, Note, open_bed
from hicache_bench.verify.conditions import Setting, why_not
from hicache_bench.verify.ground import AUTO, ground_of, probe_tokens, profile_for
from hicache_bench.verify.judge import Finding, Verdict
from hicache_bench.verify.player import Player, Stage, check_prompts
from hicache_bench.verify.report import show_line, write_verdict
from hicache_bench.verify.steps import Scenario, load_scenarios

RESTART_DEADLINE_S = 600.0
MAX_SERVERS = 2
HICACHE_OFF = "HiCache is off: no tier but the device could be proven (--enable-hierarchical-cache)"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to play and where to write. `cases` empty: every shipped one that applies.

    `restart_command` is a shell command that stops and starts the server; without it nothing is restarted.
    """

    cases: tuple[str, ...] = ()
    profile: str = AUTO
    results: Path = Path("results")
    argv: Sequence[str] = ()
    restart_command: str | None = None
    junit: Path | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: its verdict and findings; for a skipped one the reason."""

    name: str
    title: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    elapsed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The whole suite. `requests_ns` is the time in which at least one request was under way. `unproven`: why the
    suite as a whole proves nothing, though cases passed."""

    cases: tuple[CaseResult, ...]
    profile: Profile
    origin: str
    server: str
    run_dir: Path
    elapsed_ns: int
    requests_ns: int
    named: bool = False
    unproven: str = ""

    def count(self, verdict: Verdict) -> int:
        return sum(case.verdict == verdict for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 when a case failed, else 3 when one could not be played, else 4 when one is inconclusive, none
        passed, one that was asked for by name was skipped, or the suite proves nothing; 0 otherwise."""
        if self.count("fail"):
            return EXIT_FAILED
        if self.count("error"):
            return EXIT_MEASURE
        skipped = self.named and self.count("skipped")
        open_ = self.count("inconclusive") or skipped or self.unproven or not self.count("pass")
        return EXIT_INCONCLUSIVE if open_ else EXIT_OK


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """The worst of a case's findings; a case without any judges nothing and is inconclusive."""
    verdicts = {finding.verdict for finding in findings}
    order: tuple[Verdict, ...] = ("fail", "error", "inconclusive")
    return next((verdict for verdict in order if verdict in verdicts), "pass" if verdicts else "inconclusive")


async def verify(targets: Sequence[Target], options: VerifyOptions, note: Note = print) -> Result:
    """Play the cases against one server (or two on one store). Writes a run directory with `verdict.json`.

    Raises UsageError for unknown cases or a profile of another size of server, MeasureError when a server
    does not answer at all.
    """
    if not 1 <= len(targets) <= MAX_SERVERS:
        raise UsageError(f"{len(targets)} servers were given; one, or two that share a store")
    scenarios = load_scenarios(options.cases)
    async with open_bed(targets, options.results, "verify", note, options.argv) as bed:
        profile = profile_for(options.profile, bed.benches[0].info)
        bed.save(profile=profile.name, verify_cases=[scenario.name for scenario in scenarios])
        for bench in bed.benches:
            bench.lab.probe_tokens = probe_tokens(profile)
        _describe(bed, profile)
        started, cases = now_ns(), list[CaseResult]()
        bed.rundir.append_event("measure_start")
        bed.save(measure_start_ns=started)
        for scenario in scenarios:
            case = await _case(bed, scenario, profile, options)
            cases.append(case)
            _tell(case, note)
        bed.rundir.append_event("measure_end")
        bed.save(measure_end_ns=now_ns())
        first = bed.benches[0].info
        result = Result(tuple(cases), profile, first.origin, f"{first.model} {first.version} {first.fingerprint}",
                        bed.rundir.path, now_ns() - started, bed.requests_ns(), bool(options.cases),
                        HICACHE_OFF if first.hicache is False and not options.cases else "")
        write_verdict(bed.rundir, result, options.junit)
    return result


async def _case(bed: Bed, scenario: Scenario, profile: Profile, options: VerifyOptions) -> CaseResult:
    setting = Setting(tuple(bench.info for bench in bed.benches), profile, options.restart_command is not None,
                      bed.benches[0].target.admin_url not in (None, bed.benches[0].target.url))
    if reason := why_not(scenario, setting):
        return CaseResult(scenario.name, scenario.title, "skipped", reason=reason)
    stages = [Stage(bench.lab, bench.space, bench.settle, ground_of(profile, bench.info)) for bench in bed.benches]
    ranks = range(bed.benches[0].info.dp_size or 1) if scenario.per_rank else (None,)
    started, findings = time.monotonic_ns(), list[Finding]()
    for rank in ranks:
        player = Player(scenario, stages, profile, _restarter(bed.benches[0], options.restart_command), rank)
        check_prompts(player, stages[0].space)
        if len(stages) > 1:
            check_prompts(player, stages[1].space)
        bed.rundir.append_event("case", case=scenario.name, rank=rank)
        findings += await player.play()
    return CaseResult(scenario.name, scenario.title, verdict_of(findings), tuple(findings),
                      elapsed_ns=time.monotonic_ns() - started)


def _restarter(bench: Bench, command: str | None) -> Callable[[], Awaitable[None]] | None:
    if command is None:
        return None

    async def restart() -> None:
        process = await asyncio.create_subprocess_shell(command, stdin=asyncio.subprocess.DEVNULL)
        try:
            code = await asyncio.wait_for(process.wait(), RESTART_DEADLINE_S)
        except asyncio.TimeoutError:
            process.kill()
            raise MeasureError(f"the restart command did not end within {RESTART_DEADLINE_S:g} s") from None
        if code:
            raise MeasureError(f"the restart command ended with {code}")
        await bench.admin.wait_ready(RESTART_DEADLINE_S)
        bench.lab.event("restart")

    return restart


def _describe(bed: Bed, profile: Profile) -> None:
    for bench in bed.benches:
        info = bench.info
        label = "SIMULATED server" if info.origin == "simulated" else "server"
        tier = f"storage {info.storage_backend}" if info.storage_backend else "no storage"
        policy = info.flags.get("hicache_write_policy", "unknown write policy")
        bed.note(f"{label} {bench.target.url}: {info.model}, SGLang {info.version}, page {info.page_size}, device "
                 f"{info.device_tokens}, host {info.host_tokens} tokens, {tier}, {policy}, "
                 f"HiCache {'on' if info.hicache else 'off' if info.hicache is False else 'unknown'}")
    figures = profile.figures
    bed.note(f"profile {profile.name}: prompts of {profile.prompt_tokens} tokens match {figures.match_tokens.value}, "
             f"{figures.stay_peers.value} peers stay, {figures.evict_peers.value} evict "
             f"({figures.evict_peers.how}); components {' + '.join(profile.server.components)}")


def _tell(case: CaseResult, note: Note) -> None:
    if case.verdict == "skipped":
        note(f"skip  {case.name}: {case.reason}")
    for finding in case.findings:
        note(show_line(finding))
