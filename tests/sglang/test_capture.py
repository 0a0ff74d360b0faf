import json
from urllib.parse import urlsplit

import aiohttp
import pytest

from hicache_bench.errors import ServerError
from hicache_bench.scrub import MASK
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.auth import Keys
from hicache_bench.sglang.capture import capture_server, describe
from hicache_bench.sglang.scrape import parse_samples
from tests.scripted import ScriptedServer, json_answer
from tests.sglang.captured import NOT_FOUND, body, obj, raw, real_server


async def capture(script, metrics=None, keys=None):
    async with ScriptedServer(script) as server, aiohttp.ClientSession() as session:
        return await capture_server(Admin(session, server.url, None, keys), metrics)


async def test_the_real_server():
    info = await capture(real_server, parse_samples(body("metrics").decode()))
    assert (info.origin, info.version, info.model) == ("real", "0.5.23", "tiny")
    assert (info.page_size, info.device_tokens, info.host_tokens) == (16, 2048, 8208)
    assert (info.context_length, info.max_request_tokens) == (8192, 2042)
    assert (info.hicache, info.storage_backend, info.dp_size) == (True, "file", 1)
    assert info.incremental_streaming is False
    assert info.flags["hicache_write_policy"] == "write_through"
    assert info.flags["hicache_storage_prefetch_policy"] == "wait_complete"
    assert len(info.raw["server_info"]) == len(obj("server_info"))
    assert info.fingerprint


async def test_host_size_by_the_pool_rule_without_metrics():
    info = await capture(real_server)
    assert info.host_tokens == (2048 * 4 // 16 + 1) * 16 == 8208


@pytest.mark.parametrize("change", [
    {"enable_hierarchical_cache": False}, {"hicache_size": 2}, {"hicache_ratio": None}, {"page_size": None},
])
def test_no_rule_no_host_size(change):
    assert describe({"server_info": {**obj("server_info"), **change}}, None).host_tokens is None


async def test_no_secret_is_kept():
    info = await capture(real_server, keys=Keys(api="tiny-secret-key"))
    text = json.dumps({"raw": info.raw, "flags": dict(info.flags)})
    assert "adminkey" in raw("server_info").decode()
    assert "adminkey" not in text
    assert f"--admin-api-key {MASK}" in info.raw["server_info"]["launch_command"]
    assert info.raw["server_info"]["admin_api_key"] == MASK
    assert info.raw["server_info"]["api_key"] is None
    assert info.raw["server_info"]["port"] == 31000


async def test_old_names_on_404():
    def script(seen):
        path = urlsplit(seen.path).path
        names = {"/get_server_info": "server_info", "/get_model_info": "model_info"}
        return [raw(names[path])] if path in names else NOT_FOUND

    info = await capture(script)
    assert (info.version, info.page_size, info.storage_backend) == ("0.5.23", 16, "file")


async def test_a_server_without_these_routes():
    info = await capture(lambda seen: NOT_FOUND)
    assert info.origin == "real"
    assert (info.version, info.model, info.page_size, info.device_tokens, info.host_tokens, info.hicache,
            info.storage_backend, info.dp_size, info.incremental_streaming) == (None,) * 9
    assert (dict(info.flags), dict(info.raw), info.fingerprint) == ({}, {}, "")


async def test_a_refused_key_is_an_error():
    with pytest.raises(ServerError, match="HICACHE_BENCH_API_KEY"):
        await capture(lambda seen: json_answer({"error": "Unauthorized"}, 401))


async def test_simulated_marker_and_detached_storage():
    info = describe({"server_info": {**obj("server_info"), "hicache_bench_simulated": True},
                     "storage_status": {"hicache_storage_backend": None}}, None)
    assert (info.origin, info.storage_backend) == ("simulated", None)


def test_fingerprint_ignores_what_a_restart_changes():
    base = obj("server_info")
    same = {**base, "port": 1, "random_seed": 5, "launch_command": "x", "startup_time": {}, "max_total_num_tokens": 9}
    other = {**base, "hicache_write_policy": "write_back"}
    prints = [describe({"server_info": one}, None).fingerprint for one in (base, same, other)]
    assert prints[0] == prints[1] != prints[2]
