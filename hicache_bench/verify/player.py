"""Plays one case against one server or two: steps in, findings out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import BenchError, MeasureError, UsageError
from hicache_bench.load.requests import RequestBuilder
from hicache_bench.phases import Lab, reset
from hicache_bench.profiles.profile import Profile
from hicache_bench.records import ClosedLoop, Folded, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.verify.judge import Finding, Ground, Verdict, judge, shown
from hicache_bench.verify.steps import (
    Clear,
    Expect,
    Flush,
    Pressure,
    Prime,
    Repeat,
    Reset,
    Restart,
    Scenario,
    Send,
    Settle,
    Step,
    walk,
)
from hicache_bench.workload.tokens import TokenSpace, check_unique

SettleFor = Callable[[float], Awaitable[object]]
"""Wait until the copy counters rest, at most so many seconds."""


@dataclass(slots=True)
class Stage:
    """One server under test: its lab, the content of prompts, and how to wait for it."""

    lab: Lab
    space: TokenSpace
    settle: SettleFor
    ground: Ground


@dataclass(slots=True)
class Player:
    """The state of one case under way."""

    scenario: Scenario
    stages: Sequence[Stage]
    profile: Profile
    restart: Callable[[], Awaitable[None]] | None = None
    rank: int | None = None
    findings: list[Finding] = field(default_factory=list)
    answers: dict[str, Folded] = field(default_factory=dict)
    references: dict[str, Folded] = field(default_factory=dict)
    last: tuple[str, ...] = ()
    told: str = ""
    peers: int = 0
    trusted: bool = True
    ground: Ground | None = None

    async def play(self) -> list[Finding]:
        """All findings of the case. What stops it (a refused call, a failed request) is the last of them."""
        try:
            await self._steps(self.scenario.step)
        except UsageError:
            raise
        except BenchError as error:
            self.findings.append(Finding(self._name(), self.told, "error", reason=str(error)))
        except _Stop:
            pass
        return self.findings

    async def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            await _PLAY[type(step)](self, step)

    def _name(self) -> str:
        return self.scenario.name if self.rank is None else f"{self.scenario.name} rank {self.rank}"

    def _stage(self, server: int) -> Stage:
        if not 1 <= server <= len(self.stages):
            raise UsageError(f"case {self.scenario.name}: server = {server}, but {len(self.stages)} URL(s) were given")
        return self.stages[server - 1]

    def prompt(self, name: str, part: float = 1.0) -> Prompt:
        """The case's prompt of that name, or its first share, cut so that whole pages can match."""
        tokens, page = self.profile.prompt_tokens, self.profile.server.page_size
        if part < 1:
            tokens = min(tokens, max(int(tokens * part) // page, 1) * page + 1)
        return Prompt((Segment(f"verify/{self._name()}/{name}", tokens),), n_tokens=tokens)

    def _peer(self) -> Prompt:
        self.peers += 1
        return self.prompt(f"peer/{self.peers}")

    async def _ask(self, stage: Stage, prompt: Prompt, phase: str, told: str, tokens: int,
                   extra: Mapping[str, Any] | None = None) -> Folded:
        self.told = told
        builder = self._builder(stage, extra or {})
        return await stage.lab.ask(prompt, phase, f"{self._name()}: {told}", tokens, builder)

    def _builder(self, stage: Stage, extra: Mapping[str, Any]) -> RequestBuilder | None:
        if not extra and self.rank is None:
            return None
        options = stage.lab.builder.options
        options = dataclasses.replace(options, extra_body={**options.extra_body, **extra})
        if self.rank is not None:
            options = dataclasses.replace(options, dp_routing=self.rank)
        return RequestBuilder(stage.space, options)

    def _judge(self, told: str, expect: Expect, answer: Folded, reference: Folded | None, ground: Ground) -> Finding:
        found = judge(self._name(), told, expect, answer, reference, ground, trusted=self.trusted)
        self.findings.append(found)
        return found

    # ------------------------------------------------------------------ one method a step

    async def reset(self, step: Reset) -> None:
        self.told = "reset"
        for stage in self.stages:
            has_storage = stage.ground.storage is not False
            found = await reset(stage.lab, flush=True, clear_storage=has_storage, storage_absent=not has_storage)
            if found.verified is not True:
                verdict: Verdict = "fail" if found.verified is False else "inconclusive"
                advice = ("the storage clear was accepted and did nothing: clear the backend by hand, or look into its "
                          "log" if found.verified is False else "see the reason; other cases may still tell something")
                self.findings.append(Finding(self._name(), "reset", verdict, expected="cached=0 of a probe",
                                             reason=found.reason, advice=advice))
                raise _Stop

    async def prime(self, step: Prime) -> None:
        stage, figures = self._stage(step.server), self.profile.figures
        requests = figures.prime_requests.value if step.requests is None else step.requests
        prompt, answer = self.prompt(step.prompt), Folded("ok")
        for index in range(1, requests + 1):
            told = f"prime {step.prompt} {index}/{requests}"
            answer = await self._ask(stage, prompt, "prime", told, self.profile.output_tokens)
            expect = _PRIME_END if index == requests else None
            if index == 1 and requests > 1:
                expect = _PRIME_COLD
            elif expect is None and index == 2 and figures.commit_lag is not None:
                expect = _PRIME_COLD if figures.commit_lag.value else _PRIME_END
            if expect and self._judge(told, expect, answer, None, stage.ground).verdict != "pass":
                raise _Stop
        self.answers[step.prompt] = self.references[step.prompt] = answer
        self.last = (step.prompt,)

    async def pressure(self, step: Pressure) -> None:
        stage, count = self._stage(step.server), self._peers(step.peers)
        for index in range(1, count + 1):
            answer = await self._ask(stage, self._peer(), "warmup", f"peer {index}/{count}", step.output_tokens)
            if answer.outcome not in ("ok", "empty"):
                raise MeasureError(f"peer {index} of {count} failed ({answer.outcome}): {answer.error}")
        self.told = f"after {count} peers"

    async def send(self, step: Send) -> None:
        stage = self._stage(step.server)
        self.ground = stage.ground
        extra = {name: value for name, value in (("cache_salt", step.cache_salt), ("extra_key", step.extra_key))
                 if value is not None}
        told = self._told(step)
        beside = [asyncio.ensure_future(self._ask(stage, self._peer(), "warmup", told, step.beside_output_tokens))
                  for _ in range(step.beside)]
        try:
            answers = await asyncio.gather(*(
                self._ask(stage, self.prompt(name, step.part), "measure", told, self.profile.output_tokens, extra)
                for name in step.prompts))
            await asyncio.gather(*beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        for name, answer in zip(step.prompts, answers, strict=True):
            self.answers[name] = answer
            if step.reference:
                self.references[name] = answer
            if answer.outcome not in ("ok", "empty"):
                raise MeasureError(f"the request failed ({answer.outcome}): {answer.error} [{shown(answer)}]")
        self.last = step.prompts

    def _told(self, step: Send) -> str:
        words = [f"send {','.join(step.prompts)}"]
        words += [f"{step.part:.0%}"] if step.part < 1 else []
        words += [text for text in (step.cache_salt, step.extra_key) if text]
        words += [f"beside {step.beside}"] if step.beside else []
        words += [f"to server {step.server}"] if len(self.stages) > 1 else []
        return " ".join(words)

    async def flush(self, step: Flush) -> None:
        self.told = "flush"
        lab = self._stage(step.server).lab
        done = await lab.admin.flush()
        lab.event("flush", case=self._name(), waited_ns=done.waited_ns)

    async def clear(self, step: Clear) -> None:
        self.told = "clear"
        lab = self._stage(step.server).lab
        await lab.admin.clear_storage()
        lab.event("clear_storage", case=self._name())

    async def settle(self, step: Settle) -> None:
        self.told = "settle"
        await self._stage(step.server).settle(step.deadline / NS_PER_S)

    async def do_restart(self, step: Restart) -> None:
        self.told = "restart"
        if self.restart is None:
            raise MeasureError("this case restarts the server, and no restart command was given")
        await self.restart()

    async def expect(self, step: Expect) -> None:
        names = self.last if step.of is None else (step.of,)
        if not all(name in self.answers for name in names) or not names:
            raise UsageError(f"case {self.scenario.name}: expect before any answer of {step.of or 'a prompt'}")
        for name in names:
            told = self.told if len(names) == 1 else f"{name} of {self.told}"
            found = self._judge(told, step, self.answers[name], self.references.get(name),
                                self.ground or self.stages[0].ground)
            if step.control and found.verdict != "pass":
                self.trusted = False
                # A control that fails says that the question cannot be asked, not that a tier is broken.
                self.findings[-1] = dataclasses.replace(found, verdict="inconclusive")

    async def repeat(self, step: Repeat) -> None:
        for index in range(1, step.times + 1):
            before = len(self.findings)
            await self._steps(step.step)
            if step.until is None:
                continue
            mine = self.findings[before:]
            if index == step.times or all(found.verdict == "pass" for found in mine):
                note = f"at try {index} of {step.times}" if index > 1 else ""
                self.findings[before:] = [
                    dataclasses.replace(found, reason="; ".join(filter(None, (found.reason, note)))) for found in mine]
                return
            del self.findings[before:]
            if step.pause:
                self.stages[0].lab.event("repeat_pause", case=self._name(), pause_ns=int(step.pause))
                await asyncio.sleep(step.pause / NS_PER_S)  # between two tries of a bounded loop

    def _peers(self, peers: int | str) -> int:
        figures = self.profile.figures
        named = {"stay": figures.stay_peers, "evict": figures.evict_peers, "host": figures.host_peers}
        if isinstance(peers, int):
            return peers
        figure = named[peers]
        if figure is None:
            raise UsageError(f"case {self.scenario.name}: the profile {self.profile.name} has no {peers}_peers "
                             "(hicache-bench calibrate measures it)")
        return figure.value


class _Stop(Exception):
    """The case cannot go on; its findings say why."""


_PRIME_COLD = Expect(cached="<=cold", advice="a prompt that was never sent is known already, or figures.commit_lag of "
                     "the profile is too high")
_PRIME_END = Expect(cached="match", device="match", host=0, storage=0)

_PLAY: dict[type, Callable[[Player, Any], Awaitable[None]]] = {
    Reset: Player.reset, Prime: Player.prime, Pressure: Player.pressure, Send: Player.send, Flush: Player.flush,
    Clear: Player.clear, Settle: Player.settle, Restart: Player.do_restart, Expect: Player.expect,
    Repeat: Player.repeat,
}


def check_prompts(player: Player, space: TokenSpace) -> int:
    """Make every prompt the case can send differ from the others in its first page; returns how many."""
    names: dict[str, None] = {}
    for step in walk(player.scenario.step):
        if isinstance(step, Prime):
            names[step.prompt] = None
        elif isinstance(step, Send):
            names.update(dict.fromkeys(step.prompts))
    peers = _most_peers(player, player.scenario.step, 1)
    names.update(dict.fromkeys(f"peer/{index}" for index in range(1, peers + 1)))
    turns = (Turn(player.prompt(name), 1) for name in names)
    sessions = tuple(Session(index, "-", "verify", (turn,)) for index, turn in enumerate(turns))
    plan = Plan("verify", 0, sessions, np.zeros(len(sessions), dtype=np.int64), ClosedLoop(1), Stop(), "")
    return check_unique(space, plan, player.profile.server.page_size)


def _most_peers(player: Player, steps: Sequence[Step], times: int) -> int:
    total = 0
    for step in steps:
        if isinstance(step, Pressure):
            total += player._peers(step.peers)
        elif isinstance(step, Send):
            total += step.beside
        elif isinstance(step, Repeat):
            total += _most_peers(player, step.step, step.times)
    return total * times
