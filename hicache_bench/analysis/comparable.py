"""Whether runs may be compared, and if not, exactly what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicache_bench.analysis.sets import RunSet, read_optional, server_of, text_of
from hicache_bench.store.rundir import RunDir

MOST_KEYS = 8
_MUST_AGREE = (("loop", "loop kind"), ("origin", "origin"), ("start_state", "start state"))
_NAMES_ONLY = ("name", "description")
_SERVER_IDENTITY = ("fingerprint", "asked")


@dataclass(frozen=True, slots=True)
class Setting:
    """A server setting that differs: its value in each set, None where a set does not have it, `a | b` where the
    runs of one set disagree. `asked` is what the server was started with, else what it resolved."""

    name: str
    asked: bool
    values: tuple[str | None, ...]


def differences(sets: Sequence[RunSet]) -> list[str]:
    """What keeps the sets from being compared, in words; empty when nothing does."""
    found: list[str] = []
    metas = [[run.meta for run in item.runs] for item in sets]
    for key, title in _MUST_AGREE:
        values = [_values(runs, key) for runs in metas]
        everything = {item for value in values for item in value}
        if len(everything) > 1:
            found.append(f"{title} {' against '.join(dict.fromkeys(' and '.join(value) for value in values))}"
                         if len(set(values)) > 1 else f"{title} {' and '.join(values[0])} in one set")  # fmt: skip
        elif everything == {"None"}:
            found.append(f"{title} unknown in both")
    plans = [_values(runs, "plan_digest") for runs in metas]
    if any(plan == ("None",) for plan in plans):
        found.append("plan digest unknown in both" if set(plans) == {("None",)} else
                     f"plan digest {' against '.join(' and '.join(plan) for plan in plans)}")  # fmt: skip
    elif len(set(plans)) > 1:
        found.append(_plans(sets, plans))
    return found


def _values(metas: Sequence[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    return tuple(sorted({str(meta.get(key)) for meta in metas}))


def _plans(sets: Sequence[RunSet], plans: Sequence[tuple[str, ...]]) -> str:
    other = next(i for i, plan in enumerate(plans) if plan != plans[0])
    text = f"plan digest {' and '.join(plans[0])} against {' and '.join(plans[other])}"
    unlike = [run for run in sets[other].runs if str(run.meta.get("plan_digest")) not in plans[0]]
    one, two = sets[0].runs[0], (unlike or sets[other].runs)[0]
    keys = plan_changes(one, two)
    if keys is None:
        return f"{text} (no plan.json to say in what)"
    if not keys:
        return f"{text} (the specs agree: another seed of a trace file, capacity or version of hicache-bench)"
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    return f"{text} ({', '.join(keys[:MOST_KEYS])}{more})"


def plan_changes(base: RunDir, new: RunDir) -> list[str] | None:
    """`load.concurrency 2 vs 4` for every key of the plans' specs that differs; None without both specs."""
    one, two = (read_optional(run, "plan.json").get("spec") for run in (base, new))
    if not isinstance(one, Mapping) or not isinstance(two, Mapping):
        return None
    before, after = _flat(one), _flat(two)
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return [f"{name} {before.get(name, 'absent')} vs {after.get(name, 'absent')}" for name in names
            if name not in _NAMES_ONLY]  # fmt: skip


def _flat(item: Any, prefix: str = "") -> dict[str, str]:
    """Leaves by dotted key. Streams are keyed by their name, so that one more shifts none of the others."""
    if isinstance(item, Mapping):
        return {key: text for name, inner in item.items() for key, text in _flat(inner, f"{prefix}{name}.").items()}
    if isinstance(item, list) and item and all(isinstance(entry, Mapping) for entry in item):
        return {key: text for number, entry in enumerate(item)
                for key, text in _flat(entry, f"{prefix[:-1]}[{entry.get('name', number)}].").items()}  # fmt: skip
    return {prefix[:-1]: text_of(item)}


def settings(sets: Sequence[RunSet]) -> tuple[Setting, ...]:
    """Server settings that are not the same in all sets, resolved ones first, then asked ones."""
    found: list[Setting] = []
    every = [[server_of(run) for run in item.runs] for item in sets]
    for asked in (False, True):
        views = [[_asked(item) if asked else {k: v for k, v in item.items() if k not in _SERVER_IDENTITY}
                  for item in runs] for runs in every]  # fmt: skip
        for name in sorted({key for runs in views for view in runs for key in view}):
            values = tuple(_one(runs, name) for runs in views)
            if len(set(values)) > 1:
                found.append(Setting(name, asked, values))
    return tuple(found)


def _asked(item: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = item.get("asked")
    return asked if isinstance(asked, Mapping) else {}


def _one(runs: Sequence[Mapping[str, Any]], name: str) -> str | None:
    values = sorted({text_of(view[name]) for view in runs if view.get(name) is not None})
    return " | ".join(values) or None
