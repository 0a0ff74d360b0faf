"""Before anything is measured: what the server is, what fits it, and what the requests have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import UsageError
from hicache_bench.load.requests import RequestOptions
from hicache_bench.records import ClosedLoop, Plan, ServerInfo
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.capture import capture_server
from hicache_bench.sglang.scraper import Scraper
from hicache_bench.target import Target, english_space
from hicache_bench.workload.plan import Capacity
from hicache_bench.workload.spec import WorkloadSpec
from hicache_bench.workload.tokens import TokenSpace


def capacity_of(info: ServerInfo) -> Capacity:
    """The sizes a plan needs of a server.

    The longest prompt is below what SGLang states (`max_req_input_len`, the pool less 6 tokens): admission asks
    for a page more than the prompt, and a prompt that only just fits the pool waits for ever and holds up the
    whole queue (seen on 0.5.23: pool 4096, page 16, prompt 4090, 256 waiting and none running).
    """
    limits = [info.max_request_tokens]
    if info.device_tokens is not None and info.page_size is not None:
        limits.append(info.device_tokens - 2 * info.page_size)
    known = [limit for limit in limits if limit is not None]
    return Capacity(info.device_tokens, info.host_tokens, min(known, default=None))


async def look(target: Target, admin: Admin) -> ServerInfo:
    """The server's configuration, with one scrape of its own metrics page where there is one."""
    scraper = Scraper(admin.session, target.sources()[:1], NS_PER_S, _ignore, _ignore)
    return await capture_server(admin, await scraper.scrape_one(scraper.sources[0]))


def _ignore(*_: object) -> None:
    """A sink for samples and warnings that nobody needs."""


async def token_space(spec: WorkloadSpec, target: Target, admin: Admin, nonce: str) -> TokenSpace:
    """The content of prompts as the workload asks: English in the server's tokens, or random ids."""
    if spec.prompts.source == "random_ids":
        low, high = spec.prompts.vocab
        return TokenSpace.random_ids(low, high, nonce)
    return await english_space(target, admin, nonce)


def request_options(spec: WorkloadSpec, plan: Plan, info: ServerInfo, target: Target,
                    extra_body: Mapping[str, Any]) -> RequestOptions:
    """What the requests have in common. Raises UsageError for combinations no server can answer."""
    load = spec.load
    if load.api == "chat" and spec.prompts.source == "random_ids":
        raise UsageError('prompts.source = "random_ids" has no text, and the chat API takes text only; use '
                         'source = "english" or another api')
    live = any(turn.live for session in plan.sessions for turn in session.turns)
    if load.api == "completions" and live and spec.prompts.format == "ids":
        raise UsageError('a live history needs the answer\'s token ids, and /v1/completions answers with text; use '
                         'prompts.format = "text", history = "scripted" or api = "generate"')
    if isinstance(load.dp_routing, int) and info.dp_size is not None and load.dp_routing >= info.dp_size:
        raise UsageError(f"dp routing asks for rank {load.dp_routing} but the server has {info.dp_size} rank(s): "
                         f"0 to {info.dp_size - 1}")
    return RequestOptions(
        api=load.api,
        streamed=load.stream,
        prompt_format=spec.prompts.format,
        ignore_eos=load.ignore_eos,
        temperature=load.temperature,
        model=target.model or info.model or "default",
        incremental=bool(info.incremental_streaming),
        timeout_ns=load.timeout or None,
        dp_routing=load.dp_routing,
        dp_size=info.dp_size or 1,
        extra_body=extra_body,
    )


def connections(plan: Plan) -> int:
    """Sockets the load may need at once. Turns that wait for the same turn run side by side (agents)."""
    per_session = max((max(Counter(turn.after for turn in session.turns).values(), default=1)
                       for session in plan.sessions), default=1)
    limit = plan.loop.concurrency if isinstance(plan.loop, ClosedLoop) else plan.loop.limit
    return min(limit, max(1, len(plan.sessions))) * per_session


def describe(info: ServerInfo) -> str:
    """The server in one line for people."""
    tiers = [f"device {info.device_tokens:,} tokens" if info.device_tokens else "device size unknown"]
    if info.hicache:
        tiers.append(f"host {info.host_tokens:,} tokens" if info.host_tokens else "host size unknown")
        tiers.append(f"storage {info.storage_backend}" if info.storage_backend else "no storage")
    else:
        tiers.append("HiCache off" if info.hicache is False else "HiCache unknown")
    label = "SIMULATED server" if info.origin == "simulated" else "server"
    return (f"{label}: {info.model or 'unknown model'}, SGLang {info.version or 'unknown version'}, "
                  f"page {info.page_size or 'unknown'}, " + ", ".join(tiers))
