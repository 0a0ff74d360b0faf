"""The four models of the seed script: what they report, and when the base prompt leaves the device."""

from __future__ import annotations

import pytest

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.profiles.profile import load_profile, shipped_profiles
from tests.cachesim.prompts import prompt

EXPECTED = {"qwen3.6-hybrid-mamba": (3072, 3, 19), "kimi-k3-kda": (3072, 3, 19), "glm5.2-dsa": (3072, 2, 19),
            "deepseek-v4": (2048, 2, 2)}


def test_the_profiles_are_the_measured_ones():
    assert set(shipped_profiles()) == set(EXPECTED)
    for name, (cached, prime, stay) in EXPECTED.items():
        profile = load_profile(name)
        figures = profile.figures
        assert (figures.match_tokens.value, figures.prime_requests.value) == (cached, prime)
        assert figures.first_evicting_peers is not None
        assert figures.first_evicting_peers.value == stay + 1
        assert figures.stay_peers.value <= stay < figures.evict_peers.value
        assert (profile.prompt_tokens, profile.server.max_total_tokens) == (3200, 65536)


@pytest.mark.parametrize("name", EXPECTED)
def test_first_hit_and_cached_length(name):
    profile = load_profile(name)
    cache = HiCache(profile.server.cache())
    seen = [cache.run_one(prompt("base", 3200), 3200, 16) for _ in range(profile.figures.prime_requests.value)]
    match = profile.figures.match_tokens.value
    assert [tiers.cached for tiers in seen] == [0] * (len(seen) - 1) + [match]
    assert seen[-1].device == match
    cache.check()


@pytest.mark.parametrize("hicache", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
def test_peers_that_stay_and_peers_that_evict(name, hicache):
    profile = load_profile(name)
    threshold = EXPECTED[name][2] + 1
    for peers, device in ((threshold - 1, profile.figures.match_tokens.value), (threshold, 0)):
        cache = HiCache(profile.server.cache(hicache=hicache))
        for _ in range(profile.figures.prime_requests.value):
            cache.run_one(prompt("base", 3200), 3200, 16)
        for peer in range(peers):
            cache.run_one(prompt(peer, 3200), 3200, 1)
        tiers = cache.run_one(prompt("base", 3200), 3200, 16)
        restored = 0 if device or not hicache else profile.figures.match_tokens.value
        assert (tiers.device, tiers.host) == (device, restored)
        assert tiers.storage == 0
        cache.check()


@pytest.mark.parametrize("name", EXPECTED)
def test_storage_survives_a_flush(name):
    profile = load_profile(name)
    cache = HiCache(profile.server.cache())
    for _ in range(3):
        cache.run_one(prompt("base", 3200), 3200, 16)
    assert cache.flush()
    tiers = cache.run_one(prompt("base", 3200), 3200, 16)
    assert (tiers.device, tiers.host, tiers.storage) == (0, 0, profile.figures.match_tokens.value)
    assert cache.run_one(prompt("base", 3200), 3200, 16).device == profile.figures.match_tokens.value
    assert cache.flush()
    cache.clear_storage()
    assert cache.run_one(prompt("base", 3200), 3200, 16).cached == 0
