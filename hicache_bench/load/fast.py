"""The fast transport: pooled, pre-opened HTTP/1.1 connections that log raw bytes and nothing more.

The same seam, outcomes and rows as `aio.AiohttpTransport`, at a fraction of its CPU time; proxies stay with
that one. On plain TCP under Linux an answer's stamps are the kernel's receive marks (`stamps`), so an event
loop that was busy when the bytes came does not pose as the server's latency.

Choices where the two could differ:

* A request is written to a kept connection only if the server has not closed it yet. It is sent once more, on a
  fresh connection, only when not one byte of it left this host. A connection that ends after the request was
  written is a `disconnect`: the server may have worked on it, and a POST is not repeated (aiohttp does the same).
* Brotli and zstd bodies are refused (`protocol`); both transports ask for `identity`, gzip and deflate are read.
* Bytes after a complete answer do not spoil it; the connection is not used again. (aiohttp calls the same bytes
  a protocol error or not, depending on how they were cut into reads.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.errors import UsageError
from hicache_bench.load.fast_links import Link, SocketLink, SocketPump, StreamLink
from hicache_bench.load.http1 import request_head, request_prefix
from hicache_bench.load.transport import CONNECT_TIMEOUT_S, KEEPALIVE_S, classify_os_error, request_fields
from hicache_bench.records import Exchange, Outcome, WireRequest

LOOK_AGAIN_NS = 20_000_000
"""A connection idle for longer is checked for the server's close before it is used."""

OPENED_AT_ONCE = 32

Address = tuple[int, int, int, Any]
"""Family, type, protocol and socket address."""


def suits(base_url: str, *, proxies_from_env: bool) -> bool:
    """Whether this transport can reach the server: no proxy, no credentials inside the address."""
    parts = urlsplit(base_url)
    return not proxies_from_env and parts.scheme in ("http", "https") and "@" not in parts.netloc


class FastTransport:
    """See `Transport`. `connections` are opened by `open`, before any clock starts; more open when needed.

    `tls` is as in `AiohttpTransport`. `kernel_stamps` asks for the kernel's receive marks where there are
    any. Raises UsageError for an address or a header that can not be sent.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        tls: ssl.SSLContext | bool = True,
        connections: int = 0,
        kernel_stamps: bool = True,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        if not suits(base_url, proxies_from_env=False):
            raise UsageError(f"{base_url!r} is no http:// or https:// address without credentials")
        parts = urlsplit(base_url.rstrip("/"))
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._netloc = parts.netloc
        self._path = parts.path
        self._tls = _context(tls) if secure else None
        self._fields = request_fields(headers)
        self._prefixes: dict[str, bytes] = {}
        self._connections = connections
        self._kernel_stamps = kernel_stamps
        self._connect_timeout_s = connect_timeout_s
        self._addresses: list[Address] = []
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump: SocketPump | None = None

    async def open(self) -> None:
        """Open the connections asked for. One that can not be opened is no error here: its request will tell."""
        self._loop = asyncio.get_running_loop()
        if self._tls is None and sys.platform.startswith("linux"):
            self._pump = SocketPump(self._loop)
        for start in range(0, self._connections, OPENED_AT_ONCE):
            count = min(OPENED_AT_ONCE, self._connections - start)
            opened = await asyncio.gather(*(self._dial() for _ in range(count)), return_exceptions=True)
            self._idle += [link for link in opened if not isinstance(link, BaseException)]
            if any(isinstance(link, BaseException) for link in opened):
                return

    async def close(self) -> None:
        """End every connection; requests still under way fail as `aborted`."""
        for link in tuple(self._links):
            link.talk.finish(now_ns(), ("aborted", "the client closed its connections"))
            link.close()
        self._idle.clear()
        if self._pump is not None:
            self._pump.close()
            self._pump = None
        self._loop = None
        await asyncio.sleep(0)

    async def send(self, request: WireRequest, exchange: Exchange, timeout_ns: int | None) -> None:
        """See `Transport.send`. `timeout_ns` bounds the whole request; None means no limit (bug D17)."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("the transport is not open")
        head = request_head(self._prefixes.get(request.path) or self._prefix(request.path), len(request.body))
        over: asyncio.Future[None] = loop.create_future()
        exchange.sent_ns = now_ns()
        deadline_ns = None if timeout_ns is None else exchange.sent_ns + timeout_ns
        link: Link | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            link = self._kept()
            if link is None or not self._ask(link, head, request.body, exchange, over):
                link = await self._fresh(exchange, deadline_ns)
                if link is None:
                    return
                if not self._ask(link, head, request.body, exchange, over):
                    link.talk.finish(now_ns(), ("disconnect", "the server closed the new connection at once"))
            if timeout_ns is not None and deadline_ns is not None:
                timer = loop.call_later((deadline_ns - now_ns()) / NS_PER_S, _expire, link, timeout_ns)
            await over
        except asyncio.CancelledError:
            failure: tuple[Outcome, str] = ("aborted", "cancelled by this client before the answer was complete")
            if link is not None:
                link.talk.finish(now_ns(), failure)
            exchange.failure = failure
            exchange.done_ns = exchange.done_ns or now_ns()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if link is not None:
                self._give_back(link)

    # ------------------------------------------------------------------ one request

    def _prefix(self, path: str) -> bytes:
        prefix = self._prefixes[path] = request_prefix(self._path + path, self._netloc, self._fields)
        return prefix

    def _ask(self, link: Link, head: bytes, body: bytes, exchange: Exchange, over: asyncio.Future[None]) -> bool:
        link.talk.begin(exchange, over)
        return link.write(head, body)

    async def _fresh(self, exchange: Exchange, deadline_ns: int | None) -> Link | None:
        """A new connection, its time recorded apart; None when there is none, and the exchange says why."""
        exchange.connect_start_ns = now_ns()
        left_s = None if deadline_ns is None else (deadline_ns - exchange.connect_start_ns) / NS_PER_S
        try:
            link = await asyncio.wait_for(self._dial(), left_s)
        except (asyncio.TimeoutError, TimeoutError) as error:
            if deadline_ns is not None and now_ns() >= deadline_ns:
                exchange.failure = ("timeout", "no connection within the request timeout")
            else:
                exchange.failure = ("connect", str(error) or f"no connection within {self._connect_timeout_s:g} s")
        except OSError as error:
            exchange.failure = classify_os_error(error, connecting=True)
        else:
            exchange.connected_ns = now_ns()
            return link
        exchange.done_ns = now_ns()
        return None

    # ------------------------------------------------------------------ connections

    def _kept(self) -> Link | None:
        """The connection used last: the one the server is least likely to close. None when there is none."""
        while self._idle:
            link = self._idle.pop()
            if not link.open:
                continue
            idle_ns = now_ns() - link.idle_since_ns
            too_old = link.talk.used and idle_ns > KEEPALIVE_S * NS_PER_S
            if too_old or (idle_ns > LOOK_AGAIN_NS and link.peer_has_closed()):
                link.close()
            else:
                return link
        return None

    def _give_back(self, link: Link) -> None:
        if link.open and link.talk.reusable:
            link.idle_since_ns = now_ns()
            self._idle.append(link)
        else:
            link.close()

    async def _dial(self) -> Link:
        """Open one connection to the first address that answers; raises OSError or TimeoutError."""
        loop = self._loop
        if loop is None:
            raise OSError("the transport is closed")
        if not self._addresses:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = [(family, kind, protocol, where) for family, kind, protocol, _, where in found]
        failure: OSError | None = None
        for address in tuple(self._addresses):
            try:
                link = await asyncio.wait_for(self._dial_one(loop, address), self._connect_timeout_s)
            except (asyncio.TimeoutError, TimeoutError):
                failure = TimeoutError(f"no connection to {self._netloc} within {self._connect_timeout_s:g} s")
            except OSError as error:
                failure = error
            else:
                self._addresses = [address, *(other for other in self._addresses if other != address)]
                self._links.add(link)
                return link
        raise failure or OSError(f"{self._netloc} has no address")

    async def _dial_one(self, loop: asyncio.AbstractEventLoop, address: Address) -> Link:
        sock = socket.socket(*address[:3])
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address[3])
            if self._pump is not None:
                return SocketLink(self._pump, sock, self._links.discard, marks=self._kernel_stamps)
            name = None if self._tls is None else self._host
            _, link = await loop.create_connection(
                lambda: StreamLink(self._links.discard), sock=sock, ssl=self._tls, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise
        return link


def _expire(link: Link, timeout_ns: int) -> None:
    why = f"no complete answer within the request timeout ({timeout_ns / NS_PER_S:g} s)"
    link.talk.finish(now_ns(), ("timeout", why))
    link.close()


def _context(tls: ssl.SSLContext | bool) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    context = ssl.create_default_context()
    if not tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
