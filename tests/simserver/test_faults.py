"""Each fault does what its name says, and nothing does without one."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from hicache_bench.errors import UsageError
from hicache_bench.simserver.faults import KINDS, parse_faults
from tests.simserver.client import simulated

PROMPT = {"input_ids": list(range(600)), "stream": True, "sampling_params": {"max_new_tokens": 5}}


async def asked(sim, n=600, **more):
    answer = await sim.generate(n, **more)
    details = answer["meta_info"]["cached_tokens_details"]
    return answer["text"], details and tuple(details[tier] for tier in ("device", "host", "storage"))


async def from_storage(sim, name=1):
    await asked(sim, name=name)
    assert (await sim.call("POST", "/flush_cache?timeout=5"))[0] == 200
    return await asked(sim, name=name)


async def test_a_server_without_faults_restores_the_same_text():
    async with simulated() as sim:
        first = await asked(sim)
        assert first[1] is None
        assert await from_storage(sim) == (first[0], (0, 0, 592))


async def test_wrong_text_comes_only_after_a_restore():
    async with simulated(faults=("wrong-text",)) as sim:
        first, again = await asked(sim), await asked(sim)
        assert again == (first[0], (592, 0, 0))
        text, tiers = await from_storage(sim)
        assert (text != first[0], tiers) == (True, (0, 0, 592))


async def test_lost_storage_and_lost_details():
    async with simulated(faults=("lost-storage",)) as sim:
        assert (await from_storage(sim))[1] is None
    async with simulated(faults=("lost-details",)) as sim:
        await asked(sim)
        answer = await sim.generate(600)
        assert (answer["meta_info"]["cached_tokens"], answer["meta_info"]["cached_tokens_details"]) == (592, None)


@pytest.mark.parametrize(("faults", "kept"), [((), None), (("clear-without-effect",), (0, 0, 592))])
async def test_a_clear_without_effect_answers_200(faults, kept):
    async with simulated(faults=faults) as sim:
        await asked(sim)
        await sim.call("POST", "/flush_cache?timeout=5")
        assert (await sim.call("POST", "/hicache/storage-backend/clear"))[0] == 200
        assert (await asked(sim))[1] == kept


@pytest.mark.parametrize(("faults", "shared"), [((), None), (("salts-leak",), (592, 0, 0))])
async def test_salts(faults, shared):
    async with simulated(faults=faults) as sim:
        await asked(sim, cache_salt="a")
        assert (await asked(sim, cache_salt="b"))[1] == shared
        assert (await asked(sim, cache_salt="a"))[1] == (592, 0, 0)


async def test_slow_storage_takes_its_time():
    async def seconds(*faults):
        async with simulated(costs="toy", faults=faults) as sim:
            await asked(sim)
            assert (await sim.call("POST", "/flush_cache?timeout=10"))[0] == 200
            started = time.monotonic()
            assert (await asked(sim))[1] == (0, 0, 592)
            return time.monotonic() - started

    assert await seconds("slow-storage=50") > await seconds() + 0.3


async def test_500_cut_and_stall():
    async with simulated(faults=("http-500",)) as sim:
        assert (await sim.post("/generate", PROMPT))[0] == 500
        assert (await sim.post("/v1/completions", {"prompt": "a"}))[0] == 500
    async with simulated(faults=("cut",)) as sim:
        with pytest.raises(aiohttp.ClientPayloadError):
            await sim.post("/generate", PROMPT)
    async with simulated(faults=("stall=400ms",)) as sim:
        started = time.monotonic()
        assert (await sim.post("/generate", PROMPT))[0] == 200
        assert time.monotonic() - started >= 0.4


async def test_a_share_is_drawn_the_same_way_each_time():
    async def statuses():
        async with simulated(faults=("http-500@0.3",)) as sim:
            return [(await sim.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}}))[0]
                    for _ in range(60)]

    first, second = await asyncio.gather(statuses(), statuses())
    assert first == second
    assert 5 < first.count(500) < 35


BAD = ["", "boom", "stall=", "stall=5", "cut@2", "cut@0", "cut@x", "cut=3", "cut@", "slow-storage=0.5",
       "slow-storage=x", "salts-leak@0.5", "stall=1s@0.1@0.2"]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_fault_is_named(text):
    with pytest.raises(UsageError, match=r"fault|duration"):
        parse_faults([text])


def test_every_kind_parses():
    found = parse_faults(list(KINDS))
    assert set(found.shares) == set(KINDS)
    assert (found.stall_ns, found.storage_slowdown) == (10**9, 10)
