"""The transport seam: send one request, keep the raw log, never parse it."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Protocol

from hicache_bench.errors import UsageError
from hicache_bench.records import Exchange, Outcome, WireRequest

FD_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_S = 4.0
"""Below uvicorn's keep-alive of 5 s (SGLang's server): a pooled connection is dropped by us before the
server closes it under a request."""

DEFAULT_FIELDS = {
    "Accept": "*/*",
    # Compression would hold tokens back in the server's or a proxy's buffer.
    "Accept-Encoding": "identity",
    "User-Agent": "hicache-bench",
    "Content-Type": "application/json",
}
_OWN_FIELDS = frozenset({"content-length", "transfer-encoding", "connection", "expect"})


class Transport(Protocol):
    """Sends requests over pooled connections.

    `send` fills `exchange` and returns when the answer is complete or has failed; it raises nothing but
    CancelledError, and then `exchange.failure` is already set. Stamps are taken on the read, before
    anything looks at the bytes.
    """

    async def open(self) -> None: ...

    async def send(self, request: WireRequest, exchange: Exchange, timeout_ns: int | None) -> None: ...

    async def close(self) -> None: ...


def classify_os_error(error: OSError, *, connecting: bool) -> tuple[Outcome, str]:
    """The typed outcome of a socket error; running out of descriptors is this client's fault (bug D18)."""
    text = f"{type(error).__name__}: {error}"
    if error.errno in FD_EXHAUSTED:
        return "fd_limit", f"this client ran out of file descriptors ({text}); raise `ulimit -n`"
    return ("connect" if connecting else "disconnect"), text


def request_fields(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The header fields of every request: the given ones as they are (also repeated), then the defaults.

    Raises UsageError for fields the transports own and for characters that would end a field.
    """
    fields = list(headers.items())
    for name, value in fields:
        if name.lower() in _OWN_FIELDS:
            raise UsageError(f"the header {name!r} is set by the client itself; give others")
        if not name or any(c in name for c in "\r\n\0: \t") or any(c in value for c in "\r\n\0"):
            raise UsageError(f"the header {name!r} holds a character that ends or splits a field")
    given = {name.lower() for name, _ in fields}
    return fields + [(name, value) for name, value in DEFAULT_FIELDS.items() if name.lower() not in given]
