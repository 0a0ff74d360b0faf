"""What an answer said against what a step expects: pass, fail or inconclusive, with the reason and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hicache_bench.records import Folded
from hicache_bench.verify.steps import Expect, parse_bound

Verdict = Literal["pass", "fail", "inconclusive", "error", "skipped"]

_HOLDS = {
    "=": lambda seen, want: seen == want,
    ">": lambda seen, want: seen > want,
    ">=": lambda seen, want: seen >= want,
    "<": lambda seen, want: seen < want,
    "<=": lambda seen, want: seen <= want,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged answer, or the end of a case that could not go on (verdict `error`)."""

    case: str
    step: str
    verdict: Verdict
    seen: str = ""
    expected: str = ""
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Ground:
    """What judging needs beside the answer: counts by name (`match`, `prompt`, `page`, `cold`) and what the
    captured configuration says. `storage` None: not known whether there is a storage tier."""

    names: Mapping[str, int]
    storage: bool | None = None
    prefetch_policy: str | None = None
    write_policy: str | None = None


def shown(answer: Folded) -> str:
    """`cached=3072 device=0 host=3072 storage=-`; a dash is what the server did not say."""
    return " ".join(f"{name}={'-' if value is None else value}" for name, value in _tiers(answer).items())


def expectation(expect: Expect, ground: Ground) -> str:
    """The bounds of a step in numbers, as they are printed."""
    parts = []
    for name, bound in expect.bounds().items():
        operator, count = parse_bound(bound, ground.names)
        parts.append(f"{name}{operator}{count}")
    return " ".join([*parts, *(["output=same"] if expect.output else [])])


def judge(case: str, step: str, expect: Expect, answer: Folded, reference: Folded | None, ground: Ground, *,
          trusted: bool = True) -> Finding:
    """One answer against one expectation. `trusted` False: outputs differ for other reasons already.

    A value that the server did not give is inconclusive, never a pass; only where nothing at all was cached
    is every tier known to be 0. A storage bound is left out when the server has no storage tier.
    """
    if answer.outcome not in ("ok", "empty"):
        return Finding(case, step, "error", shown(answer), expectation(expect, ground),
                       f"the request failed ({answer.outcome}): {answer.error}")
    misses, unknown, advice = _tier_misses(expect, answer, ground)
    if misses and _policy_effect(expect, answer, ground):
        misses, advice = [], [_WAIT_ADVICE]
        unknown.append("an effect of the policy best_effort, not a fault: an idle server does not wait for storage")
    if expect.output is not None:
        difference = compare_outputs(answer, reference)
        if difference is None:
            unknown.append("there is no output to compare")
        elif difference:
            (misses if trusted else unknown).append(difference + ("" if trusted else "; in the control, too"))
            advice.append(_OUTPUT_ADVICE)
    verdict: Verdict = "fail" if misses else "inconclusive" if unknown else "pass"
    return Finding(case, step, verdict, shown(answer), expectation(expect, ground), "; ".join([*misses, *unknown]),
                   "" if verdict == "pass" else "; ".join(dict.fromkeys(
                       [expect.advice] if expect.advice and misses else advice)))


def compare_outputs(answer: Folded, reference: Folded | None) -> str | None:
    """Where an answer first differs from the reference: empty when equal, None when it cannot be told."""
    if reference is None:
        return None
    if answer.output_ids is not None and reference.output_ids is not None:
        return _difference("token", answer.output_ids, reference.output_ids)
    if answer.text or reference.text:
        return _difference("character", answer.text or "", reference.text or "")
    return None


def _difference(unit: str, seen: Sequence[int | str], want: Sequence[int | str]) -> str:
    for index, (mine, other) in enumerate(zip(seen, want, strict=False)):
        if mine != other:
            return f"the output differs from the resident one at {unit} {index}: {mine!r} instead of {other!r}"
    if len(seen) != len(want):
        return f"the output has {len(seen)} {unit}s, the resident one {len(want)}, equal as far as they go"
    return ""


def _tiers(answer: Folded) -> dict[str, int | None]:
    return {"cached": answer.cached_tokens, "device": answer.device_tokens, "host": answer.host_tokens,
            "storage": answer.storage_tokens}


def _tier_misses(expect: Expect, answer: Folded, ground: Ground) -> tuple[list[str], list[str], list[str]]:
    """(misses, what is not known, advice) of the tier bounds."""
    misses: list[str] = []
    unknown: list[str] = []
    advice: list[str] = []
    for name, bound in expect.bounds().items():
        operator, count = parse_bound(bound, ground.names)
        seen = _tiers(answer)[name]
        if seen is None and answer.cached_tokens == 0:
            seen = 0
        if seen is None and name == "storage" and ground.storage is False and _HOLDS[operator](0, count):
            continue  # no storage tier, so none of its tokens: known from the configuration, not from silence
        if seen is None:
            unknown.append(f"{name} is not reported by this server")
            advice.append(_REPORT_ADVICE)
        elif not _HOLDS[operator](seen, count):
            misses.append(f"{name} is {seen}, expected {'' if operator == '=' else operator}{count}")
            advice.append(_advise(name, operator, count, seen, answer))
    return misses, unknown, [text for text in advice if text]


_OUTPUT_ADVICE = ("the restored pages hold other content than the resident ones, or this model's output is not stable "
                  "(compare the cases fidelity and concurrent)")
_WAIT_ADVICE = "start the server with --hicache-storage-prefetch-policy wait_complete to test this tier"
_REPORT_ADVICE = ("use a server whose answers carry cached_tokens_details (native /generate; OpenAI routes need "
                  "return_cached_tokens_details)")


def _advise(name: str, operator: str, count: int, seen: int, answer: Folded) -> str:
    wanted_none = count == 0 and operator in ("=", "<=")
    cached = answer.cached_tokens or 0
    if name == "device" and wanted_none:
        return "the prompt stayed on the device: raise figures.evict_peers of the profile, or run calibrate"
    if name == "device" and seen == 0 and cached:
        return "the prompt left the device: lower figures.stay_peers of the profile, or run calibrate"
    if name == "host" and not wanted_none and seen == 0:
        return ("nothing came from the host: is the host pool large enough (hicache_ratio), does the write policy "
                "back up before eviction, does sglang:hicache_dropped_tokens_total grow?")
    if name == "storage" and not wanted_none and seen == 0:
        return ("nothing came from storage: were the backups written (sglang:backuped_tokens_total), is the storage "
                "prefetch policy wait_complete or timeout, are 256 tokens or more missing?")
    if name == "cached" and seen and operator == "=" and count:
        return "check figures.match_tokens and prompt_tokens of the profile (calibrate measures them)"
    if name == "cached" and wanted_none:
        return "the prompt was known already"
    return "nothing of it was found: was it primed often enough (figures.prime_requests)?" if not cached else ""


def _policy_effect(expect: Expect, answer: Folded, ground: Ground) -> bool:
    """Whether storage gave too little only because best_effort starts the prefill at once (facts 4.8)."""
    if expect.storage is None or ground.prefetch_policy != "best_effort":
        return False
    operator, count = parse_bound(expect.storage, ground.names)
    least = count + 1 if operator == ">" else count if operator in ("=", ">=") else 0
    elsewhere = (answer.device_tokens or 0) + (answer.host_tokens or 0)
    return not elsewhere and (answer.storage_tokens or 0) < least
