"""The transport seam: send one request, keep the raw log, never parse it."""

from __future__ import annotations

import errno
from typing import Protocol

from hicache_bench.records import Exchange, Outcome, WireRequest

FD_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


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
