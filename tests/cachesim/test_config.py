from __future__ import annotations

import pytest

from hicache_bench.cachesim.config import C128, CacheConfig, Mamba, Swa
from hicache_bench.errors import UsageError


def make(**changes):
    return CacheConfig(**{"page_size": 128, "device_tokens": 65536, **changes})


def test_sizes_follow_sglang():
    config = make(swa=Swa(128, 0.2), mamba=Mamba(64))
    assert (config.device_pages, config.host_pages) == (512, 1025)
    assert (config.swa_pages, config.swa_host_pages) == (102, 205)  # 13,056 and 26,240 tokens on a real server
    assert make(hicache=False).host_pages == 0
    assert make(host_tokens=131200).host_pages == 1025
    assert (config.mamba_grid_pages, config.mamba_track_tokens) == (1, 256)
    assert make(page_size=16, mamba=Mamba(64)).mamba_grid_pages == 4


@pytest.mark.parametrize(("ratio", "pages"), [(0.1, 51), (0.2, 102), (0.25, 128), (0.5, 256), (0.8, 409)])
def test_window_pool(ratio, pages):
    assert make(swa=Swa(128, ratio)).swa_pages == pages


def test_prefetch_timeout():
    assert make().prefetch_timeout_s(24) == pytest.approx(1 + 24 * 128 / 1024 * 0.25)


@pytest.mark.parametrize(("changes", "message"), [
    ({"page_size": 0}, "page_size 0"),
    ({"device_tokens": 127}, "device_tokens 127"),
    ({"host_ratio": 0}, "host_ratio 0"),
    ({"host_ratio": float("nan")}, "host_ratio nan"),
    ({"host_tokens": 1}, "host_tokens 1"),
    ({"write_policy": "through"}, "write_policy 'through'.*write_back"),
    ({"eviction_policy": "fifo"}, "eviction_policy 'fifo'.*slru"),
    ({"prefetch_policy": "never"}, "prefetch_policy 'never'"),
    ({"storage": True, "hicache": False}, "storage without hicache"),
    ({"storage_pages": 0}, "storage_pages 0"),
    ({"prefetch_threshold": -1}, "prefetch_threshold -1"),
    ({"load_back_threshold": -1}, "load_back_threshold"),
    ({"chunked_prefill_size": 64}, "chunked_prefill_size 64"),
    ({"prefetch_timeout_base_s": -1.0}, "prefetch_timeout_base_s"),
    ({"swa": Swa(0)}, "swa.window 0"),
    ({"swa": Swa(128, 1.5)}, "swa.ratio 1.5"),
    ({"swa": Swa(128, 0.001)}, "less than two pages"),
    ({"mamba": Mamba(3)}, "mamba.states 3"),
    ({"mamba": Mamba(64, chunk=96)}, "mamba.chunk 96"),
    ({"mamba": Mamba(64, track_interval=100)}, "track_interval 100"),
    ({"c128": C128(0)}, "c128.page_size 0"),
    ({"page_size": 100, "device_tokens": 6400, "c128": C128(16)}, "c128.page_size 16"),
    ({"c128": C128(), "mamba": Mamba(64)}, "together"),
])
def test_bad_values_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        make(**changes)
