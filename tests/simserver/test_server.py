import asyncio
import json
import re
import time
from itertools import pairwise

import aiohttp
import pytest

from hicache_bench.errors import MeasureError, UsageError
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.auth import Keys
from hicache_bench.sglang.capture import capture_server
from hicache_bench.sglang.scrape import parse_samples, scrape, total
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.server import start
from tests.sglang.captured import EXTRA, body, obj
from tests.simserver.client import simulated

TEXT = "The quick brown fox jumps over the lazy dog. " * 20


def keys(value):
    """The key structure of JSON data, values left out."""
    if isinstance(value, dict):
        return {name: keys(item) for name, item in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value and isinstance(value[0], dict) else []
    return None


def events(name, folder=None):
    data = body(name, folder) if folder else body(name)
    return [json.loads(part.removeprefix(b"data: ")) for part in data.split(b"\n\n")[:-2]]


async def test_generate_answers_like_the_real_server():
    async with simulated(hicache_storage_backend="file") as sim:
        cold, warm = await sim.generate(507), await sim.generate(507)
        assert keys(cold) == keys(obj("generate_1_cold"))
        assert keys(warm) == keys(obj("generate_2_warm_device"))
        assert warm["meta_info"]["cached_tokens_details"] == {
            "device": 496, "host": 0, "storage": 0, "storage_backend": "HiCacheFile"}
        assert (cold["text"], cold["output_ids"]) == (warm["text"], warm["output_ids"])
        assert warm["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
        batch = (await sim.post("/generate", {"text": [TEXT, "other"], "sampling_params": {"max_new_tokens": 3}}))[1]
        assert [item["meta_info"]["completion_tokens"] for item in batch] == [3, 3]
        one = (await sim.post("/generate", {"text": [TEXT]}))[1]
        assert isinstance(one, list)
        twice = (await sim.post("/generate", {"text": "a b", "sampling_params": {"n": 2, "max_new_tokens": 1}}))[1]
        assert len(twice) == 2


async def test_the_measured_tier_sequence():
    """README of the real server: cold, device, six fillers, host, flush, storage, device."""
    async with simulated() as sim:
        async def tiers(name=0):
            details = (await sim.generate(507, name=name))["meta_info"]["cached_tokens_details"]
            return details and tuple(details[tier] for tier in ("device", "host", "storage"))

        seen = [await tiers(), await tiers()]
        for name in range(1, 7):
            await tiers(name)
        seen.append(await tiers())
        assert (await sim.call("POST", "/flush_cache"))[0] == 200
        seen += [await tiers(), await tiers()]
        await sim.call("POST", "/flush_cache")
        await sim.call("POST", "/hicache/storage-backend/clear")
        seen.append(await tiers())
        assert seen == [None, (496, 0, 0), (0, 496, 0), (0, 0, 496), (496, 0, 0), None]
        page = parse_samples((await sim.call("GET", "/metrics"))[1])
        assert total(page, "sglang:load_back_tokens_total") == 992
        assert total(page, "sglang:prefetched_tokens_total") == 496
        by_tier = [total(page, "sglang:cached_tokens_total", cache_source=tier)
                   for tier in ("device", "host", "storage")]
        assert by_tier == [992, 496, 496]


@pytest.mark.parametrize("incremental", [False, True])
async def test_generate_stream(incremental):
    async with simulated(incremental_streaming_output=incremental, hicache_storage_backend="file") as sim:
        whole = await sim.generate(507)
        got = await sim.events("/generate", {"input_ids": [10_000 + i for i in range(507)],
                                             "sampling_params": {"max_new_tokens": 8}})
    assert [item["meta_info"]["completion_tokens"] for item in got] == list(range(1, 9))
    texts = [item["text"] for item in got]
    ids = [item["output_ids"] for item in got]
    if incremental:
        assert ("".join(texts), [token for part in ids for token in part]) == (whole["text"], whole["output_ids"])
    else:
        assert (texts[-1], ids[-1]) == (whole["text"], whole["output_ids"])
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    real = events("generate_stream_sse")
    assert [keys(item) for item in (got[0], got[1], got[-1])] == [keys(real[i]) for i in (0, 1, -1)]


async def test_stream_interval_and_batch_stream():
    async with simulated(stream_interval=3) as sim:
        got = await sim.events("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 8}})
        for index in (0, 1):
            mine = [item for item in got if item["index"] == index]
            assert [item["meta_info"]["completion_tokens"] for item in mine] == [3, 6, 8]
        none = await sim.events("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 0}})
        assert [(item["text"], item["meta_info"]["completion_tokens"]) for item in none] == [("", 0)]


async def test_a_longer_answer_begins_with_the_shorter_one_and_can_be_sent_back():
    async with simulated() as sim:
        short, long = await sim.generate(100, output=5), await sim.generate(100, output=40)
        assert long["output_ids"][:5] == short["output_ids"]
        assert long["text"].startswith(short["text"])
        assert (await sim.generate(100, name=2))["text"] != short["text"]
        back = (await sim.post("/tokenize", {"prompt": long["text"], "add_special_tokens": False}))[1]
        assert back["tokens"] == long["output_ids"]


@pytest.mark.parametrize("chat", [True, False])
async def test_openai_answers(chat):
    path, prompt = (("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}) if chat
                    else ("/v1/completions", {"prompt": TEXT}))
    name = "chat" if chat else "completions"
    async with simulated(hicache_storage_backend="file") as sim:
        asked = {**prompt, "model": "m", "max_tokens": 3, "temperature": 0}
        plain = (await sim.post(path, asked))[1]
        assert keys(plain) == keys(obj(f"{name}_1"))
        detailed = (await sim.post(path, {**asked, "return_cached_tokens_details": True}))[1]
        assert keys(detailed) == keys(obj(f"{name}_sglext_2", EXTRA))
        assert detailed["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert detailed["usage"]["completion_tokens"] == 3
        real = events(f"{name}_sglext_stream_2", EXTRA)
        got = await sim.events(path, {**asked, "return_cached_tokens_details": True,
                                      "stream_options": {"include_usage": True}})
        assert [keys(item) for item in got] == [keys(item) for item in real]
        assert [item["choices"][0]["finish_reason"] for item in got if item["choices"]] == [
            item["choices"][0]["finish_reason"] for item in real if item["choices"]]
        bare = await sim.events(path, asked)
        assert all(item["choices"] for item in bare)
    parts = [item["choices"][0] for item in bare]
    text = "".join(part["delta"].get("content") or "" if chat else part["text"] for part in parts)
    assert text == (plain["choices"][0]["message"]["content"] if chat else plain["choices"][0]["text"])


async def test_continuous_usage_and_no_cache_report():
    async with simulated(enable_cache_report=False) as sim:
        got = await sim.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 4,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    real = events("chat_stream_continuous_usage")
    assert [set(item) for item in got] == [set(item) for item in real]
    assert [item["usage"]["completion_tokens"] for item in got if "usage" in item] == [1, 2, 3, 4, 4]
    assert got[-1]["usage"]["prompt_tokens_details"] is None


async def test_errors_like_the_real_server():
    long = {"input_ids": [5] * 9000}
    async with simulated() as sim:
        assert await sim.post("/generate", long) == (400, obj("generate_error_too_long"))
        assert await sim.events("/generate", long) == events("generate_stream_error", EXTRA)
        assert await sim.post("/generate", {"input_ids": [5] * 2045}) == (
            400, obj("generate_error_bigger_than_pool", EXTRA))
        status, answer = await sim.post("/generate", {"text": 5})
        assert (status, keys(answer)) == (400, keys(obj("generate_error_bad_json_type")))
        for path in ("/v1/completions", "/v1/chat/completions"):
            asked = {"prompt": [5] * 9000, "messages": [{"role": "user", "content": "é" * 9000}], "stream": True}
            status, answer = await sim.post(path, asked)
            assert (status, keys(answer)) == (400, keys(obj("chat_error_too_long", EXTRA)))
        async with sim.session.post(sim.url + "/generate", data=b"{nonsense") as response:
            assert response.status == 400
        assert await sim.call("GET", "/get_load") == (404, obj("get_load"))
        assert (await sim.call("GET", "/generate"))[0] == 405


@pytest.mark.parametrize("bad", [
    {}, {"text": "a", "input_ids": [1]}, {"input_ids": ["a"]}, {"input_ids": [True]}, {"input_ids": [-1]},
    {"input_ids": [2**32]}, {"input_ids": []}, {"text": ""}, {"text": []}, {"text": "a", "routed_dp_rank": 1},
    {"text": "a", "sampling_params": {"max_new_tokens": -1}}, {"text": "a", "sampling_params": [{}, {}]},
    {"text": "a", "sampling_params": {"n": 0}}, {"text": "a", "sampling_params": {"max_new_tokens": 9000}},
])
async def test_bad_requests_are_400(bad):
    async with simulated() as sim:
        assert (await sim.post("/generate", bad))[0] == 400
        assert (await sim.generate(4, routed_dp_rank=0))["meta_info"]["dp_rank"] is None


async def test_output_is_cut_to_the_pool():
    """generate_error_prompt_plus_output_over_pool.http: 1500 in, 2000 asked, 527 out of a pool of 2048."""
    async with simulated() as sim:
        answer = await sim.generate(1500, output=2000)
        assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 527


async def test_namespaces():
    async with simulated() as sim:
        await sim.generate(100, extra_key="a")
        for other in ({}, {"extra_key": "b"}, {"cache_salt": "a"}):
            assert (await sim.generate(100, output=1, **other))["meta_info"]["cached_tokens"] == 0
        assert (await sim.generate(100, extra_key="a"))["meta_info"]["cached_tokens"] == 96
        assert (await sim.generate(100, return_logprob=True, logprob_start_len=0))["meta_info"]["cached_tokens"] == 0


async def test_tokenizer_routes():
    async with simulated() as sim:
        for path in ("/tokenize", "/v1/tokenize"):
            status, one = await sim.post(path, {"prompt": "hello the world"})
            assert (status, keys(one)) == (200, keys(obj("tokenize")))
            assert one["count"] == len(one["tokens"])
            many = (await sim.post(path, {"prompt": ["a", "the x"]}))[1]
            assert many["count"] == [len(ids) for ids in many["tokens"]]
        assert (await sim.post("/detokenize", {"tokens": one["tokens"]}))[1] == {"text": "hello the world"}
        assert (await sim.post("/detokenize", {"tokens": many["tokens"]}))[1] == {"text": ["a", "the x"]}
        for bad in ({}, {"prompt": [1]}, {"messages": []}):
            assert (await sim.post("/tokenize", bad))[0] == 400
        for bad in ({}, {"tokens": ["a"]}):
            assert (await sim.post("/detokenize", bad))[0] == 400


async def test_information_routes_keep_the_real_names():
    async with simulated(admin_api_key="k2") as sim:
        for path, name in (("/server_info", "server_info"), ("/get_server_info", "server_info"),
                           ("/model_info", "model_info"), ("/v1/loads", "v1_loads")):
            status, answer = await sim.call("GET", path)
            extra = set(answer) - set(obj(name))
            assert status == 200
            assert extra <= {"hicache_bench_simulated", "simulated_machine", "vocab_size"}
        assert keys((await sim.call("GET", "/v1/models"))[1]) == keys(obj("v1_models"))
        assert keys((await sim.call("GET", "/hicache/storage-backend", key="k2"))[1]) == keys(
            obj("hicache_storage_status"))
        loads = (await sim.call("GET", "/v1/loads"))[1]["loads"][0]
        assert set(loads) <= set(obj("v1_loads")["loads"][0])
        for path in ("/health", "/health_generate", "/ready"):
            assert await sim.call("GET", path) == (200, "")
        assert "k2" not in json.dumps((await sim.call("GET", "/server_info"))[1])


async def test_metrics_have_the_real_names_types_and_labels():
    def shape(samples):
        return {(s.name, s.kind, frozenset(s.labels)) for s in samples}

    real = shape(parse_samples(body("metrics").decode()))
    async with simulated() as sim:
        await sim.generate(100)
        mine = shape(parse_samples((await sim.call("GET", "/metrics"))[1]))
    own = {item for item in mine - real if "num_aborted_requests_total" not in item[0]}
    assert own == set()
    async with simulated(enable_metrics=False) as sim:
        assert (await sim.call("GET", "/metrics"))[0] == 404
        assert "queue_time" not in (await sim.generate(20))["meta_info"]


@pytest.mark.parametrize(("api", "admin", "key", "generate", "flush"), [
    (None, None, None, 200, 200),
    ("k1", None, None, 401, 401), ("k1", None, "k1", 200, 200), ("k1", None, "x", 401, 401),
    (None, "k2", None, 200, 401), (None, "k2", "k2", 200, 200),
    ("k1", "k2", "k1", 200, 401), ("k1", "k2", "k2", 401, 200),
])
async def test_keys(api, admin, key, generate, flush):
    async with simulated(api_key=api, admin_api_key=admin) as sim:
        asked = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
        assert (await sim.call("POST", "/generate", asked, key))[0] == generate
        status, answer = await sim.call("GET", "/flush_cache", key=key)
        assert status == flush
        assert (await sim.call("POST", "/hicache/storage-backend/clear", key=key))[0] == flush
        if status == 401:
            assert answer == obj("flush_cache_noauth")
        assert (await sim.call("GET", "/hicache/storage-backend", key=key))[0] == (
            401 if flush == 401 else 200 if admin else 400)
        assert (await sim.call("GET", "/health"))[0] == (await sim.call("GET", "/metrics"))[0] == 200


async def test_flush_needs_an_idle_server():
    async with simulated(decode_ms=20) as sim:
        running = asyncio.create_task(sim.generate(50, output=20))
        while not sim.engine.running:
            await asyncio.sleep(0.005)
        assert await sim.call("POST", "/flush_cache") == (400, "Flush cache failed.\n")
        assert (await sim.call("POST", "/flush_cache?timeout=0.05"))[0] == 400
        assert (await sim.call("POST", "/flush_cache?timeout=20"))[0] == 200
        assert running.done() or await running
        assert (await sim.call("POST", "/flush_cache?timeout=-1"))[0] == 422
        assert sim.engine.core.cache.device_used_tokens == 0


async def test_clear_answers_200_with_hicache_and_no_storage():
    async with simulated(hicache_storage_backend=None) as sim:
        assert await sim.call("POST", "/hicache/storage-backend/clear") == (200, body("hicache_clear_v2").decode())
        await sim.generate(100)
        assert set((await sim.generate(100))["meta_info"]["cached_tokens_details"]) == {"device", "host"}
    async with simulated(enable_hierarchical_cache=False) as sim:
        assert (await sim.call("POST", "/hicache/storage-backend/clear"))[0] == 400


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_aborts_its_request(streamed):
    async with simulated(decode_ms=50) as sim:
        asked = {"text": "a", "stream": streamed, "sampling_params": {"max_new_tokens": 500}}
        task = asyncio.create_task(sim.post("/generate", asked))
        while not sim.engine.running:
            await asyncio.sleep(0.005)
        task.cancel()
        for _ in range(1000):
            if not sim.engine.running:
                break
            await asyncio.sleep(0.01)
        assert (sim.engine.running, sim.engine.waiting, sim.engine.running_tokens) == (0, 0, 0)
        assert sim.engine.aborted == 1
        assert sim.engine.idle


async def test_pacing_and_the_running_limit():
    async with simulated(decode_ms=10, prefill_tokens_per_s=10_000, max_running_requests=1) as sim:
        started = time.monotonic()
        first, second = await asyncio.gather(sim.generate(1000, output=11), sim.generate(1000, name=2, output=11))
        assert time.monotonic() - started >= 2 * 0.2
        for answer in (first, second):
            assert answer["meta_info"]["e2e_latency"] >= 0.2
        assert max(answer["meta_info"]["queue_time"] for answer in (first, second)) >= 0.15
    async with simulated(decode_ms=10, prefill_tokens_per_s=10_000) as sim:
        answers = await asyncio.gather(*(sim.generate(1000, name=name, output=2) for name in range(3)))
        first_tokens = sorted(answer["meta_info"]["first_token_latency"] for answer in answers)
        assert first_tokens[2] >= 0.29  # prefills take turns


async def test_requests_are_aborted_by_id_and_all_at_once():
    async with simulated(decode_ms=20) as sim:
        tasks = [asyncio.create_task(sim.generate(50, name=name, output=400, rid=f"job-{name}")) for name in range(3)]
        while sim.engine.running < 3:
            await asyncio.sleep(0.005)
        assert (await sim.call("POST", "/abort_request", {"rid": "job-1"}))[0] == 200
        gone = await tasks[1]
        assert gone["meta_info"]["finish_reason"]["type"] == "abort"
        assert gone["meta_info"]["completion_tokens"] < 400
        assert not tasks[0].done()
        assert not tasks[2].done()
        assert (await sim.call("POST", "/abort_request", {"rid": ""}))[0] == 200
        assert (await sim.call("POST", "/abort_request", {"abort_all": True}))[0] == 200
        others = await asyncio.gather(tasks[0], tasks[2])
        assert {answer["meta_info"]["finish_reason"]["type"] for answer in others} == {"abort"}
        assert sim.engine.aborted == 3
        assert (await sim.call("POST", "/abort_request", [1]))[0] == 400


async def test_write_policies_and_load_back_show_in_counters():
    async def backed_up(policy):
        async with simulated(hicache_write_policy=policy) as sim:
            seen = []
            for _ in range(2):
                await sim.generate(160, output=1)
                page = await scrape(sim.session, sim.url + "/metrics")
                seen.append(total(page, "sglang:hicache_backup_tokens_total"))
            return seen

    assert await backed_up("write_through") == [160, 160]
    assert await backed_up("write_through_selective") == [0, 160]
    assert await backed_up("write_back") == [0, 0]


async def test_simulated_time_can_run_faster():
    async with simulated(decode_ms=100, speed=100) as sim:
        started = time.monotonic()
        await sim.generate(50, output=50)
        assert time.monotonic() - started < 4  # 5 simulated seconds


async def test_our_own_client_measures_it():
    async with simulated(admin_api_key="k2", api_key="k1") as sim:
        admin = Admin(sim.session, sim.url, None, Keys("k1", "k2"))
        await admin.wait_ready(5)
        info = await capture_server(admin, await scrape(sim.session, f"{sim.url}/metrics"))
        await admin.flush(5)
        await admin.clear_storage()
        assert await admin.tokenize(["the", "a b"]) == await admin.tokenize(["the"]) + await admin.tokenize(["a b"])
    assert (info.origin, info.page_size, info.device_tokens, info.host_tokens) == ("simulated", 16, 2048, 8208)
    assert (info.max_request_tokens, info.context_length) == (2042, 8192)
    assert (info.hicache, info.storage_backend, info.model) == (True, "sim", "simulated")
    assert re.search("k1|k2", json.dumps(info.raw)) is None


@pytest.mark.parametrize("settings", [
    {"page_size": 0}, {"decode_ms": -1}, {"hicache_ratio": float("nan")}, {"hicache_storage_backend": "tape"},
    {"max_total_tokens": 100, "page_size": 64},
])
def test_settings_are_checked(settings):
    with pytest.raises(UsageError, match=r"allowed|must be|is needed"):
        SimConfig(**settings)


async def test_a_taken_port_is_a_clear_error():
    async with simulated() as sim:
        with pytest.raises(MeasureError, match="cannot listen"):
            await start(SimConfig(), int(sim.url.rpartition(":")[2]))
        assert isinstance(sim.session, aiohttp.ClientSession)
