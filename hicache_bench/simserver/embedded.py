"""The server a run starts when no URL is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server


@asynccontextmanager
async def embedded(config: SimConfig | None = None) -> AsyncIterator[str]:
    """A simulated server in a process of its own on a free loopback port; yields its URL."""
    server = await asyncio.to_thread(spawn_server, config or SimConfig())
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.close)
