from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from hicache_bench.errors import ServerError
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.auth import Keys
from tests.scripted import ScriptedServer, json_answer
from tests.sglang.captured import NOT_FOUND, raw, real_server, text_answer


@asynccontextmanager
async def admin_of(script, keys=None, headers=()):
    async with ScriptedServer(script) as server, aiohttp.ClientSession() as session:
        yield Admin(session, server.url, None, keys, headers), server


async def test_calls_against_the_captured_server():
    async with admin_of(real_server, Keys(admin="adminkey")) as (admin, server):
        flushed = await admin.flush(timeout_s=5)
        assert flushed.attempts == 1
        assert flushed.message.startswith("Cache flushed.")
        cleared = await admin.clear_storage()
        assert cleared.url.endswith("/hicache/storage-backend/clear")
        assert (await admin.storage_status())["hicache_storage_backend"] == "file"
        assert await admin.health() is True
        assert (await admin.loads())["loads"][0]["max_total_num_tokens"] == 2048
        assert await admin.tokenize(["hello world"]) == [[281, 78, 331, 1558, 505]]
    by_path = {urlsplit(seen.path).path: seen for seen in server.seen}
    lower = {name.lower(): value for name, value in by_path["/flush_cache"].headers.items()}
    assert lower["authorization"] == "Bearer adminkey"
    assert "authorization" not in {name.lower() for name in by_path["/tokenize"].headers}
    assert by_path["/tokenize"].json() == {"prompt": ["hello world"], "add_special_tokens": False}


async def test_flush_retries_a_busy_server_and_tells_it_to_wait():
    answers = [text_answer("Flush cache failed.\n", 400),
               text_answer("Timed out waiting for idle state.\n", 400),
               text_answer("Another flush_cache is already in progress.\n", 400), text_answer("Cache flushed.\n")]
    async with admin_of(lambda seen: answers.pop(0)) as (admin, server):
        assert (await admin.flush(timeout_s=20)).attempts == 4
    timeouts = [float(parse_qs(urlsplit(seen.path).query)["timeout"][0]) for seen in server.seen]
    assert timeouts[0] == 20
    assert timeouts == sorted(timeouts, reverse=True)


async def test_flush_gives_up_at_the_deadline():
    async with admin_of(lambda seen: text_answer("Flush cache failed.\n", 400)) as (admin, _):
        with pytest.raises(ServerError, match=r"not idle within 0.3 s") as caught:
            await admin.flush(timeout_s=0.3)
        assert caught.value.status == 400


async def test_flush_does_not_retry_a_refusal():
    async with admin_of(lambda seen: [raw("flush_cache_noauth")]) as (admin, server):
        with pytest.raises(ServerError, match="HICACHE_BENCH_ADMIN_KEY") as caught:
            await admin.flush(timeout_s=5)
        assert caught.value.status == 401
    assert len(server.seen) == 1


async def test_a_router_without_flush_sends_us_to_the_engine():
    async with ScriptedServer(lambda seen: NOT_FOUND) as router, ScriptedServer(real_server) as engine:
        async with aiohttp.ClientSession() as session:
            admin = Admin(session, router.url, engine.url)
            flushed = await admin.flush(timeout_s=5)
            assert flushed.url.startswith(engine.url)
            await admin.clear_storage()
            await admin.tokenize(["hello world"])
    assert [urlsplit(seen.path).path for seen in router.seen] == ["/flush_cache"]


async def test_clear_tries_the_old_name():
    def script(seen):
        old = urlsplit(seen.path).path == "/clear_hicache_storage_backend"
        return text_answer("cleared") if old else [raw("hicache_clear_v1")]

    async with admin_of(script) as (admin, server):
        assert (await admin.clear_storage()).url.endswith("/clear_hicache_storage_backend")
    assert [seen.path for seen in server.seen] == ["/hicache/storage-backend/clear",
                                                   "/clear_hicache_storage_backend"]


async def test_clear_without_any_route_and_with_a_refusal():
    async with admin_of(lambda seen: NOT_FOUND) as (admin, server):
        with pytest.raises(ServerError, match="--admin-url") as caught:
            await admin.clear_storage()
        assert caught.value.status == 404
    assert len(server.seen) == 3
    async with admin_of(lambda seen: text_answer("no hicache", 400)) as (admin, _):
        with pytest.raises(ServerError, match="400: no hicache"):
            await admin.clear_storage()


@pytest.mark.parametrize("answer", [
    NOT_FOUND, json_answer({"error": "This endpoint requires admin API key, but …"}, 400),
])
async def test_unknown_storage_status_is_none(answer):
    async with admin_of(lambda seen: answer) as (admin, _):
        assert await admin.storage_status() is None


async def test_tokenize_batches_in_order():
    def script(seen):
        prompts = seen.json()["prompt"]
        return json_answer({"tokens": [[int(text)] for text in prompts], "count": [1] * len(prompts)})

    async with admin_of(script) as (admin, server):
        assert await admin.tokenize([str(i) for i in range(1200)]) == [[i] for i in range(1200)]
        assert await admin.tokenize([]) == []
    assert [len(seen.json()["prompt"]) for seen in server.seen] == [512, 512, 176]


@pytest.mark.parametrize("reply", [
    {"tokens": [[1]]}, {"tokens": [["x"], [1]]}, {"tokens": None}, {}, [1], {"tokens": [1, 2]},
])
async def test_tokenize_refuses_other_shapes(reply):
    async with admin_of(lambda seen: json_answer(reply)) as (admin, _):
        with pytest.raises(ServerError, match="answered no"):
            await admin.tokenize(["a", "b"])


async def test_answers_that_are_none():
    async with admin_of(lambda seen: text_answer("<html>")) as (admin, _):
        with pytest.raises(ServerError, match="not JSON"):
            await admin.loads()
    async with admin_of(lambda seen: ["reset"]) as (admin, _):
        with pytest.raises(ServerError) as caught:
            await admin.health()
        assert caught.value.status is None
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ServerError, match=r"refused at http://127.0.0.1:1"):
            await Admin(session, "http://127.0.0.1:1").loads()


async def test_wait_ready():
    answers = [text_answer("", 503), text_answer("", 503), text_answer("")]
    async with admin_of(lambda seen: answers.pop(0)) as (admin, server):
        await admin.wait_ready(10)
    assert len(server.seen) == 3
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ServerError, match=r"not ready within 0.4 s: connection refused"):
            await Admin(session, "http://127.0.0.1:1").wait_ready(0.4)
