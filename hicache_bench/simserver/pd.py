"""A disaggregated pair in one process: a router, a prefill engine and a decode engine, each with a port of its own.

As in SGLang 0.5.23 the router takes /generate and /flush_cache only (its own /health beside), and everything else
goes to an engine; an engine refuses a prompt that did not come through the router (managers/scheduler.py: no
bootstrap room), and the decode engine has neither a prefix cache nor HiCache (arg_groups, `disable_radix_cache`).

A request is computed by the prefill engine up to its first token; the KV of its prompt goes over one link; the
decode engine takes it in and decodes the rest. The first token reaches the client when the decode engine has taken
the prompt in. The tiers in the answer are the prefill engine's, whose cache holds prompts but no outputs.

Simplified, knowingly:

- the transfer begins when the prompt is computed, not chunk by chunk; transfers follow each other on the link;
- the prefill engine may evict a prompt's pages from its first token on, not from the end of the transfer;
- the decode engine finds room for a prompt after its transfer, not before, and lets finished requests' pages lie
  until it needs them (nothing ever matches them);
- one prefill and one decode engine with the same sizes and keys, no bootstrap handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, cast

from aiohttp import web

from hicache_bench.cachesim.costs import GB, replace_costs
from hicache_bench.cachesim.request import TierTokens
from hicache_bench.clock import NS_PER_S, now_ns, sleep_until
from hicache_bench.errors import MeasureError, UsageError
from hicache_bench.simserver import generate, info, routes
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Engine, Generation, Job
from hicache_bench.simserver.faults import Faults
from hicache_bench.simserver.generate import json_response
from hicache_bench.simserver.server import HOST, add_engine_routes, bare_app, listen

Role = Literal["prefill", "decode"]
_PORTS_TRIED = 64
_NOT_ROUTED = "Invalid request: Disaggregated request received without bootstrap room id."


@dataclass(frozen=True, slots=True)
class PairSettings:
    """What a pair has beside the settings of its engines. Ports None: the next free ones above the router's;
    0: any. `transfer_gb_per_s` in 1e9 bytes, 0 is infinitely fast; the default is 200 Gbit/s, no measurement.
    Raises `UsageError` for a bandwidth out of range."""

    prefill_port: int | None = None
    decode_port: int | None = None
    transfer_gb_per_s: float = 25.0

    def __post_init__(self) -> None:
        if not 0 <= self.transfer_gb_per_s < math.inf:
            raise UsageError(f"transfer_gb_per_s is {self.transfer_gb_per_s}; allowed: 0 or more, finite")


@dataclass(slots=True, eq=False)
class Relayed(Generation):
    """An answer of both engines: tiers and waiting from `first` (prefill), tokens and their instants from `second`
    (decode)."""

    first: Generation = field(kw_only=True)
    second: Generation = field(kw_only=True)

    @property
    def cached(self) -> TierTokens:
        return self.first.cached

    @property
    def started_ns(self) -> int:
        return self.first.started_ns

    @property
    def prefetch_wait_s(self) -> float:
        return self.first.prefetch_wait_s

    async def progress(self, interval: int) -> AsyncIterator[int]:
        """As `Generation.progress`."""
        async for done in self.second.progress(interval):
            self.over, self.aborted = self.second.over, self.second.aborted
            yield done


class Pair:
    """Both engines as one: what the router's routes ask of an `Engine`."""

    def __init__(self, config: SimConfig, settings: PairSettings) -> None:
        self.config = config
        self.prefill = Engine(config)
        self.decode = _decode_engine(config)
        self._kv_bytes = config.machine().kv_bytes_per_token * config.page_size
        self._gb_per_s = settings.transfer_gb_per_s
        self._link_free_ns = 0
        self._answers = 0
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def faults(self) -> Faults:
        """Those of answers are shown by the router, those of tiers by the prefill engine."""
        return self.prefill.faults

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[Generation]:
        """Run one job through both engines, from its first token on. A body left early aborts it where it is."""
        self._under_way += 1
        self._quiet.clear()
        try:
            async with self.prefill.answer(replace(job, output_tokens=min(1, job.output_tokens))) as first:
                async for _ in first.progress(1):
                    pass
            if first.aborted:
                yield first
                return
            await self._transfer(len(job.ids))
            self._answers += 1
            # A namespace of its own: the decode engine has no prefix cache.
            async with self.decode.answer(replace(job, seed=self._answers.to_bytes(16, "big"))) as second:
                yield self._relayed(job, first, second)
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._quiet.set()

    async def flush(self, timeout_s: float) -> bool:
        """Empty both engines once nothing is under way in them or between them; False when that is not so within
        `timeout_s` seconds (one of them may be empty then)."""
        deadline = time.monotonic() + timeout_s
        if not self._quiet.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), timeout_s)
        if not self._quiet.is_set():
            return False
        left = max(deadline - time.monotonic(), 0.0)
        return all(await asyncio.gather(self.prefill.flush(left), self.decode.flush(left)))

    async def close(self) -> None:
        """Stop both engines."""
        await asyncio.gather(self.prefill.close(), self.decode.close())

    async def _transfer(self, n_tokens: int) -> None:
        """Wait until the KV of a prompt, in whole pages, has gone over the link; first come, first served."""
        if self._gb_per_s == 0:
            return
        pages = -(-n_tokens // self.config.page_size)
        took_ns = round(pages * self._kv_bytes / (self._gb_per_s * GB) * NS_PER_S / self.config.speed)
        self._link_free_ns = max(now_ns(), self._link_free_ns) + took_ns
        await sleep_until(self._link_free_ns)

    def _relayed(self, job: Job, first: Generation, second: Generation) -> Relayed:
        output = second.output_ids
        self.faults.spoil(output, first.cached)
        return Relayed(job, second.engine, second.result, first.received_s, first.received_ns, output,
                       first.details_lost, first=first, second=second)


@dataclass(slots=True)
class RunningPair:
    """A pair in this process: three URLs; close it, or use it as an async context manager."""

    url: str
    prefill_url: str
    decode_url: str
    pair: Pair
    _stack: AsyncExitStack

    async def close(self) -> None:
        """Stop listening and drop open connections."""
        await self._stack.aclose()

    async def __aenter__(self) -> RunningPair:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()


async def start_pair(config: SimConfig, port: int = 0, settings: PairSettings | None = None,
                     host: str = HOST) -> RunningPair:
    """Listen on three ports of `host`, the router's first. Raises `MeasureError` when one of them is taken."""
    settings = settings or PairSettings()
    pair = Pair(config, settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pair.close)

        async def serve(app: web.Application, wanted: list[int]) -> tuple[str, int]:
            runner, url = await _listen_first(app, host, wanted)
            stack.push_async_callback(runner.cleanup)
            return url, int(url.rpartition(":")[2])

        url, router = await serve(_router_app(pair), [port])
        above = _ports(settings.prefill_port, router, any_free=port == 0, kept=settings.decode_port)
        prefill_url, prefill = await serve(_engine_app(pair.prefill, "prefill", settings), above)
        above = _ports(settings.decode_port, max(router, prefill), any_free=port == 0)
        decode_url, _ = await serve(_engine_app(pair.decode, "decode", settings), above)
        return RunningPair(url, prefill_url, decode_url, pair, stack.pop_all())


def _ports(asked: int | None, below: int, *, any_free: bool, kept: int | None = None) -> list[int]:
    """What to try, in order; `kept` is for somebody else."""
    if asked is not None:
        return [asked]
    if any_free:
        return [0]
    return [*(port for port in range(below + 1, min(below + 1 + _PORTS_TRIED, 65536)) if port != kept), 0]


async def _listen_first(app: web.Application, host: str, ports: list[int]) -> tuple[web.AppRunner, str]:
    for port in ports[:-1]:
        with contextlib.suppress(MeasureError):
            return await listen(app, host, port)
    return await listen(app, host, ports[-1])


def _router_app(pair: Pair) -> web.Application:
    # The routes below use of an engine what `Pair` has: config, faults, answer, flush.
    app = bare_app(cast(Engine, pair))
    app.add_routes([
        web.post("/generate", generate.generate), web.put("/generate", generate.generate),
        web.get("/flush_cache", routes.flush_cache), web.post("/flush_cache", routes.flush_cache),
        web.get("/health", routes.health),
    ])
    return app


def _engine_app(engine: Engine, role: Role, settings: PairSettings) -> web.Application:
    app = bare_app(engine)
    add_engine_routes(app, *_told(engine, role, settings))
    for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, _refuse)
    app.router.add_put("/generate", _refuse)
    return app


_Told = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _told(engine: Engine, role: Role, settings: PairSettings) -> tuple[_Told, _Told]:
    """/server_info and /model_info with the engine's part in the pair."""
    changes: dict[str, Any] = {"disaggregation_mode": role}
    machine: dict[str, Any] = {"transfer_gb_per_s": settings.transfer_gb_per_s}
    if role == "decode":
        changes["disable_radix_cache"] = True
        machine |= dict.fromkeys(_NO_PREFILL, 0.0)

    async def server_info(request: web.Request) -> web.Response:
        told = info.server_info(engine.config, engine)
        state = {**told["internal_states"][0], **changes}
        return json_response({**told, **changes, "internal_states": [state],
                              "simulated_machine": {**told["simulated_machine"], **machine}})

    async def model_info(request: web.Request) -> web.Response:
        return json_response({**info.model_info(engine.config), "disaggregation_mode": role})

    return server_info, model_info


async def _refuse(request: web.Request) -> web.Response:
    return json_response({"error": {"message": _NOT_ROUTED}}, 400)


_NO_PREFILL = ("prefill_tokens_per_s", "prefill_batch_ms", "attention_ms_per_1k_x_1k")
"""Costs that the decode engine does not have."""


def _decode_engine(config: SimConfig) -> Engine:
    """An engine that takes prompts in without computing them."""
    plain = replace(config, enable_hierarchical_cache=False, hicache_storage_backend=None, faults=())
    return Engine(plain, replace_costs(config.machine(), **dict.fromkeys(_NO_PREFILL, 0.0)))
