"""The aiohttp transport against scripted answers: typed outcomes, stamps, pool, time limits."""

from __future__ import annotations

import pytest

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.records import Exchange, WireRequest
from tests.scripted import ScriptedServer, chunk, event, head, native, native_stream

REQUEST = WireRequest("/generate", b"{}", "generate", True)


async def send(url: str, timeout_s: float | None = 5.0, headers=None, **options) -> Exchange:
    transport = AiohttpTransport(url, headers or {}, **options)
    await transport.open()
    exchange = Exchange()
    try:
        await transport.send(REQUEST, exchange, None if timeout_s is None else round(timeout_s * 1e9))
    finally:
        await transport.close()
    return exchange


async def test_reused_connection_has_no_connect_stamps():
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        transport = AiohttpTransport(server.url, {})
        await transport.open()
        first, second = Exchange(), Exchange()
        await transport.send(REQUEST, first, None)
        await transport.send(REQUEST, second, None)
        await transport.close()
    assert first.connected_ns is not None
    assert second.connected_ns is None
    assert server.connections == 1


@pytest.mark.parametrize(("steps", "outcome"), [
    (["close"], "disconnect"),
    (["reset"], "disconnect"),
    ([head(), chunk(event(native("a", 1))), b"5\r\nab", "close"], "disconnect"),
    ([head(), chunk(event(native("a", 1))), "reset"], "disconnect"),
    ([b"not http at all\r\n\r\n", "close"], "protocol"),
    ([head(), b"zz\r\nnot a chunk\r\n", "close"], "protocol"),
])
async def test_d13_broken_answers_are_typed(steps, outcome):
    async with ScriptedServer(lambda seen: steps) as server:
        exchange = await send(server.url)
    assert exchange.failure is not None
    assert exchange.failure[0] == outcome
    assert exchange.done_ns is not None


async def test_d17_no_total_timeout_by_default():
    transport = AiohttpTransport("http://127.0.0.1:1", {})
    await transport.open()
    assert transport._session is not None
    assert transport._session.timeout.total is None
    await transport.close()


async def test_proxies_only_when_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        direct = await send(server.url)
        proxied = await send(server.url, proxies_from_env=True)
    assert direct.failure is None
    assert proxied.failure is not None
