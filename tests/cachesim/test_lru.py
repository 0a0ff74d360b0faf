"""Exact LRU against published figures of the Mooncake traces, and the tree against exact LRU."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.lru import inclusive_tiers, lru_hits, stack_distances
from hicache_bench.errors import UsageError

DATA = Path(__file__).parents[3] / "shared" / "data"

POINTS = {  # hit ratios by capacity in blocks, head first / prefix only and tail first
    "conversation": {"any": {1000: 0.0445, 10000: 0.2112, 30000: 0.3257, 50000: 0.3546, 100000: 0.3637},
                     "pre": {1000: 0.0445, 10000: 0.2116, 30000: 0.3257, 50000: 0.3546, 100000: 0.3637}},
    "synthetic": {"any": {1000: 0.0825, 10000: 0.4235, 30000: 0.6242, 50000: 0.6396, 100000: 0.6396},
                  "pre": {1000: 0.0841, 10000: 0.4239, 30000: 0.6242, 50000: 0.6396, 100000: 0.6396}},
}
THIRD_PARTY = {  # at 1, 5, 10, 25 and 50 % of the unique blocks, and unbounded
    "conversation": ([0.052, 0.195, 0.278, 0.353, 0.363], 0.366),
    "synthetic": ([0.034, 0.155, 0.260, 0.443, 0.589], 0.640),
}


@pytest.fixture(scope="module", params=[pytest.param("conversation", marks=pytest.mark.slow), "synthetic"])
def trace(request):
    path = DATA / f"mooncake_{request.param}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"no trace {path.name} beside the repository")
    requests = [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]
    return request.param, requests, stack_distances(requests)


def test_one_pass_gives_every_capacity(trace):
    name, requests, (histogram, accesses) = trace
    curve = list(accumulate(histogram))
    for capacity, ratio in POINTS[name]["any"].items():
        assert curve[min(capacity, accesses)] / accesses == pytest.approx(ratio, abs=5e-5)
    unique = len({block for request in requests for block in request})
    shares, ideal = THIRD_PARTY[name]
    for share, ratio in zip((0.01, 0.05, 0.10, 0.25, 0.50), shares, strict=True):
        assert curve[int(unique * share)] / accesses == pytest.approx(ratio, abs=6e-4)
    assert curve[-1] / accesses == pytest.approx(ideal, abs=6e-4)


@pytest.mark.parametrize("capacity", [1000, 10000])
def test_prefix_hits_tail_first(trace, capacity):
    name, requests, _ = trace
    hits = lru_hits(requests, capacity, touch="tail_first", prefix_only=True)
    assert hits.ratio == pytest.approx(POINTS[name]["pre"][capacity], abs=5e-5)


def test_inclusive_tiers(trace):
    name, requests, (_, accesses) = trace
    tiers = [hits / accesses for hits in inclusive_tiers(requests, 10000, 30000)]
    figures = {"conversation": [0.2112, 0.1145, 0.0407], "synthetic": [0.4235, 0.2007, 0.0154]}[name]
    assert tiers == pytest.approx(figures, abs=5e-5)


@given(st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), max_size=20), st.integers(1, 14))
def test_stack_distances_equal_lru(requests, capacity):
    histogram, accesses = stack_distances(requests)
    found = lru_hits(requests, capacity)
    assert (sum(histogram[1 : capacity + 1]), accesses) == (found.hits, found.blocks)


@given(st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), max_size=20), st.integers(1, 14),
       st.integers(0, 5), st.sampled_from(["head_first", "tail_first"]), st.booleans())
def test_tiers_add_up_to_the_ideal(requests, device, more, touch, prefix_only):
    tiers = inclusive_tiers(requests, device, device + more, touch=touch, prefix_only=prefix_only)
    assert sum(tiers) == lru_hits(requests, None, touch=touch, prefix_only=prefix_only).hits


def test_the_order_of_touches_matters():
    requests = [[1, 2, 3], [1, 2, 3]]
    assert lru_hits(requests, 2).hits == 0
    assert lru_hits(requests, 2, touch="tail_first", prefix_only=True).hits == 2
    assert lru_hits([], 1).ratio is None


def test_impossible_sizes():
    with pytest.raises(UsageError, match="LRU of 0 blocks"):
        lru_hits([], 0)
    with pytest.raises(UsageError, match="inclusive tiers only grow"):
        inclusive_tiers([], 10, 9)


# --------------------------------------------------------------------------- the tree


def replay(requests, device, host=None):
    config = CacheConfig(page_size=512, device_tokens=device * 512, hicache=host is not None, storage=host is not None,
                         host_tokens=None if host is None else host * 512, prefetch_policy="wait_complete")
    cache = HiCache(config)
    served = [cache.run_one(blocks, len(blocks) * 512 + 1) for blocks in requests]
    cache.check()
    total = sum(len(blocks) for blocks in requests) * 512
    return cache, [sum(getattr(tiers, tier) for tiers in served) / total for tier in ("device", "host", "storage")]


def test_an_unbounded_tree_is_ideal(trace):
    _, requests, (histogram, accesses) = trace
    cache, (device, _, _) = replay(requests, 400_000)
    assert device == pytest.approx(sum(histogram) / accesses, abs=1e-9)
    assert cache.counters.evicted == 0


def test_three_tiers_follow_inclusive_lru(trace):
    """Whole-node eviction and a host that is not touched on device hits cost a little, never more than a point."""
    name, requests, (histogram, accesses) = trace
    _, tiers = replay(requests, 10_000, 30_000)
    exact = [hits / accesses for hits in inclusive_tiers(requests, 10_000, 30_000)]
    assert tiers == pytest.approx(exact, abs=0.012), name
    assert sum(tiers) == pytest.approx(sum(histogram) / accesses, abs=1e-3)


def test_the_tree_forgets_what_it_evicts(trace):
    _, requests, _ = trace
    cache, _ = replay(requests, 500)
    core = cache._core
    assert cache.n_nodes <= 500
    assert len(core.tree.victims) <= 2 * 4096
    assert len(core.device.active) <= 500
