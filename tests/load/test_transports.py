"""What every transport does alike: aiohttp, and the fast one on its own sockets and on asyncio's streams."""

from __future__ import annotations

import asyncio
import time

import pytest
from multidict import CIMultiDict

from hicache_bench.load import fast
from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.fast import FastTransport
from hicache_bench.records import Exchange, WireRequest
from tests.scripted import DONE, END, ScriptedServer, chunk, event, head, native, native_stream

REQUEST = WireRequest("/generate", b"{}", "generate", True)


@pytest.fixture(params=["aiohttp", "sockets", "streams"])
def kind(request, monkeypatch):
    """The class of transport; `streams` is what TLS and other systems than Linux get."""
    if request.param == "streams":
        monkeypatch.setattr(fast, "sys", type("Elsewhere", (), {"platform": "darwin"}))
    return AiohttpTransport if request.param == "aiohttp" else FastTransport


async def send(kind, url: str, timeout_s: float | None = 5.0, headers=None) -> Exchange:
    transport = kind(url, headers or {})
    await transport.open()
    exchange = Exchange()
    try:
        await transport.send(REQUEST, exchange, None if timeout_s is None else round(timeout_s * 1e9))
    finally:
        await transport.close()
    return exchange


async def test_whole_answer_is_logged_with_rising_stamps(kind):
    async with ScriptedServer(lambda seen: native_stream(4, gap=0.02)) as server:
        exchange = await send(kind, server.url)
    assert exchange.failure is None
    assert exchange.status == 200
    assert exchange.content_type == "text/event-stream"
    assert b"".join(data for _, data in exchange.reads).count(b"data: ") == 5
    stamps = [exchange.sent_ns, exchange.connect_start_ns, exchange.connected_ns, exchange.headers_ns,
              *(at for at, _ in exchange.reads), exchange.done_ns]
    assert stamps == sorted(stamps)
    assert len(exchange.reads) >= 4


async def test_d16_pool_never_queues(kind):
    """250 at once must all be at the server together; aiohttp's default pool would serve three waves."""
    async with ScriptedServer(lambda seen: native_stream(1, first=0.6)) as server:
        transport = kind(server.url, {})
        await transport.open()
        exchanges = [Exchange() for _ in range(250)]
        await asyncio.gather(*(transport.send(REQUEST, e, None) for e in exchanges))
        await transport.close()
    assert server.peak == 250
    assert all(e.failure is None for e in exchanges)


async def test_refused_connection_is_connect(kind):
    exchange = await send(kind, "http://127.0.0.1:1")
    assert exchange.failure is not None
    assert exchange.failure[0] == "connect"
    assert exchange.done_ns is not None


async def test_d17_own_deadline_keeps_what_came(kind):
    steps = [head(), chunk(event(native("a", 1))), 3.0, chunk(DONE), END]
    async with ScriptedServer(lambda seen: steps) as server:
        started = time.monotonic()
        exchange = await send(kind, server.url, timeout_s=0.3)
        took = time.monotonic() - started
    assert exchange.failure is not None
    assert exchange.failure[0] == "timeout"
    assert 0.25 < took < 2.0
    assert b"completion_tokens" in exchange.reads[0][1]


async def test_cancel_leaves_an_aborted_record(kind):
    async with ScriptedServer(lambda seen: [head(), chunk(event(native("a", 1))), 5.0]) as server:
        transport = kind(server.url, {})
        await transport.open()
        exchange = Exchange()
        task = asyncio.create_task(transport.send(REQUEST, exchange, None))
        while not exchange.reads:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if kind is FastTransport:
            assert not transport._idle, "the connection of a cancelled request must not serve another"
        await transport.close()
    assert exchange.failure is not None
    assert exchange.failure[0] == "aborted"
    assert exchange.reads
    assert exchange.done_ns is not None


async def test_d22_headers_arrive_as_given(kind):
    headers = CIMultiDict([("Authorization", "Bearer k1"), ("X-Custom", "a"), ("X-Custom", "b")])
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        await send(kind, server.url, headers=headers)
        await send(kind, server.url + "/prefix/")
    assert server.seen[0].headers["authorization"] == "Bearer k1"
    assert server.seen[0].headers["content-type"] == "application/json"
    assert server.seen[0].headers["host"] == server.url.removeprefix("http://")
    assert "authorization" not in server.seen[1].headers
    assert [seen.path for seen in server.seen] == ["/generate", "/prefix/generate"]
