"""The rules of the tree and its tiers, one by one, on caches small enough to count by hand."""

from __future__ import annotations

import pytest

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.chain import namespace_seed, page_keys
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.errors import UsageError
from tests.cachesim.prompts import branch, prompt


def make(pages=32, **extra):
    return HiCache(CacheConfig(**{"page_size": 16, "device_tokens": 16 * pages, "prefetch_policy": "wait_complete",
                                  **extra}))


def run(cache, name, pages, new=1, tail=1, **extra):
    keys = name if isinstance(name, list) else prompt(name, pages * 16, 16)
    tiers = cache.run_one(keys, pages * 16 + tail, new, **extra)
    cache.check()
    return tiers


# --------------------------------------------------------------------------- match and insert


@pytest.mark.parametrize(("n_tokens", "cached"), [(16, 0), (17, 16), (32, 16), (33, 32), (1, 0)])
def test_the_last_token_is_always_computed(n_tokens, cached):
    cache = make()
    for _ in range(2):
        tiers = cache.run_one(prompt("a", n_tokens, 16), n_tokens)
    assert tiers.device == cached


@pytest.mark.parametrize(("limit", "cached"), [(0, 0), (31, 16), (32, 32), (1000, 64), (None, 64)])
def test_logprobs_lower_the_limit(limit, cached):
    cache = make()
    run(cache, "a", 4)
    assert run(cache, "a", 4, match_limit_tokens=limit).cached == cached


def test_a_split_serves_both_branches():
    cache = make()
    run(cache, branch(("root", 3), ("left", 2)), 5)
    nodes = cache.n_nodes
    assert run(cache, branch(("root", 3), ("right", 2)), 5).device == 48
    assert cache.n_nodes == nodes + 2
    for side in ("left", "right"):
        assert run(cache, branch(("root", 3), (side, 2)), 5).device == 80


def test_a_prompt_is_in_the_tree_before_its_request_has_ended():
    cache = make()
    keys = prompt("a", 80, 16)
    first = cache.request(keys, 80, 8)
    assert cache.admit(first).cached_tokens == 0
    cache.insert_chunk(first, 80)
    second = cache.request(keys, 80, 8)
    assert cache.admit(second).tiers.device == 64
    cache.finish(first, 8)
    cache.finish(second, 8)
    cache.settle()
    cache.check()


def test_each_chunk_is_published():
    cache = make(chunked_prefill_size=40)
    keys = prompt("a", 100, 16)
    request = cache.request(keys, 100)
    cache.admit(request)
    assert request.allocated == 2  # 40 tokens are floored to pages
    cache.insert_chunk(request, 32)
    other = cache.request(keys, 100)
    assert cache.admit(other).tiers.device == 32
    assert cache.extend(request, 64)
    cache.abort(other)
    cache.abort(request)
    assert cache.device_used_tokens == 32
    cache.settle()
    cache.check()


@pytest.mark.parametrize(("n_tokens", "chunk", "ends"), [
    (96, 96, [96]), (100, 100, [96, 100]),  # fits by tokens, but not by pages
    (250, 100, [96, 196, 250]),  # only the first chunk is cut to whole pages
    (112, 100, [96, 112]), (10, 100, [10]),
])
def test_where_chunks_end(n_tokens, chunk, ends):
    cache = make(chunked_prefill_size=chunk)
    request = cache.request(prompt("a", n_tokens, 16), n_tokens)
    at = cache.admit(request).chunk_end
    seen = [at]
    while at < n_tokens:
        cache.insert_chunk(request, at)
        at = cache.next_chunk_end(request)
        assert cache.extend(request, at)
        seen.append(at)
    assert seen == ends
    cache.finish(request, 1)
    cache.settle()
    cache.check()
    assert cache.device_used_tokens == n_tokens // 16 * 16


def test_output_is_cached_but_for_its_last_token():
    keys = prompt("a", 64, 16)
    for new, pages in ((16, 2), (17, 3), (18, 3)):
        cache = make()
        cache.run_one(keys, 32, new)
        assert cache.device_used_tokens == 16 * pages
        assert cache.run_one(keys, 64).cached == 16 * pages


def test_output_without_keys_is_resident_and_never_matches():
    cache = make()
    run(cache, "a", 2, new=40)
    assert cache.device_used_tokens == 64
    assert run(cache, "a", 3).cached == 32


def test_output_is_evicted_without_its_prompt():
    cache = make(10, hicache=False)
    run(cache, branch(("prompt", 3), ("output", 2)), 3, new=33, tail=0)
    assert cache.n_nodes == 2
    run(cache, "other", 5)
    assert cache.run_one(branch(("prompt", 3), ("output", 2)), 81).cached == 48


def test_a_prompt_with_output_outranks_its_output_and_newer_prompts():
    cache = make(12, hicache=False, eviction_policy="priority")
    run(cache, branch(("prompt", 3), ("output", 2)), 3, new=33, tail=0)
    run(cache, "newer", 3, tail=0)
    run(cache, "newest", 8, tail=0)
    tree = cache._core.tree
    assert tree.match(branch(("prompt", 3)), 3).full_pages == 3
    assert tree.match(prompt("newer", 48, 16), 3).full_pages == 0


def test_abort_keeps_what_was_published_and_frees_the_rest():
    cache = make()
    request = cache.request(prompt("a", 64, 16), 64, 4)
    cache.admit(request)
    cache.abort(request)
    assert cache.device_used_tokens == 0
    assert cache.flush()


@pytest.mark.parametrize("rounds", [1, 2, 5, 8])
def test_multi_turn_hit_is_k_over_k_plus_one(rounds):
    """With equal turns and no output worth mentioning, round k finds k of its k + 1 parts."""
    cache = make(100)
    for turn in range(rounds + 1):
        tiers = run(cache, "chat", 5 * (turn + 1), tail=1)
    assert tiers.cached / (5 * (rounds + 1) * 16) == pytest.approx(rounds / (rounds + 1))


def test_namespaces_do_not_share():
    ids = list(range(100))
    cache = make(storage=True)
    for extra_key, salt in ((None, None), ("a", None), (None, "a"), ("a", "b")):
        keys = page_keys(ids, 16, namespace_seed(extra_key, salt))
        assert cache.run_one(keys, 100).cached == 0
        assert cache.run_one(keys, 100).device == 96


# --------------------------------------------------------------------------- device and eviction


def test_one_page_more_than_needed_must_be_free():
    """Prefill asks for a page a request beyond its tokens (issue of the threshold 20 instead of 21)."""
    cache = make(10)
    run(cache, "a", 5, tail=0)
    run(cache, "b", 4, tail=0)
    assert cache.counters.evicted == 0
    cache = make(10)
    run(cache, "a", 5, tail=0)
    run(cache, "b", 5, tail=0)
    assert cache.counters.evicted == 80


def test_admission_keeps_a_page_and_a_token_spare():
    """Prompt, output and a page must be less than what is free or evictable, not equal to it."""
    for n_tokens, fits in ((142, True), (143, False)):
        cache = make(10)
        run(cache, "old", 5, tail=0)
        request = cache.request(prompt("a", n_tokens, 16), n_tokens, 1)
        assert (cache.admit(request) is not None) == fits
        cache.abort(request)
        cache.check()


def test_single_token_pages_are_counted_exactly():
    cache = HiCache(CacheConfig(page_size=1, device_tokens=10))
    cache.run_one(prompt("a", 5, 1), 5)
    cache.run_one(prompt("b", 5, 1), 5)
    assert cache.counters.evicted == 0


def test_a_whole_node_leaves_and_leaves_go_first():
    cache = make(12, hicache=False)
    run(cache, branch(("root", 2), ("left", 4)), 6, tail=0)
    run(cache, branch(("root", 2), ("right", 3)), 5, tail=0)
    run(cache, "other", 3, tail=0)  # one page short: all four pages of the oldest leaf go, the root stays
    assert cache.counters.evicted == 64
    assert cache.counters.dropped["write_through_unbacked_eviction"] == 0  # counted with HiCache only
    assert run(cache, branch(("root", 2), ("right", 3)), 5).device == 80


def test_decode_asks_for_a_page_before_every_step():
    cache = make(9, hicache=False)
    run(cache, "old", 3, tail=0)
    run(cache, "new", 5, new=1, tail=0)
    assert cache.counters.evicted == 0
    run(cache, "new", 5, new=2, tail=1)
    assert cache.counters.evicted == 48


def test_a_locked_prefix_stays():
    cache = make(12)
    run(cache, "a", 4)
    request = cache.request(prompt("a", 70, 16), 70, 4)
    assert cache.admit(request).tiers.device == 64
    other = cache.request(prompt("b", 160, 16), 160)
    assert cache.admit(other) is None
    cache.abort(request)
    assert cache.admit(other) is not None
    cache.abort(other)
    cache.settle()
    cache.check()


def evicted_first(policy, touch):
    cache = make(10, hicache=False, eviction_policy=policy)
    for name, times, priority in (("a", 3, 0), ("b", 2, 1), ("c", 1, 2)):
        for _ in range(times):
            run(cache, name, 2, tail=0, priority=priority)
    for name in touch:
        run(cache, name, 2, tail=0)
    run(cache, "new", 4, tail=0)
    tree = cache._core.tree  # a request would evict more
    return {name for name in "abc" if tree.match(prompt(name, 32, 16), 2).full_pages < 2}


@pytest.mark.parametrize(("policy", "touch", "gone"), [
    ("lru", "", "a"), ("lru", "a", "b"), ("lfu", "", "c"), ("slru", "", "c"), ("slru", "c", "a"), ("priority", "", "a"),
    ("priority", "a", "a"),
])
def test_eviction_policies(policy, touch, gone):
    assert evicted_first(policy, touch) == set(gone)


# --------------------------------------------------------------------------- host and write policies


def test_write_through_backs_up_at_the_first_insert():
    cache = make()
    run(cache, "a", 4)
    assert (cache.host_used_tokens, cache.counters.backup) == (64, 64)


def test_selective_backs_up_at_the_second():
    cache = make(write_policy="write_through_selective")
    run(cache, "a", 4, new=4)
    assert cache.host_used_tokens == 0  # one request counts once, though it inserts twice
    run(cache, "a", 4, new=4)
    assert cache.host_used_tokens == 64


def test_write_back_backs_up_at_eviction():
    cache = make(10, write_policy="write_back", storage=True)
    for _ in range(3):
        run(cache, "a", 4, tail=0)
    assert (cache.host_used_tokens, cache.storage_used_pages) == (0, 0)
    run(cache, "b", 8, tail=0)
    assert (cache.host_used_tokens, cache.counters.backup, cache.storage_used_pages) == (64, 64, 4)
    tiers = run(cache, "a", 4, tail=0)
    assert (tiers.device, tiers.host) == (0, 48)


def test_an_unbacked_node_is_deleted_under_write_through():
    cache = make(10, write_policy="write_through_selective")
    run(cache, "a", 4, tail=0)
    run(cache, "b", 8, tail=0)
    assert cache.counters.dropped["write_through_unbacked_eviction"] == 64
    assert run(cache, "a", 4).cached == 0


def test_write_back_drops_what_the_host_cannot_take():
    cache = make(10, write_policy="write_back", host_tokens=16)
    run(cache, "a", 4, tail=0)
    run(cache, "b", 8, tail=0)
    assert cache.counters.dropped["host_pressure"] == 64
    assert run(cache, "a", 4).cached == 0


def test_a_small_host_is_full_of_what_the_device_holds():
    """Pages on the device cannot leave the host, so a host below the device keeps nothing more (#28614)."""
    cache = make(20, host_tokens=16 * 10)
    for name in "abcde":
        run(cache, name, 4, tail=0)
    assert run(cache, "c", 4).cached in (0, 64)
    assert cache.host_used_tokens <= 160
    assert cache.counters.load_back == 0


def test_write_back_reclaims_duplicates_before_sole_copies():
    cache = make(10, write_policy="write_back", host_tokens=16 * 8)
    run(cache, "a", 4, tail=0)
    run(cache, "b", 8, tail=0)  # a to the host
    run(cache, "a", 4, tail=0)  # back on the device, b to the host: 12 pages for 8
    assert cache.counters.dropped["host_pressure"] + cache.counters.backup > 0
    cache.check()


def test_host_eviction_takes_the_oldest_leaf():
    cache = make(6, host_tokens=16 * 12)
    for name in "abcd":
        run(cache, name, 4, tail=0)
    assert cache.host_used_tokens == 192
    request = cache.request(prompt("a", 65, 16), 65)
    assert cache.admit(request).cached_tokens == 0
    cache.abort(request)
    assert run(cache, "b", 4, tail=0).host == 48


@pytest.mark.parametrize(("policy", "reaches"), [("write_through", True), ("write_back", False)])
def test_storage_is_written_after_the_backup_in_batches(policy, reaches):
    cache = HiCache(CacheConfig(page_size=1, device_tokens=1000, storage=True, write_policy=policy))
    request = cache.request(prompt("a", 300, 1), 300)
    cache.admit(request)
    cache.finish(request, 1)
    started = cache.take_started()
    if not reaches:
        assert started == []
        return
    (copy,) = started
    assert (copy.kind, copy.pages) == ("backup", 300)
    assert not cache.flush()
    cache.complete(copy)
    (write,) = cache.take_started()
    assert (write.kind, write.pages, write.batches) == ("storage_write", 300, 3)
    cache.progress(write, write.BATCH_PAGES)
    cache.fail(write)
    assert (cache.storage_used_pages, cache.counters.storage_backup) == (128, 128)
    assert cache.flush()


def test_a_copy_in_flight_keeps_its_source():
    cache = make(10)
    request = cache.request(prompt("a", 64, 16), 64)
    cache.admit(request)
    cache.finish(request, 1)
    (copy,) = cache.take_started()
    assert cache.evictable_tokens == 0
    other = cache.request(prompt("b", 128, 16), 128)
    assert cache.admit(other) is None
    cache.complete(copy)
    assert cache.admit(other) is not None
    cache.finish(other, 1)
    cache.settle()
    cache.check()


def test_a_failed_backup_is_undone_and_tried_again():
    cache = make()
    request = cache.request(prompt("a", 64, 16), 64)
    cache.admit(request)
    cache.finish(request, 1)
    (copy,) = cache.take_started()
    cache.fail(copy)
    assert cache.host_used_tokens == 0
    cache.check()
    run(cache, "a", 4)
    assert cache.host_used_tokens == 64


def test_load_back_is_all_or_nothing():
    cache = make(12)
    run(cache, "a", 6, tail=0)
    run(cache, "b", 6, tail=0)
    hog = cache.request(prompt("hog", 80, 16), 80, 1)
    assert cache.admit(hog) is not None
    request = cache.request(prompt("a", 97, 16), 97)
    admission = cache.admit(request)
    assert admission is None  # six pages to load and two to compute: not while the hog runs
    cache.abort(hog)
    admission = cache.admit(request)
    assert (admission.tiers.host, admission.load_back.pages) == (96, 6)
    assert admission.load_back.kind == "load_back"
    cache.finish(request, 1)
    cache.settle()
    cache.check()


def test_a_load_back_under_ten_tokens_is_not_worth_it():
    def hit(n):
        cache = HiCache(CacheConfig(page_size=1, device_tokens=43))
        cache.run_one(prompt("a", n, 1), n)
        cache.run_one(prompt("b", 40, 1), 40)
        return cache.run_one(prompt("a", n, 1), n).host
    assert (hit(10), hit(11)) == (0, 10)


def test_flush_and_clear():
    cache = make(storage=True)
    run(cache, "a", 20)
    assert cache.flush()
    assert (cache.device_used_tokens, cache.host_used_tokens, cache.storage_used_pages) == (0, 0, 20)
    assert run(cache, "a", 20).storage == 320
    cache.clear_storage()
    assert cache.storage_used_pages == 0
    assert run(cache, "a", 20).device == 320
    assert cache.storage_used_pages == 0  # still on the host, so not written again
    request = cache.request(prompt("a", 32, 16), 32)
    assert not cache.flush()
    cache.abort(request)
    assert cache.flush()


# --------------------------------------------------------------------------- misuse


def test_misuse_is_refused():
    cache = make(4)
    with pytest.raises(UsageError, match="0 tokens"):
        cache.request([], 0)
    with pytest.raises(UsageError, match="1 page keys"):
        cache.request(["a"], 32)
    with pytest.raises(UsageError, match="never fits"):
        run(cache, "a", 4)
    assert cache.flush()
    request = cache.request(prompt("a", 32, 16), 32)
    with pytest.raises(UsageError, match="only a running request"):
        cache.finish(request, 1)
    cache.admit(request)
    with pytest.raises(UsageError, match="cannot be admitted"):
        cache.admit(request)
    with pytest.raises(UsageError, match="chunk up to 33; 32 of its 32"):
        cache.insert_chunk(request, 33)
