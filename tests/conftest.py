"""One simulated server for all tests that need only some server."""

from __future__ import annotations

import pytest

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server


@pytest.fixture(scope="session")
def sim_url():
    with spawn_server(SimConfig(prefill_tokens_per_s=0, decode_ms=1)) as server:
        yield server.url
