"""Reading from storage: when, how much, and how the three policies end it."""

from __future__ import annotations

import pytest

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.config import CacheConfig
from tests.cachesim.prompts import branch, prompt


def stored(n_tokens=3200, policy="wait_complete", name="a", **extra):
    """A flushed cache whose storage holds the prompt."""
    cache = HiCache(CacheConfig(**{"page_size": 128, "device_tokens": 65536, "storage": True, "prefetch_policy": policy,
                                   **extra}))
    cache.run_one(prompt(name, n_tokens), n_tokens)
    assert cache.flush()
    return cache


@pytest.mark.parametrize(("n_tokens", "storage"), [(256, 0), (257, 256), (384, 256), (385, 384)])
def test_fewer_than_256_tokens_are_not_looked_up(n_tokens, storage):
    cache = stored(n_tokens)
    assert cache.run_one(prompt("a", n_tokens), n_tokens).storage == storage
    cache.check()


def test_a_hit_below_the_threshold_is_dropped():
    cache = stored(128)
    assert cache.run_one(prompt("a", 128) + prompt("b", 512), 640).cached == 0
    assert (cache.counters.storage_hit, cache.counters.unfulfilled["below_threshold"]) == (128, 128)


def test_partly_from_each_tier():
    """One request served by device, host and storage: the storage span is what its own read brought."""
    cache = HiCache(CacheConfig(page_size=128, device_tokens=128 * 12, host_ratio=4, storage=True,
                                prefetch_policy="wait_complete"))
    long = branch(("system", 2), ("early", 2), ("late", 4))
    cache.run_one(long, 1024)
    assert cache.flush()
    cache.run_one(long[:4], 512)
    cache.run_one(branch(("system", 2), ("other", 9)), 1400)
    tiers = cache.run_one(long, 1024)
    assert (tiers.device, tiers.host, tiers.storage) == (256, 256, 384)
    assert tiers.cached == 896
    cache.check()


def test_what_another_request_prefetched_counts_as_host():
    cache = stored()
    first, second = (cache.request(prompt("a", 3200), 3200) for _ in range(2))
    cache.complete(cache.arrive(first))
    assert cache.arrive(second) is None
    assert cache.admit(second).tiers.host == 3072
    assert cache.admit(first).tiers.storage == 3072  # its own span, though it is on the device by now
    for request in (first, second):
        cache.finish(request, 1)
    cache.settle()
    cache.check()


def test_wait_complete_waits_and_repeated_arrivals_change_nothing():
    cache = stored()
    request = cache.request(prompt("a", 3200), 3200)
    read = cache.arrive(request)
    assert (read.kind, read.pages, read.batches) == ("storage_read", 24, 1)
    assert cache.arrive(request) is read
    assert not cache.ready(request)
    assert not cache.ready(request, expired=True)
    cache.complete(read)
    assert cache.ready(request)
    assert cache.admit(request).tiers.storage == 3072


@pytest.mark.parametrize(("done", "storage"), [(0, 0), (10, 1280)])
def test_best_effort_uses_what_has_arrived(done, storage):
    cache = stored(policy="best_effort")
    request = cache.request(prompt("a", 3200), 3200)
    cache.progress(cache.arrive(request), done)
    assert cache.ready(request)
    admission = cache.admit(request)
    assert (admission.tiers.storage, admission.tiers.cached) == (storage, storage)
    assert cache.counters.unfulfilled["storage_transfer"] == (24 - done) * 128
    cache.check()


def test_best_effort_gives_nothing_on_an_idle_server():
    cache = stored(policy="best_effort")
    assert cache.run_one(prompt("a", 3200), 3200).cached == 0


def test_timeout_ends_at_its_deadline():
    cache = stored(policy="timeout")
    request = cache.request(prompt("a", 3200), 3200)
    read = cache.arrive(request)
    assert cache.config.prefetch_timeout_s(read.pages) == pytest.approx(1.75)
    cache.progress(read, 16)
    assert not cache.ready(request)
    assert cache.ready(request, expired=True)
    assert cache.counters.unfulfilled["deadline"] == 8 * 128
    assert cache.admit(request).tiers.storage == 2048


def test_a_failed_read_gives_its_first_pages():
    cache = stored()
    request = cache.request(prompt("a", 3200), 3200)
    read = cache.arrive(request)
    cache.progress(read, 4)
    cache.fail(read)
    assert cache.admit(request).tiers.storage == 512
    assert read.state == "failed"


def test_outstanding_reads_are_limited_to_half_the_host():
    cache = stored(32000, host_tokens=128 * 400)
    keys = prompt("a", 32000)
    requests = [cache.request(keys, 32000) for _ in range(3)]
    assert [cache.arrive(request) is not None for request in requests] == [True, False, False]
    for request in requests:
        cache.abort(request)
    assert cache.arrive(cache.request(keys, 32000)) is not None


def test_a_full_host_cuts_the_hit():
    """The hit is cut to the free host pages (#40193)."""
    cache = HiCache(CacheConfig(page_size=128, device_tokens=128 * 60, host_tokens=128 * 24, storage=True,
                                prefetch_policy="wait_complete"))
    cache.run_one(prompt("a", 128 * 20), 128 * 20)
    assert cache.flush()
    hog = cache.request(prompt("hog", 128 * 16), 128 * 16)
    cache.admit(hog)
    cache.insert_chunk(hog, 128 * 16)
    tiers = cache.run_one(prompt("a", 128 * 20), 128 * 20)
    assert tiers.storage == 8 * 128
    assert cache.counters.unfulfilled["host_capacity"] == 11 * 128


def test_no_lookup_beyond_an_anchor_that_is_only_on_the_device():
    cache = HiCache(CacheConfig(page_size=128, device_tokens=65536, storage=True, prefetch_policy="wait_complete",
                                write_policy="write_through_selective"))
    long = prompt("a", 1280)
    for _ in range(2):
        cache.run_one(long, 1280)
    assert cache.flush()
    cache.run_one(long[:2], 256)  # too short for a lookup: computed, and after one request on the device only
    request = cache.request(long, 1280)
    assert cache.arrive(request) is None
    assert cache.admit(request).tiers.cached == 256
    cache.finish(request, 1)
    cache.settle()
    assert cache.flush()
    assert cache.run_one(long, 1280).storage == 1152


def test_two_reads_of_the_same_pages():
    """The second finds its pages on the host already: they are the first one's storage hit, and its own host hit."""
    cache = stored()
    first, second = (cache.request(prompt("a", 3200), 3200) for _ in range(2))
    reads = [cache.arrive(first), cache.arrive(second)]
    for read in reads:
        cache.complete(read)
    assert cache.counters.unfulfilled["device_overlap"] == 3072
    assert cache.host_used_tokens == 3072
    admission = cache.admit(second)
    assert (admission.tiers.host, admission.tiers.storage) == (3072, 0)
    assert cache.admit(first).tiers.storage == 3072
    for request in (first, second):
        cache.finish(request, 1)
    cache.settle()
    cache.check()


def test_storage_capacity_drops_the_oldest_pages():
    cache = HiCache(CacheConfig(page_size=128, device_tokens=65536, storage=True, storage_pages=30,
                                prefetch_policy="wait_complete"))
    for name in "ab":
        cache.run_one(prompt(name, 20 * 128), 20 * 128)
    assert cache.storage_used_pages == 30
    assert cache.flush()
    assert cache.run_one(prompt("b", 20 * 128), 20 * 128).storage == 19 * 128
    assert cache.flush()
    assert cache.run_one(prompt("a", 20 * 128), 20 * 128).storage == 0  # its head is gone


def test_aborting_a_waiting_request_frees_its_read():
    cache = stored()
    request = cache.request(prompt("a", 3200), 3200)
    cache.arrive(request)
    cache.abort(request)
    assert cache.host_used_tokens == 0
    cache.check()
    assert cache.flush()
