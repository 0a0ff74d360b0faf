"""The scenario of three real SGLang 0.5.23 servers: cold, warm, after six fillers, after a flush, once more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.chain import page_keys
from hicache_bench.cachesim.config import CacheConfig

CAPTURES = Path(__file__).parents[3] / "shared" / "real_sglang" / "captures"

SCENARIO = ["generate_1_cold", "generate_2_warm_device", *[f"filler_{number}" for number in range(1, 7)],
            "generate_3_after_eviction_to_host", "flush", "generate_4_after_flush_from_storage",
            "generate_5_warm_device_again"]
PAGED = [(0, 0, 0), (496, 0, 0), *[(0, 0, 0)] * 6, (0, 496, 0), (0, 0, 496), (496, 0, 0)]
# Single-token pages: the fillers share 11 tokens; that server was still writing to storage and refused the flush.
SINGLE = [(0, 0, 0), (506, 0, 0), *[(11, 0, 0)] * 6, (11, 495, 0), (506, 0, 0), (506, 0, 0)]

SERVERS = {
    "A_overlap_write_through_layer_first": (16, "write_through", PAGED),
    "B_write_back_page_first_direct_timeout": (16, "write_back", PAGED),
    "F_page1": (1, "write_through", SINGLE),
}


def ids_of(number):
    return [*range(11), *(1000 * (number + 1) + index for index in range(496))]


@pytest.mark.parametrize("server", SERVERS)
def test_the_model_serves_every_tier_as_the_server_did(server):
    page_size, policy, expected = SERVERS[server]
    cache = HiCache(CacheConfig(page_size=page_size, device_tokens=2048, host_ratio=4.0, storage=True,
                                write_policy=policy, prefetch_policy="wait_complete", chunked_prefill_size=2048))
    seen = []
    for step in SCENARIO:
        if step == "flush":
            assert server == "F_page1" or cache.flush()
            continue
        number = int(step.removeprefix("filler_")) if step.startswith("filler") else 0
        tiers = cache.run_one(page_keys(ids_of(number), page_size), 507, 8)
        seen.append((tiers.device, tiers.host, tiers.storage))
        cache.check()
    assert seen == expected


@pytest.mark.parametrize("server", SERVERS)
def test_the_figures_are_those_of_the_captures(server):
    folder = CAPTURES / server
    if not folder.exists():
        pytest.skip("no captures beside the repository")
    seen = []
    for step in SCENARIO:
        if step == "flush":
            continue
        text = (folder / f"{step}.http").read_text(errors="replace")
        assert '"prompt_tokens":507' in text
        details = re.search(r'"cached_tokens_details":(\{[^}]*\}|null)', text)
        tiers = json.loads(details.group(1)) or {}
        seen.append(tuple(tiers.get(tier, 0) for tier in ("device", "host", "storage")))
    assert seen == SERVERS[server][2]
