"""Which runs are compared: sets named on the command line, filtered and regrouped by what the runs say."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hicache_bench.errors import StoreError, UsageError
from hicache_bench.store.rundir import RunDir, find_run, list_runs

_EXAMPLE = "old=results/a-*"


@dataclass(frozen=True, slots=True)
class RunSet:
    """Runs of one configuration, oldest first."""

    name: str
    runs: tuple[RunDir, ...]


def parse_sets(arguments: Sequence[str], results: Path) -> tuple[RunSet, ...]:
    """`NAME=WHAT` or `WHAT`, where WHAT is runs separated by commas: a run directory, a name `find_run` knows, a
    folder of runs, or a glob (of paths, or of names in `results`).

    Raises UsageError for a set without runs, a name twice, or a run that is in two places.
    """
    sets = tuple(_set(text, results) for text in arguments)
    seen: dict[Path, int] = {}
    for number, item in enumerate(sets):
        for run in item.runs:
            if (where := seen.get(run.path.resolve())) is not None:
                raise UsageError(_twice(run.path.name, sets[where], item, where == number))
            seen[run.path.resolve()] = number
    names = [item.name for item in sets]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two sets are both called {', '.join(twice)}; name them, such as {_EXAMPLE}")
    return sets


def _twice(run: str, first: RunSet, second: RunSet, inside: bool) -> str:
    if inside:
        return f"run {run} is twice in the set {first.name}; a run is one measurement, give it once"
    if len(first.runs) == len(second.runs) == 1:
        return (f"{run} on both sides: comparing a run with itself shows no difference whatever the server does; "
                "give two different runs")  # fmt: skip
    return f"run {run} is in the sets {first.name} and {second.name}; a run can be in one set only"


def _set(text: str, results: Path) -> RunSet:
    name, equals, what = text.partition("=")
    if not equals or os.sep in name or Path(text).exists():
        name, what = "", text
    elif not name:
        raise UsageError(f"{text!r} has no name before the =; write {_EXAMPLE}")
    runs = [run for part in what.split(",") if part.strip() for run in _runs(part.strip(), results)]
    if not runs:
        raise UsageError(f"{text!r} names no run; write a run directory or {_EXAMPLE}")
    for run in runs:
        _ = run.meta  # an unreadable run is told by its own name, before anything else is
    runs.sort(key=lambda run: (_started(run), run.path.name))
    return RunSet(name or (runs[0].path.name if len(runs) == 1 else what), tuple(runs))


def _runs(text: str, results: Path) -> list[RunDir]:
    if glob.has_magic(text):
        paths = sorted(glob.glob(text)) or sorted(glob.glob(str(results / text)))
        found = [RunDir(Path(path)) for path in paths if (Path(path) / "run.json").is_file()]
        if not found:
            raise UsageError(f"no run fits {text!r}, neither here nor in {results}")
        return found
    path = Path(text)
    if path.is_dir() and not (path / "run.json").is_file() and (inside := list_runs(path)):
        return inside
    return [find_run(results, text)]


def _started(run: RunDir) -> int:
    started = run.meta.get("started_wall_ns")
    return started if isinstance(started, int) else 0


# --------------------------------------------------------------------------- what a run says


_SOURCES: Mapping[str, Callable[[RunDir], Any]] = {
    "run": lambda run: run.meta,
    "tags": lambda run: run.meta.get("tags"),
    "load": lambda run: run.meta.get("load"),
    "server": lambda run: server_of(run),
    "plan": lambda run: read_optional(run, "plan.json").get("spec"),
}
"""First word of a key → where the rest is looked up."""


def server_of(run: RunDir) -> Mapping[str, Any]:
    """What the server resolved (flags and sizes), and what was asked of it as `asked.FLAG`."""
    stored = read_optional(run, "server.json")
    flags, asked = stored.get("flags"), stored.get("asked", run.meta.get("server_asked"))
    plain = {key: stored[key] for key in ("version", "model", "page_size", "device_tokens", "host_tokens",
             "context_length", "storage_backend", "dp_size", "fingerprint") if key in stored}  # fmt: skip
    return {**plain, **(flags if isinstance(flags, Mapping) else {}),
            **({"asked": asked} if isinstance(asked, Mapping) else {})}  # fmt: skip


def read_optional(run: RunDir, name: str) -> Mapping[str, Any]:
    """A JSON object of the run directory; empty when there is none that can be read."""
    try:
        found = run.read_json(name)
    except StoreError:
        return {}
    return found if isinstance(found, Mapping) else {}


def lookup(run: RunDir, key: str) -> str | None:
    """The value of a key such as `server.hicache_write_policy`, `tags.build`, `load.concurrency` or
    `run.seed` as text; None where the run does not have it. Raises UsageError for an unknown first word."""
    first, _, rest = key.partition(".")
    if first not in _SOURCES or not rest:
        raise UsageError(f"no key {key!r}; write one of " + ", ".join(f"{name}.NAME" for name in _SOURCES))
    found: Any = _SOURCES[first](run)
    for part in rest.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return None if found is None else text_of(found)


def text_of(item: Any) -> str:
    """A setting as one short word: text as it is, anything else as JSON."""
    return item if isinstance(item, str) else msgspec.json.encode(item).decode()


def filtered(sets: Sequence[RunSet], filters: Sequence[str]) -> tuple[RunSet, ...]:
    """The runs that keep every `KEY=VALUE` or `KEY!=VALUE`. Raises UsageError when a set has none left."""
    for text in filters:
        key, equals, wanted = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--filter {text!r} is not KEY=VALUE or KEY!=VALUE, such as tags.build=nightly")
        unlike, key = key.endswith("!"), key.removesuffix("!").strip()
        kept = [RunSet(item.name, tuple(run for run in item.runs if (lookup(run, key) == wanted) != unlike))
                for item in sets]  # fmt: skip
        if empty := [item.name for item in kept if not item.runs]:
            has = sorted({str(lookup(run, key)) for item in sets for run in item.runs})
            raise UsageError(f"--filter {text}: no run is left in {', '.join(empty)}; {key} is {', '.join(has)}")
        sets = kept
    return tuple(sets)


def by_column(sets: Sequence[RunSet], key: str) -> tuple[RunSet, ...]:
    """All runs of all sets regrouped by the value of a key, in the order the values first appear.

    Raises UsageError when there are not at least two values.
    """
    found: dict[str, list[RunDir]] = {}
    for item in sets:
        for run in item.runs:
            found.setdefault(lookup(run, key) or "-", []).append(run)
    if len(found) < 2:
        raise UsageError(f"--col {key}: every run has {next(iter(found), '-')}; two values are needed to compare")
    return tuple(RunSet(f"{key.rpartition('.')[2]}={name}", tuple(runs)) for name, runs in found.items())


def by_row(sets: Sequence[RunSet], key: str) -> dict[str, tuple[RunSet, ...]]:
    """Value of a key → the sets with the runs that have it. Values that only one set has are left out.

    Raises UsageError when no value is left.
    """
    values = dict.fromkeys(lookup(run, key) or "-" for item in sets for run in item.runs)
    found: dict[str, tuple[RunSet, ...]] = {}
    for wanted in values:
        kept = [RunSet(item.name, tuple(run for run in item.runs if (lookup(run, key) or "-") == wanted))
                for item in sets]  # fmt: skip
        kept = [item for item in kept if item.runs]
        if len(kept) > 1:
            found[f"{key} = {wanted}"] = tuple(kept)
    if not found:
        raise UsageError(f"--row {key}: no value is on two sides; the values are {', '.join(values)}")
    return found
