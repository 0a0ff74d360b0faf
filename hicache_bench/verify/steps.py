"""Scenarios as data: a short list of steps in TOML, checked when it is read.

The same list runs on the simulated and on a real server. Numbers that depend on the model come from the
profile by name (`match`, `evict`, ...), so one file serves every model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union

import msgspec

from hicache_bench.errors import UsageError
from hicache_bench.workload.decode import Duration, convert, need, read_toml

Need = Literal["hicache", "storage", "write_through", "write_through_selective", "write_back",
               "backs_up_second_hit", "host_room", "full_only", "dp", "pd", "two_servers", "restart"]
"""What a server must be for a case to say anything; see `conditions`."""

SHIPPED = ("l1", "l2", "l3", "flush_keeps_l3", "clear", "partial", "salt", "fidelity", "concurrent", "selective",
           "write_back", "dp", "pd", "shared", "restart")
"""The package's own cases, in the order they are played."""

Bound = Union[int, str]  # noqa: UP007  # msgspec reads it at run time
_BOUND = re.compile(r"(>=|<=|>|<|=|)\s*([0-9]{1,9}|match|prompt|page|cold)")


class _Step(msgspec.Struct, frozen=True, tag_field="do"):
    pass


class Reset(_Step, frozen=True, tag="reset"):
    """Flush device and host and clear storage, proven by a probe."""


class Prime(_Step, frozen=True, tag="prime"):
    """Send a prompt until it is on the device, checking the cold, the lagging and the resident answer.

    The last answer is the prompt's reference output. `requests` None: the profile's.
    """

    prompt: str = "base"
    requests: int | None = None
    server: int = 1


class Pressure(_Step, frozen=True, tag="pressure"):
    """Send prompts of their own, one after the other. `peers`: a number, or the profile's stay, evict, host."""

    peers: int | Literal["stay", "evict", "host"]
    output_tokens: int = 1
    server: int = 1


class Send(_Step, frozen=True, tag="send"):
    """Send prompts, all at once when there are several. `part` sends the first share of the prompt only.

    `beside` requests of their own decode `beside_output_tokens` each while these are answered. `cache_salt`
    and `extra_key` name a tenant. `reference` makes these answers the reference outputs.
    """

    prompts: tuple[str, ...] = ("base",)
    part: float = 1.0
    beside: int = 0
    beside_output_tokens: int = 64
    cache_salt: str | None = None
    extra_key: str | None = None
    reference: bool = False
    server: int = 1

    def __post_init__(self) -> None:
        need(0 < self.part <= 1, "part", self.part, "above 0 and at most 1")
        need(bool(self.prompts), "prompts", self.prompts, "one name or more")
        need(0 <= self.beside <= 64, "beside", self.beside, "0 to 64")


class Flush(_Step, frozen=True, tag="flush"):
    """Empty device and host; waits until the server is idle, storage backups included."""

    server: int = 1


class Clear(_Step, frozen=True, tag="clear"):
    """Ask for an empty storage tier. Whether it is one, only a later answer shows."""

    server: int = 1


class Settle(_Step, frozen=True, tag="settle"):
    """Wait until the copy counters rest, at most `deadline`."""

    deadline: Duration = Duration(30_000_000_000)
    server: int = 1


class Restart(_Step, frozen=True, tag="restart"):
    """Run the restart command and wait until the server is healthy."""


class Expect(_Step, frozen=True, tag="expect"):
    """Judge the last answers (or the last one of prompt `of`).

    A bound is a count or a text: `0`, `">0"`, `">=256"`, or a name with or without an operator: `match` (the
    profile's match_tokens), `prompt`, `page`, `cold` (what an unknown prompt may report: 0, or less than 16
    tokens when pages are that small). `output = "same"` compares with the reference output. A `control` that
    misses makes later output differences of the case inconclusive.
    """

    of: str | None = None
    cached: Bound | None = None
    device: Bound | None = None
    host: Bound | None = None
    storage: Bound | None = None
    output: Literal["same"] | None = None
    control: bool = False
    advice: str = ""

    def __post_init__(self) -> None:
        for name, value in self.bounds().items():
            need(bool(_BOUND.fullmatch(str(value))), name, value,
                 'write a count like 0 or ">0", or match, prompt, page or cold')
        need(bool(self.bounds()) or self.output is not None, "expect", "", "name cached, device, host, storage or "
             "output")

    def bounds(self) -> dict[str, Bound]:
        """Tier → bound, of those that are given."""
        named = {"cached": self.cached, "device": self.device, "host": self.host, "storage": self.storage}
        return {name: value for name, value in named.items() if value is not None}


class Repeat(_Step, frozen=True, tag="repeat"):
    """Play `step` several times. `until = "pass"` stops at the first time without a miss, and only the last
    time is judged; `pause` lies between two tries."""

    times: int
    step: tuple[Step, ...]
    until: Literal["pass"] | None = None
    pause: Duration = Duration(0)

    def __post_init__(self) -> None:
        need(1 <= self.times <= 1000, "times", self.times, "1 to 1000")


Step = Union[Reset, Prime, Pressure, Send, Flush, Clear, Settle, Restart, Expect, Repeat]  # noqa: UP007


class Scenario(msgspec.Struct, frozen=True):
    """One case. `needs` that the server does not fulfil make it skipped, with the reason."""

    name: str
    title: str
    step: tuple[Step, ...]
    needs: tuple[Need, ...] = ()
    per_rank: bool = False

    def __post_init__(self) -> None:
        need(bool(re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name)), "name", self.name,
             "1 to 40 letters, digits and - _ .")
        need(any(isinstance(step, Expect | Prime) for step in walk(self.step)), "step", "",
             "a case needs a prime or expect step, or it judges nothing")


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, those inside repeats included."""
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from walk(step.step)


def parse_bound(bound: Bound, names: Mapping[str, int]) -> tuple[str, int]:
    """(operator, count) of a checked bound; a bare count or name means equal."""
    match = _BOUND.fullmatch(str(bound))
    assert match is not None, bound
    word = match[2]
    return match[1] or "=", int(word) if word.isdigit() else names[word]


def parse_scenario(tables: Mapping[str, Any], where: str) -> Scenario:
    """A scenario from decoded TOML; `where` begins every message of the UsageError."""
    return convert(tables, Scenario, where)


def shipped(name: str) -> Path:
    """The data file of one of the package's own cases."""
    return Path(str(resources.files(__package__))) / "cases" / f"{name}.toml"


def load_scenarios(texts: tuple[str, ...]) -> list[Scenario]:
    """The cases of these names or files (ending in `.toml`); all shipped ones when none is named.

    Raises UsageError for an unknown name, a file that is no scenario, or a case given twice.
    """
    found: list[Scenario] = []
    for text in texts or SHIPPED:
        if text not in SHIPPED and not text.endswith(".toml"):
            raise UsageError(f"no case {text!r}; shipped are {', '.join(SHIPPED)}, or give a .toml file")
        path = shipped(text) if text in SHIPPED else Path(text)
        scenario = parse_scenario(read_toml(path), path.name if text in SHIPPED else str(path))
        if any(other.name == scenario.name for other in found):
            raise UsageError(f"{path}: the case {scenario.name!r} is given twice; give every case once, under a "
                             "name of its own")
        found.append(scenario)
    return found
