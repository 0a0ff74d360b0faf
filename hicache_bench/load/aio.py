"""The aiohttp transport: the reference client, also used where TLS or a proxy is asked for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError
from multidict import CIMultiDict

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.load.transport import CONNECT_TIMEOUT_S, KEEPALIVE_S, classify_os_error, request_fields
from hicache_bench.records import Exchange, Outcome, WireRequest


class AiohttpTransport:
    """One aiohttp session with an unbounded pool: queueing in the client would pose as TTFT (bug D16)."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        tls: ssl.SSLContext | bool = True,
        proxies_from_env: bool = False,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = CIMultiDict(request_fields(headers))
        self._tls = tls
        self._proxies_from_env = proxies_from_env
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEPALIVE_S, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            trust_env=self._proxies_from_env,
            trace_configs=[_connect_stamps()],
            auto_decompress=True,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, request: WireRequest, exchange: Exchange, timeout_ns: int | None) -> None:
        """See `Transport.send`. `timeout_ns` bounds the whole request; None means no limit (bug D17)."""
        if self._session is None:
            raise RuntimeError("the transport is not open")
        timeout = aiohttp.ClientTimeout(
            total=None if timeout_ns is None else timeout_ns / NS_PER_S, sock_connect=self._connect_timeout_s
        )
        exchange.sent_ns = now_ns()
        try:
            async with self._session.post(
                self._base_url + request.path,
                data=request.body,
                headers=self._headers,
                timeout=timeout,
                allow_redirects=False,
                trace_request_ctx=exchange,
            ) as response:
                exchange.headers_ns = now_ns()
                exchange.status = response.status
                exchange.content_type = response.headers.get("Content-Type", "")
                reads = exchange.reads
                with _ending_with_connection(response):
                    async for data in response.content.iter_any():
                        reads.append((now_ns(), data))
        except asyncio.CancelledError:
            exchange.failure = ("aborted", "cancelled by this client before the answer was complete")
            raise
        except Exception as error:
            exchange.failure = classify(error)
        finally:
            exchange.done_ns = now_ns()


def classify(error: Exception) -> tuple[Outcome, str]:
    """The typed outcome of whatever aiohttp raised; nothing is left to crash the run."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connect", text
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "timeout", f"no complete answer within the request timeout ({text})"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "connect", text
    if isinstance(error, aiohttp.ClientConnectorError):
        return classify_os_error(error.os_error, connecting=True)
    if isinstance(error.__cause__, ContentEncodingError):
        return "protocol", text
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "disconnect", text
    if isinstance(error, OSError):
        return classify_os_error(error, connecting=False)
    return "protocol", text


@contextmanager
def _ending_with_connection(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Bad framing in the middle of a body must end the request.

    aiohttp 3.14 then closes the connection, but tells only the connection's own queue: the body's reader would
    wait forever.
    """
    connection, content = response.connection, response.content
    protocol = None if connection is None else connection.protocol
    closed = None if protocol is None else protocol.closed

    def ended(future: asyncio.Future[None]) -> None:
        lost = None if future.cancelled() else future.exception()
        if not content.is_eof() and content.exception() is None:
            fault = None if protocol is None else protocol.exception()
            content.set_exception(fault or lost or aiohttp.ClientPayloadError("the connection has ended"))

    if closed is not None:
        closed.add_done_callback(ended)
    try:
        yield
    finally:
        if closed is not None:
            closed.remove_done_callback(ended)


def _connect_stamps() -> aiohttp.TraceConfig:
    """Stamps for new connections only, so that connect time can be told from TTFT."""
    trace = aiohttp.TraceConfig()

    async def start(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
        exchange: Exchange = context.trace_request_ctx
        exchange.connect_start_ns = now_ns()

    async def end(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
        exchange: Exchange = context.trace_request_ctx
        exchange.connected_ns = now_ns()

    trace.on_connection_create_start.append(start)
    trace.on_connection_create_end.append(end)
    return trace
