"""The fast transport over loopback: outcomes, stamps, pool, time limits, TLS, a client that was busy."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from hicache_bench.errors import UsageError
from hicache_bench.load import fast
from hicache_bench.load.fast import FastTransport, suits
from hicache_bench.records import Exchange, WireRequest
from hicache_bench.wire.fold import fold
from tests.scripted import DONE, END, ScriptedServer, chunk, event, head, json_answer, native, native_stream

REQUEST = WireRequest("/generate", b"{}", "generate", True)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="own sockets with kernel marks: Linux only")


@pytest.fixture(params=["sockets", "streams"])
def lane(request, monkeypatch):
    """Both kinds of link; the second is what TLS and other systems get."""
    if request.param == "streams":
        monkeypatch.setattr(fast, "sys", type("Elsewhere", (), {"platform": "darwin"}))
    return request.param


async def send(url: str, timeout_s: float | None = 5.0, headers=None, request=REQUEST, **options) -> Exchange:
    transport = FastTransport(url, headers or {}, **options)
    await transport.open()
    exchange = Exchange()
    try:
        await transport.send(request, exchange, None if timeout_s is None else round(timeout_s * 1e9))
    finally:
        await transport.close()
    return exchange


async def test_connections_are_reused_and_only_new_ones_have_connect_stamps(lane):
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        transport = FastTransport(server.url, {})
        await transport.open()
        exchanges = [Exchange() for _ in range(5)]
        for exchange in exchanges:
            await transport.send(REQUEST, exchange, None)
        await transport.close()
    assert server.connections == 1
    assert [e.connected_ns is not None for e in exchanges] == [True, False, False, False, False]


async def test_connections_are_open_before_the_first_request(lane):
    async with ScriptedServer(lambda seen: native_stream(1, first=0.2)) as server:
        transport = FastTransport(server.url, {}, connections=40)
        await transport.open()
        exchanges = [Exchange() for _ in range(41)]
        await asyncio.gather(*(transport.send(REQUEST, e, None) for e in exchanges))
        await transport.close()
    assert server.connections == 41
    assert sum(e.connected_ns is not None for e in exchanges) == 1
    assert server.peak == 41


async def test_connections_that_cannot_be_opened_ahead_are_the_requests_failure(lane):
    exchange = await send("http://127.0.0.1:1", connections=3)
    assert exchange.failure is not None
    assert exchange.failure[0] == "connect"
    assert exchange.done_ns is not None


async def test_unknown_host_is_connect(lane):
    exchange = await send("http://no-such-host.invalid:1")
    assert exchange.failure is not None
    assert exchange.failure[0] == "connect"


async def test_out_of_descriptors_is_this_clients_fault(lane, monkeypatch):
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        transport = FastTransport(server.url, {})
        await transport.open()

        def full(*_):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(fast.socket, "socket", full)
        exchange = Exchange()
        await transport.send(REQUEST, exchange, None)
        monkeypatch.undo()
        await transport.close()
    assert exchange.failure is not None
    assert exchange.failure[0] == "fd_limit"


async def test_closing_the_transport_ends_what_is_under_way(lane):
    async with ScriptedServer(lambda seen: [head(), chunk(event(native("a", 1))), 5.0]) as server:
        transport = FastTransport(server.url, {})
        await transport.open()
        exchange = Exchange()
        task = asyncio.create_task(transport.send(REQUEST, exchange, None))
        while not exchange.reads:
            await asyncio.sleep(0.01)
        await transport.close()
        await asyncio.wait_for(task, 2)
    assert exchange.failure is not None
    assert exchange.failure[0] == "aborted"


async def test_a_connection_closed_while_idle_is_replaced_unseen(lane):
    async with ScriptedServer(lambda seen: [*native_stream(1), "close"]) as server:
        transport = FastTransport(server.url, {})
        await transport.open()
        for _ in range(4):
            exchange = Exchange()
            await transport.send(REQUEST, exchange, None)
            assert exchange.failure is None
            await asyncio.sleep(0.05)
        await transport.close()
    assert server.connections == 4


@linux
async def test_a_request_that_never_left_is_sent_once_more(monkeypatch):
    """The reset has arrived, but the event loop has had no turn to see it: the write fails with nothing sent."""
    async with ScriptedServer(lambda seen: [*native_stream(1), 0.05, "reset"]) as server:
        transport = FastTransport(server.url, {})
        await transport.open()
        await transport.send(REQUEST, Exchange(), None)
        link = transport._idle[-1]
        monkeypatch.setattr(type(link), "peer_has_closed", lambda self: False)
        monkeypatch.setattr(type(link), "readable", lambda self: None)
        await asyncio.sleep(0.15)
        link._sock.getsockopt(1, 4)  # SO_ERROR: take the reset's error, so that the write gets EPIPE
        monkeypatch.undo()
        exchange = Exchange()
        task = asyncio.create_task(transport.send(REQUEST, exchange, None))
        await task
        await transport.close()
    assert exchange.failure is None
    assert exchange.connected_ns is not None
    assert server.connections == 2


async def test_a_request_that_was_written_is_not_repeated(lane):
    """The server takes the second request and closes: it may have worked on it."""
    async with ScriptedServer(lambda seen: native_stream(1) if len(server.seen) == 1 else ["close"]) as server:
        transport = FastTransport(server.url, {})
        await transport.open()
        await transport.send(REQUEST, Exchange(), None)
        exchange = Exchange()
        await transport.send(REQUEST, exchange, None)
        await transport.close()
    assert exchange.failure is not None
    assert exchange.failure[0] == "disconnect"
    assert len(server.seen) == 2


async def test_an_old_connection_is_dropped_before_the_server_drops_it(lane, monkeypatch):
    monkeypatch.setattr(fast, "KEEPALIVE_S", 0.1)
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        transport = FastTransport(server.url, {}, connections=1)
        await transport.open()
        await asyncio.sleep(0.3)  # never used: no server counts its keep-alive yet
        for _ in range(2):
            await transport.send(REQUEST, Exchange(), None)
            await asyncio.sleep(0.3)
        await transport.close()
    assert server.connections == 2


async def test_a_large_request_arrives_whole(lane):
    body = bytes(range(256)) * 40_000
    async with ScriptedServer(lambda seen: native_stream(1)) as server:
        exchange = await send(server.url, request=WireRequest("/generate", body, "generate", True))
    assert exchange.failure is None
    assert server.seen[0].body == body


async def test_an_answer_before_the_request_was_read_counts(lane):
    """413 and the like: the server answers on the head alone and closes."""
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(json_answer({"error": {"message": "too large"}}, 413)[0])
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        request = WireRequest("/generate", b"x" * 20_000_000, "generate", True)
        exchange = await send(url, request=request)
    assert exchange.status == 413
    assert fold(request, exchange).outcome == "http"


@pytest.mark.parametrize(("url", "proxies", "fits"), [
    ("http://h:1", False, True), ("https://h", False, True), ("http://h:1", True, False),
    ("http://u:p@h:1", False, False), ("unix:/x", False, False),
])
def test_what_the_fast_lane_can_reach(url, proxies, fits):
    assert suits(url, proxies_from_env=proxies) is fits
    if not fits and not proxies:
        with pytest.raises(UsageError):
            FastTransport(url, {})


# ---------------------------------------------------------------------- kernel marks


TTFT_MS = 20
BLOCKED_MS = 60


def serve_on_time(listener: socket.socket) -> None:
    """A server in a thread of its own: the first token `TTFT_MS` after each request, the rest much later."""
    connection, _ = listener.accept()
    with connection:
        for _ in range(8):
            if not connection.recv(65536):
                return
            time.sleep(TTFT_MS / 1000)
            connection.sendall(head() + chunk(event(native("a", 1))))
            time.sleep(0.1)
            connection.sendall(chunk(event(native("ab", 2, finish="length"))) + chunk(DONE) + END)


async def ttfts_of_a_busy_client(**options) -> tuple[list[float], list[Exchange]]:
    """TTFT in ms of requests after each of which the event loop is blocked for `BLOCKED_MS`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_on_time, args=(listener,))
        server.start()
        transport = FastTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", {}, connections=1, **options)
        await transport.open()
        exchanges = [Exchange() for _ in range(5)]
        for exchange in exchanges:
            asyncio.get_running_loop().call_later(0.001, time.sleep, BLOCKED_MS / 1000)
            await transport.send(REQUEST, exchange, None)
        await transport.close()
        await asyncio.to_thread(server.join)
    return sorted((e.reads[0][0] - (e.sent_ns or 0)) / 1e6 for e in exchanges), exchanges


@linux
async def test_ttft_stays_true_when_the_client_is_busy():
    ttfts, exchanges = await ttfts_of_a_busy_client()
    marked = [exchange for exchange in exchanges if exchange.clock == "kernel"]
    assert len(marked) >= 4  # the kernel starts marking a moment after it is asked
    assert TTFT_MS <= ttfts[1] < TTFT_MS + 20
    assert all(fold(REQUEST, exchange).outcome == "ok" for exchange in exchanges)


@linux
async def test_without_marks_the_same_client_would_be_wrong():
    ttfts, exchanges = await ttfts_of_a_busy_client(kernel_stamps=False)
    assert {exchange.clock for exchange in exchanges} == {"loop"}
    assert ttfts[1] > BLOCKED_MS - 5


# ---------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    where = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", where / "key.pem", "-out",
         where / "cert.pem"], capture_output=True)
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    return where


async def over_tls(certificate, **options) -> Exchange:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    body = b"".join(step for step in native_stream(3) if isinstance(step, bytes))

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await send(f"https://127.0.0.1:{port}", **options)


async def test_tls_with_the_right_certificate(certificate):
    exchange = await over_tls(certificate, tls=ssl.create_default_context(cafile=str(certificate / "cert.pem")))
    assert exchange.failure is None
    assert exchange.clock == "loop"
    assert fold(REQUEST, exchange).output_tokens == 3


async def test_tls_unchecked(certificate):
    assert (await over_tls(certificate, tls=False)).failure is None


async def test_tls_with_an_unknown_certificate_is_connect(certificate):
    exchange = await over_tls(certificate)
    assert exchange.failure is not None
    assert exchange.failure[0] == "connect"
    assert "certificate" in exchange.failure[1].lower()
