import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.simserver.cache import Match, PrefixCache


def prompt(name: int, n: int) -> list[int]:
    return [name * 1_000_000 + i for i in range(n)]


def serve(cache: PrefixCache, ids: list[int], output: int = 1, namespace: bytes = b"") -> Match:
    found = cache.match(ids, namespace)
    cache.insert(ids, len(ids), namespace)
    whole = ids + [7] * (output - 1)
    cache.insert(whole, len(whole), namespace)
    return found


@pytest.mark.parametrize(("length", "cached"), [
    (3200, 3072), (3201, 3200), (3300, 3200), (3328, 3200), (3329, 3328), (128, 0), (129, 128), (1, 0),
])
def test_all_but_the_last_token_floored_to_a_page(length, cached):
    """The lengths measured on the real server at page 128."""
    cache = PrefixCache(128, 65536)
    assert serve(cache, prompt(1, length)) == Match()
    assert serve(cache, prompt(1, length)) == Match(device=cached)


def test_logprob_limit():
    cache = PrefixCache(16, 1024)
    serve(cache, prompt(1, 100))
    assert cache.match(prompt(1, 100), limit_tokens=0) == Match()
    assert cache.match(prompt(1, 100), limit_tokens=40) == Match(device=32)


def test_the_answer_is_cached_without_its_last_token():
    cache = PrefixCache(16, 1024)
    serve(cache, prompt(1, 30), output=3)  # 32 tokens have KV
    assert cache.match(prompt(1, 30) + [7] * 10) == Match(device=32)
    cache = PrefixCache(16, 1024)
    serve(cache, prompt(1, 30), output=2)  # 31 have
    assert cache.match(prompt(1, 30) + [7] * 10) == Match(device=16)


def test_tiers_after_eviction_flush_and_clear():
    cache = PrefixCache(16, 2048, 8208, 65536)
    base = prompt(0, 507)
    assert serve(cache, base) == Match()
    assert serve(cache, base) == Match(device=496)
    for name in range(1, 7):
        serve(cache, prompt(name, 507))
    assert serve(cache, base) == Match(host=496)
    assert serve(cache, base) == Match(device=496)
    cache.flush()
    assert (cache.device_used_tokens, cache.host_used_tokens) == (0, 0)
    assert serve(cache, base) == Match(storage=496)
    assert serve(cache, base) == Match(device=496)
    cache.flush()
    cache.clear_storage()
    assert serve(cache, base) == Match()
    assert (cache.counters.load_back, cache.counters.prefetched) == (992, 496)


def test_a_prompt_partly_in_each_tier():
    cache = PrefixCache(16, 64, 128, 4096, prefetch_threshold=0)
    ids = prompt(0, 257)
    serve(cache, ids)
    assert cache.match(ids) == Match(device=64, host=64, storage=128)


def test_the_least_recent_tail_goes_first():
    cache = PrefixCache(16, 64)
    serve(cache, prompt(1, 32))
    serve(cache, prompt(2, 32))
    serve(cache, prompt(1, 33))
    serve(cache, prompt(3, 16))
    assert cache.counters.evicted == 16
    assert cache.match(prompt(2, 33)) == Match(device=16)
    assert cache.match(prompt(1, 33)) == Match(device=32)


@pytest.mark.parametrize(("length", "hit"), [(257, 256), (256, 0), (400, 384)])
def test_short_storage_hits_are_not_read(length, hit):
    cache = PrefixCache(16, 4096, 4096, 65536)
    serve(cache, prompt(1, length))
    cache.flush()
    assert cache.match(prompt(1, length)) == Match(storage=hit)


def test_without_tiers_nothing_is_written():
    cache = PrefixCache(16, 1024)
    serve(cache, prompt(1, 100))
    assert (cache.counters.backup, cache.counters.storage_backup) == (0, 0)
    cache.flush()
    assert cache.match(prompt(1, 100)) == Match()


def test_namespaces_share_nothing():
    cache = PrefixCache(16, 1024)
    serve(cache, prompt(1, 100), namespace=b"a")
    assert cache.match(prompt(1, 100)) == Match()
    assert cache.match(prompt(1, 100), b"b") == Match()
    assert cache.match(prompt(1, 100), b"a") == Match(device=96)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 200))
def test_matches_agree_with_what_was_sent_and_tiers_stay_bounded(seed, page, threshold):
    rng = random.Random(seed)
    cache = PrefixCache(page, 8 * page, 16 * page, 32 * page, threshold)
    sent: set[tuple[int, ...]] = set()
    for _ in range(60):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 12 * page))]
        found = cache.match(ids)
        assert found.total <= max(len(ids) - 1, 0)
        assert found.total % page == 0
        assert found.total == 0 or tuple(ids[: found.total]) in sent
        cache.insert(ids, len(ids))
        sent.update(tuple(ids[:n]) for n in range(page, len(ids) + 1, page))
        assert cache.device_used_tokens <= 8 * page
        assert cache.host_used_tokens <= 16 * page
        assert cache.storage_used_tokens <= 32 * page
