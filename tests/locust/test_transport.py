"""The gevent transport against scripted answers. gevent without Locust patches nothing, so it can be imported."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from hicache_bench.records import Exchange, WireRequest
from tests.scripted import DONE, END, Step, chunk, event, head, native, native_stream

gevent = pytest.importorskip("gevent")
from hicache_bench.locust_user.transport import GeventTransport  # noqa: E402

REQUEST = WireRequest("/generate", b'{"a":1}', "generate", True)


class Server:
    """Answers each request of each connection with the next script; a thread a connection."""

    def __init__(self, script: Callable[[int], Sequence[Step]]) -> None:
        self._script = script
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections = 0
        self.requests: list[bytes] = []
        self.sent_ns: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while (got := self._request(connection)) is not None:
                self.requests.append(got)
                for step in self._script(len(self.requests)):
                    if step == "close":
                        return
                    if isinstance(step, float):
                        time.sleep(step)
                    elif isinstance(step, bytes):
                        self.sent_ns.append(time.monotonic_ns())
                        connection.sendall(step)

    @staticmethod
    def _request(connection: socket.socket) -> bytes | None:
        got = b""
        while not got.endswith(REQUEST.body):
            data = connection.recv(65536)
            if not data:
                return None
            got += data
        return got


@contextmanager
def serving(script: Callable[[int], Sequence[Step]]) -> Iterator[Server]:
    server = Server(script)
    try:
        yield server
    finally:
        server.close()


def send(transport: GeventTransport, timeout_s: float | None = 5.0) -> Exchange:
    exchange = Exchange()
    transport.send(REQUEST, exchange, None if timeout_s is None else round(timeout_s * 1e9))
    return exchange


def test_every_read_is_stamped_as_it_comes():
    with serving(lambda n: native_stream(4, gap=0.05)) as server:
        exchange = send(GeventTransport(server.url, {"X-Mine": "yes"}))
    assert exchange.failure is None
    assert (exchange.status, exchange.content_type) == (200, "text/event-stream")
    assert b"".join(data for _, data in exchange.reads).count(b"data: ") == 5
    stamps = [exchange.sent_ns, exchange.connect_start_ns, exchange.connected_ns, exchange.headers_ns,
              *(at for at, _ in exchange.reads), exchange.done_ns]
    assert stamps == sorted(stamps)
    firsts = [at for at, data in exchange.reads if data.startswith(b"data: {")]
    assert firsts[-1] - firsts[0] >= 0.14 * 1e9, "a stream that is buffered arrives at one instant"
    assert b"X-Mine: yes\r\n" in server.requests[0]
    assert server.requests[0].startswith(b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:")


def test_a_connection_is_used_again():
    with serving(lambda n: native_stream(1)) as server:
        transport = GeventTransport(server.url, {})
        first, second = send(transport), send(transport)
        transport.close()
    assert first.connected_ns is not None
    assert (second.connected_ns, second.failure) == (None, None)
    assert server.connections == 1


@pytest.mark.parametrize(("steps", "outcome"), [
    (["close"], "disconnect"),
    ([head(), chunk(event(native("a", 1))), b"5\r\nab", "close"], "disconnect"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "close"], "disconnect"),
    ([b"not http at all\r\n\r\n", "close"], "protocol"),
    ([head(), b"zz\r\n"], "protocol"),
    ([head(), chunk(event(native("a", 1))), 3.0], "timeout"),
    ([3.0], "timeout"),
])
def test_bad_ends_are_typed(steps, outcome):
    with serving(lambda n: steps) as server:
        exchange = send(GeventTransport(server.url, {}), timeout_s=0.4)
    assert exchange.failure is not None
    assert exchange.failure[0] == outcome, exchange.failure
    assert exchange.done_ns is not None


@pytest.mark.parametrize("steps", [
    [b"HTTP/1.1 100 Continue\r\n\r\n", *native_stream(1)],
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", event(native("a", 1)) + DONE, "close"],
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", b"\r\n3\r", b"\nabc\r\n", END],
    [b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops"],
])
def test_whole_answers_of_every_framing(steps):
    with serving(lambda n: steps) as server:
        exchange = send(GeventTransport(server.url, {}))
    assert exchange.failure is None
    assert exchange.status in (200, 500)
    assert b"".join(data for _, data in exchange.reads)


def test_after_a_failure_the_connection_is_not_used_again():
    with serving(lambda n: ["close"] if n == 1 else native_stream(1)) as server:
        transport = GeventTransport(server.url, {})
        assert send(transport).failure is not None
        assert send(transport).failure is None
        transport.close()
    assert server.connections == 2


def test_nobody_there_is_connect():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    exchange = send(GeventTransport(f"http://127.0.0.1:{port}", {}))
    assert exchange.failure is not None
    assert exchange.failure[0] == "connect"
    assert exchange.status is None


def test_a_stopped_user_leaves_an_aborted_request():
    with serving(lambda n: [head(), 5.0]) as server:
        exchange = Exchange()
        greenlet = gevent.spawn(GeventTransport(server.url, {}).send, REQUEST, exchange, None)
        while exchange.headers_ns is None:
            gevent.sleep(0.01)
        greenlet.kill()
    assert exchange.failure is not None
    assert exchange.failure[0] == "aborted"
    assert exchange.done_ns is not None


def test_streams_side_by_side_do_not_wait_for_each_other():
    with serving(lambda n: native_stream(3, gap=0.1)) as server:
        transport = GeventTransport(server.url, {})
        exchanges = [Exchange() for _ in range(8)]
        start = time.monotonic()
        gevent.joinall([gevent.spawn(transport.send, REQUEST, exchange, None) for exchange in exchanges])
    assert all(exchange.failure is None for exchange in exchanges)
    assert time.monotonic() - start < 8 * 0.2, "one after the other would take so long"
