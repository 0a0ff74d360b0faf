"""Figures of real SGLang 0.5.23 servers with SWA, Mamba and MLA models, all from one model without special cases."""

from __future__ import annotations

import pytest

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.config import C128, CacheConfig, Mamba, Swa
from tests.cachesim.prompts import prompt


def make(**extra):
    return HiCache(CacheConfig(**{"page_size": 128, "device_tokens": 65536, "storage": True,
                                  "prefetch_policy": "wait_complete", **extra}))


def cached(cache, n_tokens, times=3):
    return [cache.run_one(prompt("base", n_tokens), n_tokens, 16).cached for _ in range(times)]


def after_peers(peers, new_tokens=1, **extra):
    cache = make(**extra)
    for _ in range(2):
        cache.run_one(prompt("base", 3200), 3200, 16)
    for peer in range(peers):
        cache.run_one(prompt(peer, 3200), 3200, new_tokens)
    tiers = cache.run_one(prompt("base", 3200), 3200, 16)
    cache.check()
    return tiers.device, tiers.host


FULL_LENGTHS = {128: 0, 129: 128, 256: 128, 257: 256, 3200: 3072, 3201: 3200, 3300: 3200, 3328: 3200, 3329: 3328}


@pytest.mark.parametrize("extra", [
    {}, {"swa": Swa(128, 0.2)}, {"swa": Swa(4096, 0.2)}, {"hicache": False, "storage": False},
], ids=["full", "swa 128", "swa 4096", "no hicache"])
@pytest.mark.parametrize("n_tokens", FULL_LENGTHS)
def test_cached_lengths(n_tokens, extra):
    """At most the last token but one, floored to a page; SWA adds no floor and no delay; MLA is full attention."""
    assert cached(make(**extra), n_tokens) == [0] + 2 * [FULL_LENGTHS[n_tokens]]


@pytest.mark.parametrize(("n_tokens", "lengths"), [
    (3200, [0, 0, 3072]), (3072, [0, 0, 2944]), (3201, [0, 3200, 3200]), (3300, [0, 3200, 3200]),
    (6000, [0, 5888, 5888]), (130, [0, 128, 128]),
])
def test_a_branching_state_makes_page_multiples_wait_for_the_third_request(n_tokens, lengths):
    assert cached(make(mamba=Mamba(64)), n_tokens) == lengths
    assert cached(make(mamba=Mamba(64), hicache=False, storage=False), n_tokens) == lengths


@pytest.mark.parametrize(("n_tokens", "length"), [(3200, 2048), (3300, 2048), (2049, 2048), (4097, 4096), (2048, 0),
                                                  (2047, 0)])
def test_c128_groups(n_tokens, length):
    assert cached(make(swa=Swa(128, 0.1), c128=C128()), n_tokens) == [0, length, length]


SWA_ROWS = [(0.2, 128, False, 3), (0.2, 4096, False, 3), (0.25, 128, False, 5), (0.5, 128, False, 10),
            (0.8, 128, False, 16), (0.1, 128, True, 2), (0.2, 128, True, 5)]


@pytest.mark.parametrize(("ratio", "window", "floor", "stay"), SWA_ROWS)
def test_window_pool_thresholds(ratio, window, floor, stay):
    extra = {"swa": Swa(window, ratio), "c128": C128() if floor else None}
    length = 2048 if floor else 3072
    assert after_peers(stay, **extra) == (length, 0)
    assert after_peers(stay + 1, **extra) == (0, length)


def test_window_pool_threshold_without_hicache():
    extra = {"swa": Swa(128, 0.2), "hicache": False, "storage": False}
    assert after_peers(3, **extra) == (3072, 0)
    assert after_peers(4, **extra) == (0, 0)


@pytest.mark.parametrize(("pages", "base", "peer"), [(102, 2, 25), (128, 2, 25), (51, 2, 16)])
def test_threshold_rule(pages, base, peer):
    """The base leaves at the first peer n that does not find 26 pages: S - B - (n - 1) * Q < 26."""
    first = next(n for n in range(1, 40) if pages - base - (n - 1) * peer < 26)
    ratio = (pages + 0.5) * 128 / 65536
    extra = {"swa": Swa(128, ratio), "c128": C128() if peer == 16 else None}
    assert make(**extra).config.swa_pages == pages
    assert after_peers(first - 1, **extra)[0] > 0
    assert after_peers(first, **extra)[0] == 0


@pytest.mark.parametrize("extra", [{}, {"mamba": Mamba(64)}], ids=["full", "mamba"])
def test_full_pool_threshold(extra):
    for peers, expected in ((17, (3072, 0)), (19, (3072, 0)), (20, (0, 3072)), (22, (0, 3072))):
        assert after_peers(peers, **extra) == expected, peers


@pytest.mark.parametrize(("new", "window", "floor", "pages"), [
    (1, 128, False, 25), (16, 128, False, 2), (16, 4096, False, 25), (1, 128, True, 16), (16, 128, True, 2),
])
def test_window_pages_one_request_parks(new, window, floor, pages):
    """Only what is published unfinished is trimmed to its window; a peer of one token parks everything."""
    cache = make(swa=Swa(window, 0.5), c128=C128() if floor else None)
    cache.run_one(prompt("base", 3200), 3200, new)
    assert cache.window_used_pages == pages
    assert cache.device_used_tokens == (16 if floor else 25) * 128


def test_peers_of_16_tokens_do_not_fill_the_window_pool():
    assert after_peers(15, new_tokens=16, swa=Swa(128, 0.2)) == (3072, 0)


@pytest.mark.parametrize(("extra", "lengths"), [
    ({}, {3200: 3072, 3300: 3200}), ({"swa": Swa(128, 0.5)}, {3200: 3072, 3300: 3200}),
    ({"mamba": Mamba(64)}, {3200: 3072, 3300: 3200}),
    ({"swa": Swa(128, 0.1), "c128": C128()}, {3200: 2048, 4200: 4096}),
])
def test_storage_after_a_flush(extra, lengths):
    for n_tokens, length in lengths.items():
        cache = make(**extra)
        cached(cache, n_tokens, 2)
        assert cache.flush()
        tiers = cache.run_one(prompt("base", n_tokens), n_tokens, 16)
        assert (tiers.device, tiers.host, tiers.storage) == (0, 0, length)
        assert cache.run_one(prompt("base", n_tokens), n_tokens, 16).device == length
        cache.check()


def test_a_window_restored_from_the_host_serves_the_next_request_from_the_device():
    cache = make(swa=Swa(128, 0.2))
    for name in ("base", "base", 0, 1, 2, 3):
        cache.run_one(prompt(name, 3200), 3200, 16 if name == "base" else 1)
    before = cache.counters.load_back
    assert cache.run_one(prompt("base", 3200), 3200, 16).host == 3072
    assert cache.counters.load_back == before  # full attention never left: only the window was copied
    assert cache.run_one(prompt("base", 3200), 3200, 16).device == 3072


def test_decoding_leaves_checkpoints_on_the_decode_grid():
    """A state every lcm(128, 256) decoded tokens: the next turn of a chat may begin there."""
    cache = make(mamba=Mamba(64))
    long = prompt("chat", 1280)
    cache.run_one(long[:8], 1000, 100)  # decodes over 1024 only
    assert cache.run_one(long, 1280, 1).cached == 1024


@pytest.mark.parametrize(("slots", "resident"), [(1, 2), (2, 3)])
def test_states_of_a_running_request(slots, resident):
    cache = make(mamba=Mamba(64, tracking_slots=slots))
    request = cache.request(prompt("a", 3200), 3200, 4)
    cache.admit(request)
    states = cache._core.states
    assert states.device_pool.used_pages == resident
    cache.insert_chunk(request, 3200)
    assert states.device_pool.used_pages == resident + 1  # one given to the tree, one taken for it
    cache.finish(request, 4)
    assert states.device_pool.used_pages == 1
    cache.settle()
    cache.check()


def test_states_are_evicted_alone_and_restored_from_the_host():
    """Five states: three of the request and two in the tree, so the oldest prompt loses its state but not its KV."""
    cache = make(mamba=Mamba(5))
    for name in "abc":
        cache.run_one(prompt(name, 3300), 3300, 16)
    tiers = cache.run_one(prompt("a", 3300), 3300, 16)
    assert (tiers.device, tiers.host) == (0, 3200)
    assert cache.run_one(prompt("a", 3300), 3300, 16).device == 3200
    cache.check()


def test_a_window_pool_below_the_prompt_cuts_its_chunks():
    cache = make(swa=Swa(128, 0.05), chunked_prefill_size=65536)
    assert cache.config.swa_pages == 25
    first = cache.run_one(prompt("a", 6400), 6400, 16)
    assert first.cached == 0
    assert cache.run_one(prompt("a", 6400), 6400, 16).device == 6272
    cache.check()
