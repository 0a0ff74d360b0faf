"""Reset and prime against a scripted server whose cache can be told to misbehave."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
import pytest

from hicache_bench.errors import MeasureError, ServerError
from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.phases import Lab, prime, reset
from hicache_bench.records import Prompt, Segment, ServerInfo
from hicache_bench.sglang.admin import Admin
from hicache_bench.workload.tokens import TokenSpace
from tests.scripted import ScriptedServer, json_answer, native

PAGE = 16
INFO = ServerInfo("simulated", page_size=PAGE, max_request_tokens=4096, hicache=True, storage_backend="file")


@dataclass
class Cache:
    """Answers like SGLang: prompts seen before are cached, until flushed and cleared. Each flag is one fault."""

    flush_works: bool = True
    clear_works: bool = True
    details: bool = True
    report: bool = True
    commit_lag: int = 1
    floor: int = PAGE
    clear_status: int = 200
    device: dict[tuple, int] = field(default_factory=dict)
    storage: set[tuple] = field(default_factory=set)

    def __call__(self, seen):
        if seen.path.startswith("/flush_cache"):
            if self.flush_works:
                self.device.clear()
            return json_answer("flushed")
        if "clear" in seen.path:
            if self.clear_works:
                self.storage.clear()
            return json_answer("cleared", self.clear_status)
        return json_answer(self._generate(seen.json()))

    def _generate(self, body):
        ids = tuple(body["input_ids"])
        cached = (len(ids) - 1) // self.floor * self.floor
        on_device, stored = self.device.get(ids, 0) >= self.commit_lag, ids in self.storage
        self.device[ids] = self.device.get(ids, 0) + 1
        if self.device[ids] >= self.commit_lag:
            self.storage.add(ids)
        tiers = {"device": cached if on_device else 0, "host": 0, "storage": 0 if on_device else cached * stored}
        answer = native("x", 1, finish="length", prompt=len(ids), cached=sum(tiers.values()),
                        details=tiers if self.details and any(tiers.values()) else None)
        if not self.report:
            del answer["meta_info"]["cached_tokens"]
        return answer


@asynccontextmanager
async def lab(cache: Cache, info: ServerInfo = INFO):
    events: list[tuple[str, dict]] = []
    settles: list[int] = []

    async def settle():
        settles.append(1)

    async with ScriptedServer(cache) as server, aiohttp.ClientSession() as session:
        transport = AiohttpTransport(server.url, {})
        await transport.open()
        rows = []
        builder = RequestBuilder(TokenSpace.random_ids(10, 1000, "n"), RequestOptions(streamed=False))
        made = Lab(Admin(session, server.url), transport, builder, lambda row, *_: rows.append(row), info, "n",
                   lambda kind, **more: events.append((kind, more)), settle)
        try:
            yield made, rows, events, settles
        finally:
            await transport.close()


def paths(events):
    return [kind for kind, _ in events]


async def test_flush_and_clear_that_work_are_a_cold_start_with_a_row_for_every_probe():
    async with lab(Cache()) as (made, rows, events, settles):
        found = await reset(made, flush=True, clear_storage=True)
    assert (found.flushed, found.storage_cleared, found.verified, found.attempts) == (True, True, True, 1)
    assert found.state == "cold"
    assert paths(events) == ["flush", "clear_storage", "reset_probe"]
    assert {row.phase for row in rows} == {"probe"}
    assert settles, "backups must have come to rest before the flush"


async def test_storage_that_is_kept_is_not_called_cold():
    async with lab(Cache()) as (made, _, events, _):
        found = await reset(made, flush=True, clear_storage=False)
    assert (found.verified, found.state) == (True, "cold_l1_l2")
    assert paths(events) == ["flush", "reset_probe"]
    assert events[-1][1]["storage"] > 0


async def test_a_server_without_storage_is_cold_after_a_flush():
    async with lab(Cache()) as (made, _, _, _):
        made.info = replace(INFO, storage_backend=None)
        cache_without_storage = await reset(made, flush=True, clear_storage=False, storage_absent=True)
    assert cache_without_storage.state == "cold"


async def test_a_clear_that_answers_200_and_does_nothing_is_repeated_then_told(monkeypatch):
    monkeypatch.setattr("hicache_bench.phases.CLEAR_DEADLINE_NS", 10**9)
    async with lab(Cache(clear_works=False)) as (made, _, events, _):
        found = await reset(made, flush=True, clear_storage=True)
    assert found.verified is False
    assert found.state == "as_found"
    assert found.attempts >= 2
    assert "still cached" in found.reason
    assert events[-1][1]["storage"] > 0


async def test_a_flush_that_does_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr("hicache_bench.phases.CLEAR_DEADLINE_NS", 0)
    async with lab(Cache(flush_works=False)) as (made, _, _, _):
        found = await reset(made, flush=True, clear_storage=False)
    assert (found.verified, found.state) == (False, "as_found")
    assert "still on the device" in found.reason


@pytest.mark.parametrize(("fault", "says"), [
    ({"report": False}, "does not report cached tokens"),
    ({"commit_lag": 99}, "never became resident"),
])
async def test_what_cannot_be_seen_is_unproven_not_cold(fault, says):
    async with lab(Cache(**fault)) as (made, _, _, _):
        found = await reset(made, flush=True, clear_storage=True)
    assert (found.verified, found.state) == (None, "as_found")
    assert says in found.reason


async def test_without_tier_details_a_kept_storage_proves_nothing():
    async with lab(Cache(details=False)) as (made, _, _, _):
        found = await reset(made, flush=True, clear_storage=False)
    assert (found.verified, found.state) == (None, "as_found")
    assert "from which tier" in found.reason


async def test_a_refused_clear_is_an_error_with_its_status():
    async with lab(Cache(clear_status=401)) as (made, _, _, _):
        with pytest.raises(ServerError) as caught:
            await reset(made, flush=True, clear_storage=True)
    assert caught.value.status == 401


async def test_nothing_asked_for_sends_nothing():
    async with lab(Cache()) as (made, rows, events, _):
        found = await reset(made, flush=False, clear_storage=False)
    assert (found.flushed, found.verified, found.state) == (None, None, "as_found")
    assert not rows
    assert not events


def heads(count, tokens=65):
    return [Prompt((Segment(f"g{i}", tokens - 1), Segment(f"g{i}/prime", 1)), n_tokens=tokens) for i in range(count)]


async def test_prime_asks_until_resident_and_counts():
    async with lab(Cache(commit_lag=2)) as (made, rows, events, _):
        counts = await prime(made, heads(5), max_attempts=4)
    assert counts == {"prompts": 5, "resident": 5, "unknown": 0, "requests": 15}
    assert {row.phase for row in rows} == {"prime"}
    assert len(rows) == 15
    assert events == [("prime", counts)]


async def test_prime_takes_a_coarser_grid_that_repeats_itself_as_resident():
    async with lab(Cache(floor=48)) as (made, _, _, _):
        counts = await prime(made, heads(1), max_attempts=6)
    assert (counts["resident"], counts["requests"]) == (1, 3)


async def test_prime_gives_up_after_its_attempts_and_says_so():
    async with lab(Cache(commit_lag=9)) as (made, _, _, _):
        counts = await prime(made, heads(2), max_attempts=2)
    assert counts == {"prompts": 2, "resident": 0, "unknown": 0, "requests": 4}


async def test_prime_on_a_server_that_does_not_report_is_unknown():
    async with lab(Cache(report=False)) as (made, _, _, _):
        counts = await prime(made, heads(2), max_attempts=3)
    assert counts == {"prompts": 2, "resident": 0, "unknown": 2, "requests": 2}


async def test_a_failed_priming_request_is_an_error():
    broken = Cache()
    broken._generate = lambda body: {"error": {"message": "no"}}
    async with lab(broken) as (made, rows, _, _):
        with pytest.raises(MeasureError, match="priming failed"):
            await prime(made, heads(3), max_attempts=1)
    assert rows, "the failed request has its row"
