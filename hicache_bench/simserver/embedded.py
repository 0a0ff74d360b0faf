"""The server a run starts when no URL is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server

EMBEDDED = SimConfig(max_total_tokens=16384, storage_tokens=2**18)
"""Small on purpose: the shipped workloads overflow its device pool and some its host pool within a minute, so
that every tier takes part. No machine's sizes."""


@asynccontextmanager
async def embedded(config: SimConfig = EMBEDDED) -> AsyncIterator[str]:
    """A simulated server in a process of its own on a free loopback port; yields its URL."""
    server = await asyncio.to_thread(spawn_server, config)
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.close)
