"""Which cases a server can be judged by, from its captured configuration. A reason is why a case is skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hicache_bench.profiles.profile import Profile
from hicache_bench.records import ServerInfo
from hicache_bench.verify.steps import Scenario, Send, walk


@dataclass(frozen=True, slots=True)
class Setting:
    """What the conditions look at. `infos` has one entry a given URL, in order."""

    infos: tuple[ServerInfo, ...]
    profile: Profile
    may_restart: bool = False
    engine_apart: bool = False

    @property
    def info(self) -> ServerInfo:
        return self.infos[0]

    def flag(self, name: str) -> str | None:
        value = self.info.flags.get(name)
        return value if isinstance(value, str) else None


_Check = Callable[[Setting, Scenario], str]


def why_not(scenario: Scenario, setting: Setting) -> str:
    """Why this case does not apply to this server; empty when it does.

    What the server does not say is no reason: the case is played and its answers decide.
    """
    return next((reason for name in scenario.needs if (reason := _CONDITIONS[name](setting, scenario))), "")


def _hicache(setting: Setting, _: Scenario) -> str:
    return "HiCache is off (--enable-hierarchical-cache)" if setting.info.hicache is False else ""


def _storage(setting: Setting, _: Scenario) -> str:
    if setting.info.storage_backend is None and setting.info.hicache is not None:
        return "no storage tier is attached (--hicache-storage-backend)"
    return ""


def _policy(wanted: str) -> _Check:
    def check(setting: Setting, _: Scenario) -> str:
        policy = setting.flag("hicache_write_policy")
        return f"the write policy is {policy}, the case is about {wanted}" if policy not in (None, wanted) else ""

    return check


def _second_hit(setting: Setting, _: Scenario) -> str:
    if setting.flag("hicache_write_policy") == "write_back":
        return "write_back fills storage only at eviction; the case write_back covers that"
    return ""


def _host_room(setting: Setting, scenario: Scenario) -> str:
    """The host keeps what the device evicts only if it holds every prompt that is sent meanwhile (facts 4.5)."""
    figures, page, host = setting.profile.figures, setting.info.page_size, setting.info.host_tokens
    if page is None or host is None:
        return ""
    each = figures.resident_pages.value if figures.resident_pages else -(-setting.profile.prompt_tokens // page)
    steps = list(walk(scenario.step))
    named = {name for step in steps if isinstance(step, Send) for name in step.prompts}
    beside = sum(step.beside for step in steps if isinstance(step, Send))
    prompts = figures.evict_peers.value + max(len(named), 1) + beside
    if host // page < prompts * each:
        return (f"the host pool of {host // page} pages cannot keep {prompts} prompts of {each} pages, "
                f"{figures.evict_peers.value} of them peers; raise --hicache-ratio")
    return ""


def _full_only(setting: Setting, _: Scenario) -> str:
    parts = setting.profile.server.components
    return "" if parts == ("FULL",) else f"part of a prompt has no match rule of its own with {' + '.join(parts)}"


def _dp(setting: Setting, _: Scenario) -> str:
    return "one data-parallel rank only (--dp-size)" if (setting.info.dp_size or 1) < 2 else ""


def _pd(setting: Setting, _: Scenario) -> str:
    if setting.engine_apart or setting.flag("disaggregation_mode") in ("prefill", "decode"):
        return ""
    return "no disaggregated pair (--admin-url names the prefill engine behind a router)"


def _two(setting: Setting, _: Scenario) -> str:
    return "one server only (give --url twice)" if len(setting.infos) < 2 else ""


def _restart(setting: Setting, _: Scenario) -> str:
    return "" if setting.may_restart else "restarting is not allowed (--restart-command)"


_CONDITIONS: dict[str, _Check] = {
    "hicache": _hicache,
    "storage": _storage,
    "write_through": _policy("write_through"),
    "write_through_selective": _policy("write_through_selective"),
    "write_back": _policy("write_back"),
    "backs_up_second_hit": _second_hit,
    "host_room": _host_room,
    "full_only": _full_only,
    "dp": _dp,
    "pd": _pd,
    "two_servers": _two,
    "restart": _restart,
}
