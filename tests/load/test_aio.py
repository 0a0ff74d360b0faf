"""The aiohttp transport against scripted answers: typed outcomes, stamps, pool, time limits."""

from __future__ import annotations

import asyncio
import time

import pytest
from multidict import CIMultiDict

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.records import Exchange, WireRequest
from tests.scripted import DONE, END, ScriptedServer, chunk, event, head, native, native_stream

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


async def test_whole_answer_is_logged_with_rising_stamps():
    async with ScriptedServer(lambda seen: native_stream(4, gap=0.02)) as server:
        exchange = await send(server.url)
    body = b"".join(data for _, data in exchange.reads)
    assert exchange.failure is None
    assert exchange.status == 200
    assert exchange.content_type == "text/event-stream"
    assert body.count(b"data: ") == 5
    stamps = [exchange.sent_ns, exchange.connect_start_ns, exchange.connected_ns, exchange.headers_ns,
              *(at for at, _ in exchange.reads), exchange.done_ns]
    assert stamps == sorted(stamps)
    assert len(exchange.reads) >= 4


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


async def test_refused_connection_is_connect():
    exchange = await send("http://127.0.0.1:1")
    assert exchange.failure is not None
    assert exchange.failure[0] == "connect"


async def test_d17_own_deadline_keeps_what_came():
    steps = [head(), chunk(event(native("a", 1))), 3.0, chunk(DONE), END]
    async with ScriptedServer(lambda seen: steps) as server:
        started = time.monotonic()
        exchange = await send(server.url, timeout_s=0.3)
        took = time.monotonic() - started
    assert exchange.failure is not None
    assert exchange.failure[0] == "timeout"
    assert 0.25 < took < 2.0
    assert b"completion_tokens" in exchange.reads[0][1]


async def test_d17_no_total_timeout_by_default():
    transport = AiohttpTransport("http://127.0.0.1:1", {})
    await transport.open()
    assert transport._session is not None
    assert transport._session.timeout.total is None
    await transport.close()


async def test_d16_pool_never_queues():
    """250 at once must all be at the server together; aiohttp's default pool would serve three waves."""
    async with ScriptedServer(lambda seen: native_stream(1, first=0.6)) as server:
        transport = AiohttpTransport(server.url, {})
        await transport.open()
        exchanges = [Exchange() for _ in range(250)]
        await asyncio.gather(*(transport.send(REQUEST, e, None) for e in exchanges))
        await transport.close()
    assert server.peak == 250
    assert all(e.failure is None for e in exchanges)


async def test_d22_headers_arrive_as_given():
    headers = CIMultiDict([("Authorization", "Bearer k1"), ("X-Custom", "a"), ("X-Custom", "b")])
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        await send(server.url, headers=headers)
        await send(server.url)
    assert server.seen[0].headers["authorization"] == "Bearer k1"
    assert server.seen[0].headers["content-type"] == "application/json"
    assert "authorization" not in server.seen[1].headers


async def test_proxies_only_when_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        direct = await send(server.url)
        proxied = await send(server.url, proxies_from_env=True)
    assert direct.failure is None
    assert proxied.failure is not None


async def test_cancel_leaves_an_aborted_record():
    async with ScriptedServer(lambda seen: [head(), chunk(event(native("a", 1))), 5.0]) as server:
        transport = AiohttpTransport(server.url, {})
        await transport.open()
        exchange = Exchange()
        task = asyncio.create_task(transport.send(REQUEST, exchange, None))
        while not exchange.reads:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transport.close()
    assert exchange.failure is not None
    assert exchange.failure[0] == "aborted"
    assert exchange.reads
