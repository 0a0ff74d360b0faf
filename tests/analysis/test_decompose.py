import numpy as np
import pytest

from hicache_bench.analysis.decompose import costs, sums_of
from hicache_bench.analysis.measured import Detail

MS = 1e6


def detail(host_ms=5.0, host_fixed=10.0, n=2000, host=True, storage=False, vary=True, seed=1, noise=0.1):
    """TTFT = 4 ms + 20 ms / 1k recomputed + host_fixed + host_ms / 1k loaded, in two thirds of the requests."""
    rng = np.random.default_rng(seed)
    loaded = (rng.integers(256, 4000, n) if vary else np.full(n, 1024)) * (rng.random(n) < 2 / 3) * host
    from_storage = rng.integers(256, 4000, n) * (rng.random(n) < 0.5) * storage
    device, fresh = rng.integers(0, 500, n), rng.integers(50, 3000, n)
    ttft = (4 + 0.02 * fresh + (host_fixed + host_ms * loaded / 1000) * (loaded > 0)
            + (30 + 0.03 * from_storage) * (from_storage > 0)) * rng.lognormal(0, noise, n) * MS  # fmt: skip
    cached = device + loaded + from_storage
    tokens = {"prompt": cached + fresh, "cached": cached, "device": device, "host": loaded, "storage": from_storage}
    yes, no = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    return Detail(np.arange(n) // 4, (np.arange(n) % 4).astype(np.int32), np.arange(n) * 1.0, yes, no, no, None,
                  {"ttft_service": ttft.astype(np.float32)},
                  {name: item.astype(np.float32) for name, item in tokens.items()})  # fmt: skip


def test_costs_come_back_inside_their_intervals():
    recomputed, host, storage = costs([sums_of(detail())])
    for found, truth in ((recomputed.ms_per_1k, 20), (host.ms_per_1k, 5), (host.fixed_ms, 10),
                         (host.break_even_tokens, 10 / 15 * 1000)):  # fmt: skip
        assert found.low < found.value < found.high
        assert found.value == pytest.approx(truth, rel=0.2)
        assert found.low <= truth * 1.05
        assert found.high >= truth * 0.95
    assert (storage.requests, storage.ms_per_1k, storage.why) == (0, None, "too few requests loaded from it")
    assert recomputed.requests == 2000


def test_two_tiers_and_several_runs():
    _, host, storage = costs([sums_of(detail(storage=True, seed=i)) for i in range(3)])
    assert host.ms_per_1k.value == pytest.approx(5, rel=0.3)
    assert storage.ms_per_1k.value == pytest.approx(30, rel=0.1)
    assert storage.break_even_tokens is None
    assert storage.why.startswith("loading a token takes as long")


def test_what_cannot_be_told_apart_is_none():
    _, host, _ = costs([sums_of(detail(vary=False))])
    assert host.fixed_ms is None or host.ms_per_1k is None
    assert host.break_even_tokens is None
    assert "do not vary enough" in host.why
    assert costs([None, None]) == ()
    assert costs([sums_of(detail(n=44))]) == ()
    assert sums_of(detail(n=30)) is None


def test_loading_that_always_pays():
    _, host, _ = costs([sums_of(detail(host_fixed=-2.0, noise=0.01))])
    assert host.break_even_tokens.value == 0
    assert host.why == "loading pays at any length"


def test_unsaid_tiers_do_not_count_as_nothing_loaded():
    found = detail()
    found.tokens["host"][::2] = np.nan
    said = sums_of(found).requests
    assert said < 2000
    _, host, _ = costs([sums_of(found)])
    assert host.ms_per_1k.value == pytest.approx(5, rel=0.4)
