"""The gevent transport: pooled keep-alive connections, each read of a body stamped and kept, nothing parsed.

Locust's own FastHttpUser client can stream, but it answers with text pieces of its own block size; TTFT needs
the instant of each read, so this speaks HTTP/1.1 over gevent's sockets with geventhttpclient's parser.
"""


from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import gevent
from gevent import socket as gsocket
from gevent import ssl as gssl
from geventhttpclient._parser import HTTPParseError, HTTPResponseParser

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.load.transport import classify_os_error
from hicache_bench.records import Exchange, WireRequest

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_NS = 4 * NS_PER_S
"""Below uvicorn's 5 s (SGLang's server), as in the aiohttp transport."""
READ_BYTES = 1 << 16


class _Answer(HTTPResponseParser):
    """The parser's callbacks, filling the exchange; `stamp_ns` is the instant of the read being parsed."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self._names: list[str] = []
        self._values: list[str] = []
        self._in_value = True
        self.stamp_ns = 0
        self.begun = False
        self.complete = False

    def _on_message_begin(self) -> None:
        self.begun = True
        self._names, self._values, self._in_value = [], [], True

    def _on_status(self, text: str) -> None:
        pass

    def _on_header_field(self, text: str) -> None:
        if self._in_value:
            self._names.append(text)
            self._values.append("")
        else:
            self._names[-1] += text
        self._in_value = False

    def _on_header_value(self, text: str) -> None:
        self._values[-1] += text
        self._in_value = True

    def _on_headers_complete(self) -> bool:
        code = self.get_code()
        if code >= 200:  # 1xx answers come before the real one
            exchange = self._exchange
            exchange.headers_ns, exchange.status = self.stamp_ns, code
            for name, value in zip(self._names, self._values, strict=True):
                if name.lower() == "content-type":
                    exchange.content_type = value
        return False

    def _on_body(self, data: bytearray) -> None:
        self._exchange.reads.append((self.stamp_ns, bytes(data)))

    def _on_message_complete(self) -> None:
        self.complete = self._exchange.status is not None


@dataclass(slots=True)
class _Idle:
    sock: gsocket.socket
    since_ns: int


class GeventTransport:
    """One pool for all users of a process, without a bound: queueing in the client would pose as TTFT.

    `base_url` as `sglang.urls.normalize_base` gives it; `tls` None means no check of certificates.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, tls: ssl.SSLContext | None = None,
                 connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        url = urlsplit(base_url)
        self._secure = url.scheme == "https"
        self._host = url.hostname or ""
        self._port = url.port or (443 if self._secure else 80)
        self._prefix = url.path.rstrip("/")
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        fields = {"Host": url.netloc, "Content-Type": "application/json", **_lines(headers)}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode("latin-1")
        self._idle: deque[_Idle] = deque()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().sock.close()

    def send(self, request: WireRequest, exchange: Exchange, timeout_ns: int | None) -> None:
        """Send one request and keep its raw log. Raises nothing but GreenletExit (the user was stopped), and
        then `exchange.failure` is already set. `timeout_ns` bounds the whole request; None is no limit."""
        exchange.sent_ns = now_ns()
        deadline = gevent.Timeout(None if timeout_ns is None else timeout_ns / NS_PER_S)
        sock: gsocket.socket | None = None
        answer = _Answer(exchange)
        try:
            with deadline:
                sock = self._connection(exchange)
                sock.sendall(self._message(request))
                self._read(sock, answer, exchange)
        except gevent.Timeout as reached:
            if reached is not deadline:
                raise
            exchange.failure = ("timeout", "no complete answer within the request timeout")
        except gevent.GreenletExit:
            exchange.failure = ("aborted", "cancelled by this client before the answer was complete")
            raise
        except HTTPParseError as error:
            exchange.failure = ("protocol", f"{type(error).__name__}: {error}")
        except OSError as error:
            exchange.failure = exchange.failure or classify_os_error(error, connecting=sock is None)
        finally:
            exchange.done_ns = now_ns()
            self._release(sock, answer, exchange)

    def _message(self, request: WireRequest) -> bytes:
        line = f"POST {self._prefix}{request.path} HTTP/1.1\r\n".encode("latin-1")
        return b"".join((line, self._head, f"Content-Length: {len(request.body)}\r\n\r\n".encode(), request.body))

    def _read(self, sock: gsocket.socket, answer: _Answer, exchange: Exchange) -> None:
        while not answer.complete:
            data = sock.recv(READ_BYTES)
            answer.stamp_ns = now_ns()
            if data:
                answer.feed(data)
                continue
            try:
                answer.feed(data)  # the end of the connection ends a body without a length
            except HTTPParseError:
                pass
            if not answer.complete:
                exchange.failure = ("disconnect", "the server closed the connection before the answer was complete")
            return

    def _connection(self, exchange: Exchange) -> gsocket.socket:
        while self._idle:
            idle = self._idle.pop()
            if now_ns() - idle.since_ns < KEEPALIVE_NS:
                return idle.sock
            idle.sock.close()
        exchange.connect_start_ns = now_ns()
        sock = gsocket.create_connection((self._host, self._port), timeout=self._connect_timeout_s)
        try:
            sock.setsockopt(gsocket.IPPROTO_TCP, gsocket.TCP_NODELAY, 1)
            if self._secure:
                sock = self._wrap(sock)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        exchange.connected_ns = now_ns()
        return sock

    def _wrap(self, sock: gsocket.socket) -> gsocket.socket:
        context = self._tls
        if context is None:
            context = gssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(sock, server_hostname=self._host)

    def _release(self, sock: gsocket.socket | None, answer: _Answer, exchange: Exchange) -> None:
        if sock is None:
            return
        if answer.complete and exchange.failure is None and answer.should_keep_alive():
            self._idle.append(_Idle(sock, now_ns()))
        else:
            sock.close()


def _lines(headers: Mapping[str, str]) -> dict[str, str]:
    """A name that was given twice becomes one line, as HTTP allows."""
    joined: dict[str, str] = {}
    for name, value in headers.items():
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
