"""The server a run starts when no URL is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def embedded() -> AsyncIterator[str]:
    """A simulated server in a process of its own on a free loopback port; yields its URL."""
    raise NotImplementedError
    yield ""
