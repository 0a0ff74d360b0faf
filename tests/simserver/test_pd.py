"""The disaggregated pair: who answers what, whose tiers, what the transfer costs, and how it is started."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from click.testing import CliRunner

from hicache_bench.errors import MeasureError, UsageError
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.capture import capture_server
from hicache_bench.sglang.scrape import parse_samples, total
from hicache_bench.simserver import __main__ as program
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.pd import PairSettings, start_pair
from hicache_bench.simserver.process import spawn_server
from tests.simserver.client import SMALL, Client, simulated
from tests.simserver.test_process import fetch, gone


class Engine:
    """What `Client` wants of a running server."""

    def __init__(self, url, engine):
        self.url, self.engine = url, engine


@asynccontextmanager
async def pair(transfer_gb_per_s=0.0, **settings):
    """(router, prefill, decode) clients of a pair."""
    config = SimConfig(**{**SMALL, **settings})
    async with await start_pair(config, settings=PairSettings(transfer_gb_per_s=transfer_gb_per_s)) as running:
        async with aiohttp.ClientSession() as session:
            yield (Client(session, Engine(running.url, running.pair)),
                   Client(session, Engine(running.prefill_url, running.pair.prefill)),
                   Client(session, Engine(running.decode_url, running.pair.decode)))


def tiers(answer):
    details = answer["meta_info"]["cached_tokens_details"]
    return details and tuple(details[tier] for tier in ("device", "host", "storage"))


async def test_the_router_takes_generate_and_flush_only():
    async with pair() as (router, prefill, decode):
        assert (await router.generate(100))["meta_info"]["completion_tokens"] == 8
        for method, path in [("GET", "/server_info"), ("GET", "/metrics"), ("POST", "/tokenize"),
                             ("POST", "/hicache/storage-backend/clear"), ("POST", "/v1/chat/completions"),
                             ("POST", "/v1/completions"), ("POST", "/abort_request"), ("GET", "/v1/models")]:
            assert (await router.call(method, path, {}))[0] == 404, path
        for path in ("/health", "/flush_cache"):
            assert (await router.call("GET", path))[0] == 200
        for engine in (prefill, decode):
            for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
                status, answer = await engine.post(path, {"text": "a", "prompt": "a"})
                assert status == 400
                assert "bootstrap room" in answer["error"]["message"]
            assert (await engine.post("/tokenize", {"prompt": "a b"}))[1]["count"] == 3


async def test_the_engines_say_what_they_are():
    async with pair(costs="toy") as (router, prefill, decode):
        first, second = [(await one.call("GET", "/server_info"))[1] for one in (prefill, decode)]
        assert [one["disaggregation_mode"] for one in (first, second)] == ["prefill", "decode"]
        assert [one["internal_states"][0]["disaggregation_mode"] for one in (first, second)] == ["prefill", "decode"]
        assert [one["enable_hierarchical_cache"] for one in (first, second)] == [True, False]
        assert [one["disable_radix_cache"] for one in (first, second)] == [False, True]
        assert [one["simulated_machine"]["prefill_tokens_per_s"] for one in (first, second)] == [40_000, 0]
        assert (await decode.call("GET", "/model_info"))[1]["disaggregation_mode"] == "decode"
        captured = await capture_server(Admin(router.session, router.url, prefill.url), {})
        assert (captured.flags["disaggregation_mode"], captured.page_size) == ("prefill", 16)


async def test_the_prefill_cache_decides_the_tiers_and_a_flush_empties_both():
    async with pair() as (router, prefill, decode), simulated() as single:
        cold, warm = await router.generate(507), await router.generate(507)
        assert (tiers(cold), tiers(warm)) == (None, (496, 0, 0))
        assert cold["output_ids"] == warm["output_ids"] == (await single.generate(507))["output_ids"]
        assert prefill.engine.core.cache.device_used_tokens > 0
        assert decode.engine.core.cache.device_used_tokens > 0
        assert (await router.call("POST", "/flush_cache"))[0] == 200
        assert prefill.engine.core.cache.device_used_tokens == decode.engine.core.cache.device_used_tokens == 0
        assert tiers(await router.generate(507)) == (0, 0, 496)
        await router.call("POST", "/flush_cache")
        await prefill.call("POST", "/hicache/storage-backend/clear")
        assert tiers(await router.generate(507)) is None


async def test_only_prompts_stay_in_the_prefill_cache():
    """A second turn that repeats the output finds the first turn's prompt, not what the decode engine wrote."""
    async with pair() as (router, *_), simulated() as single:
        ids = list(range(160))
        for server, cached in ((router, 160), (single, 160 + 48)):
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
            output = (await server.post("/generate", body))[1]["output_ids"]
            body["input_ids"] = [*ids, *output, 7, 8]
            assert (await server.post("/generate", body))[1]["meta_info"]["cached_tokens"] == cached


async def test_tiers_are_those_of_one_engine_that_only_prefills():
    draw = random.Random(3)
    sequence = [(draw.randrange(12), draw.randrange(30, 600)) for _ in range(60)]
    async with pair() as (router, *_), simulated() as single:
        seen = [tiers(await router.generate(n, name)) for name, n in sequence]
        assert seen == [tiers(await single.generate(n, name, output=1)) for name, n in sequence]
    assert {tier for one in seen if one for tier, n in enumerate(one) if n} >= {0, 1}


async def test_each_engine_counts_its_own_part():
    async with pair() as (router, prefill, decode):
        for _ in range(2):
            await router.generate(507)
        pages = [parse_samples((await one.call("GET", "/metrics"))[1]) for one in (prefill, decode)]
        assert [total(page, "sglang:generation_tokens_total") for page in pages] == [2, 16]
        assert [total(page, "sglang:prompt_tokens_total") for page in pages] == [1014, 1014]
        assert [total(page, "sglang:cached_tokens_total", cache_source="device") for page in pages] == [496, 0]


async def test_streams_and_batches_go_through_both():
    async with pair() as (router, *_):
        whole = await router.generate(300)
        body = {"input_ids": [10_000 + i for i in range(300)], "sampling_params": {"max_new_tokens": 8}}
        events = await router.events("/generate", body)
        assert [event["meta_info"]["completion_tokens"] for event in events] == list(range(1, 9))
        assert events[-1]["text"] == whole["text"]
        assert events[0]["meta_info"]["cached_tokens"] == 288
        assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
        both = (await router.post("/generate", {"text": ["one", "two"], "sampling_params": {"max_new_tokens": 3}}))[1]
        assert [item["meta_info"]["completion_tokens"] for item in both] == [3, 3]
        none = (await router.generate(40, output=0))["meta_info"]
        assert (none["completion_tokens"], none["finish_reason"]["type"]) == (0, "length")
        status, answer = await router.post("/generate", {"input_ids": list(range(9000))})
        assert (status, "longer than" in answer["error"]["message"]) == (400, True)


async def test_the_transfer_takes_its_time_one_after_another():
    async with pair(transfer_gb_per_s=2e-6) as (router, *_):  # 600 tokens: 608 bytes at 2000 a second
        meta = (await router.generate(600))["meta_info"]
        assert 0.3 <= meta["first_token_latency"] <= meta["e2e_latency"]
        started = time.monotonic()
        await asyncio.gather(*(router.generate(600, name) for name in (2, 3)))
        assert time.monotonic() - started >= 0.6
    async with pair(transfer_gb_per_s=1e-7, speed=100.0) as (router, *_):
        assert 0.06 <= (await router.generate(600))["meta_info"]["first_token_latency"] < 3


async def test_a_flush_waits_for_what_is_between_the_engines():
    async with pair(transfer_gb_per_s=4e-7) as (router, prefill, _):
        under_way = asyncio.create_task(router.generate(600))
        while not prefill.engine.requests[False]:
            await asyncio.sleep(0.01)
        assert await router.call("POST", "/flush_cache") == (400, "Flush cache failed.\n")
        assert (await router.call("POST", "/flush_cache?timeout=20"))[0] == 200
        assert under_way.done()
        assert tiers(await under_way) is None


async def test_a_client_that_leaves_and_an_abort_end_the_job():
    async with pair(costs="toy", decode_ms=500) as (router, prefill, decode):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(router.generate(300, output=1000), 1)
        assert (await router.call("POST", "/flush_cache?timeout=20"))[0] == 200
        under_way = asyncio.create_task(router.generate(300, output=1000, rid="x1"))
        while not decode.engine.running:
            await asyncio.sleep(0.01)
        await decode.post("/abort_request", {"rid": "x1"})
        assert (await under_way)["meta_info"]["finish_reason"]["type"] == "abort"
    async with pair(costs="toy", prefill_tokens_per_s=100) as (router, prefill, decode):
        under_way = asyncio.create_task(router.generate(300, rid="x2"))
        while not prefill.engine.running:
            await asyncio.sleep(0.01)
        await prefill.post("/abort_request", {"rid": "x2"})
        meta = (await under_way)["meta_info"]
        assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == ("abort", 0)
        assert not decode.engine.requests


async def test_faults_show_through_the_router():
    async with pair(faults=("wrong-text",)) as (router, *_):
        first = await router.generate(600)
        assert (await router.generate(600))["text"] == first["text"]
        await router.call("POST", "/flush_cache")
        again = await router.generate(600)
        assert (tiers(again), again["text"] != first["text"]) == ((0, 0, 592), True)
    async with pair(faults=("lost-details",)) as (router, *_):
        await router.generate(600)
        meta = (await router.generate(600))["meta_info"]
        assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (592, None)
    async with pair(faults=("http-500",)) as (router, *_):
        assert (await router.post("/generate", {"text": "a"}))[0] == 500


async def test_keys_hold_on_all_three():
    async with pair(api_key="k") as clients:
        for client in clients:
            assert (await client.call("POST", "/flush_cache"))[0] == 401
            assert (await client.call("POST", "/flush_cache", key="k"))[0] == 200


def free_ports():
    """Two free ports that follow each other."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            first = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", first + 1))
            except (OSError, OverflowError):
                continue
            return first, first + 1
    raise AssertionError("no two free ports")


async def test_ports():
    asked, _ = free_ports()
    async with await start_pair(SimConfig(), asked) as running:
        ports = [int(url.rpartition(":")[2]) for url in (running.url, running.prefill_url, running.decode_url)]
        assert ports[0] == asked
        assert len(set(ports)) == 3
        with pytest.raises(MeasureError, match="cannot listen"):
            await start_pair(SimConfig(), settings=PairSettings(decode_port=ports[2]))
    asked, kept = free_ports()
    async with await start_pair(SimConfig(), asked, PairSettings(decode_port=kept)) as running:
        assert running.decode_url.endswith(f":{kept}")
        assert running.prefill_url != running.decode_url


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_bandwidth_out_of_range(value):
    with pytest.raises(UsageError, match=r"transfer_gb_per_s is .*; allowed: 0 or more"):
        PairSettings(transfer_gb_per_s=value)


def test_a_pair_in_a_process_of_its_own():
    with spawn_server(SimConfig(page_size=32, api_key="k1"), pd=True) as server:
        assert fetch(f"{server.url}/health")[0] == 200
        assert '"disaggregation_mode":"prefill"' in fetch(f"{server.prefill_url}/server_info", "k1")[1]
        assert '"disaggregation_mode":"decode"' in fetch(f"{server.decode_url}/server_info", "k1")[1]
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(MeasureError, match="cannot listen"):
            spawn_server(SimConfig(), port, pd=True)
    assert gone(server.pid)


@pytest.mark.parametrize("option", ["--prefill-port", "--decode-port", "--transfer-gb-per-s"])
def test_options_of_a_pair_need_one(option):
    told = CliRunner().invoke(program.command, [option, "1"])
    assert (told.exit_code, f"{option} goes with --pd only" in told.output) == (2, True)


@pytest.mark.parametrize(("arguments", "words"), [
    ([], None), (["--host", "127.0.0.5"], None), (["--host", "localhost"], None), (["--host", "::1"], None),
    (["--host", "0.0.0.0"], "nothing protects it without --api-key"),
    (["--host", "some-host", "--api-key", "k7"], "only --api-key protects it"),
])
def test_a_server_that_others_can_reach_says_so(monkeypatch, arguments, words):
    seen = []

    def not_run(main):
        seen.append(main)
        main.close()

    monkeypatch.setattr(program, "_run_loop", not_run)
    told = CliRunner().invoke(program.command, arguments)
    assert (told.exit_code, len(seen)) == (0, 1)
    assert "k7" not in told.output
    if words is None:
        assert told.output == ""
    else:
        assert "warning" in told.output
        assert words in told.output
