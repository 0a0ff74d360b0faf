"""The four models of the seed script: what they report, and when the base prompt leaves the device."""

from __future__ import annotations

import pytest

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.profiles import PROFILES, load_profile, parse_profile
from hicache_bench.errors import UsageError
from tests.cachesim.prompts import prompt

EXPECTED = {"qwen3.6-hybrid-mamba": (3072, 3, 19), "kimi-k3-kda": (3072, 3, 19), "glm5.2-dsa": (3072, 2, 19),
            "deepseek-v4": (2048, 2, 2)}


def test_the_profiles_are_the_measured_ones():
    assert set(PROFILES) == set(EXPECTED)
    for name, (cached, prime, stay) in EXPECTED.items():
        profile = load_profile(name)
        assert (profile.cached_tokens, profile.prime_requests, profile.peers_stay) == (cached, prime, stay)
        assert (profile.peers_evict, profile.prompt_tokens, profile.device_tokens) == (stay + 1, 3200, 65536)
        assert profile.origin


@pytest.mark.parametrize("name", EXPECTED)
def test_first_hit_and_cached_length(name):
    profile = load_profile(name)
    cache = HiCache(profile.config())
    seen = [cache.run_one(prompt("base", 3200), 3200, 16) for _ in range(profile.prime_requests)]
    assert [tiers.cached for tiers in seen] == [0] * (profile.prime_requests - 1) + [profile.cached_tokens]
    assert seen[-1].device == profile.cached_tokens
    cache.check()


@pytest.mark.parametrize("hicache", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
def test_peers_that_stay_and_peers_that_evict(name, hicache):
    profile = load_profile(name)
    for peers, device in ((profile.peers_stay, profile.cached_tokens), (profile.peers_evict, 0)):
        cache = HiCache(profile.config(hicache=hicache))
        for _ in range(profile.prime_requests):
            cache.run_one(prompt("base", 3200), 3200, 16)
        for peer in range(peers):
            cache.run_one(prompt(peer, 3200), 3200, 1)
        tiers = cache.run_one(prompt("base", 3200), 3200, 16)
        assert (tiers.device, tiers.host) == (device, 0 if device or not hicache else profile.cached_tokens)
        assert tiers.storage == 0
        cache.check()


@pytest.mark.parametrize("name", EXPECTED)
def test_storage_survives_a_flush(name):
    profile = load_profile(name)
    cache = HiCache(profile.config())
    for _ in range(3):
        cache.run_one(prompt("base", 3200), 3200, 16)
    assert cache.flush()
    tiers = cache.run_one(prompt("base", 3200), 3200, 16)
    assert (tiers.device, tiers.host, tiers.storage) == (0, 0, profile.cached_tokens)
    assert cache.run_one(prompt("base", 3200), 3200, 16).device == profile.cached_tokens
    assert cache.flush()
    cache.clear_storage()
    assert cache.run_one(prompt("base", 3200), 3200, 16).cached == 0


def test_unknown_and_broken_profiles():
    with pytest.raises(UsageError, match=r"no profile 'gpt'.*deepseek-v4"):
        load_profile("gpt")
    for data in (b"name = 3", b"[", b"\xff", b'name = "x"\nfoo = 1'):
        with pytest.raises(UsageError, match="profile here"):
            parse_profile(data, "here")
