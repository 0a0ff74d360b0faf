"""Costs: what they amount to, their files, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.cachesim.costs import (
    COSTS,
    GB,
    Clockwork,
    Costs,
    IoPath,
    dump_costs,
    load_costs,
    parse_costs,
    replace_costs,
)
from hicache_bench.errors import UsageError

SIM = replace_costs(COSTS["free"], name="sim", kv_bytes_per_token=1000, storage_read_gb_per_s=5.0,
                    storage_write_gb_per_s=2.5, storage_op_us=100)


def clockwork(costs: Costs, page: int = 64, backend: str = "kernel", layout: str = "layer_first") -> Clockwork:
    return Clockwork(costs, page, backend, layout)


def test_storage_takes_latency_and_bytes_over_bandwidth():
    """SGLang's own simulated backend: 100 us a call and 5 GB/s, GB = 1e9 (mem_cache/storage/sim_storage.py)."""
    clock = clockwork(SIM)
    bytes_ = 128 * 64 * 1000
    assert clock.read_ns(128) == 100_000 + round(bytes_ / (5 * GB) * 1e9)
    assert clock.write_ns(128) == 100_000 + round(bytes_ / (2.5 * GB) * 1e9)
    assert clock.exists_ns(3) == 300_000


def test_a_rate_of_zero_is_infinitely_fast():
    clock = clockwork(COSTS["free"])
    assert clock.batch_ns(100_000, 10**9) == clock.h2d_ns(10**6) == clock.d2h_ns(1) == clock.read_ns(128) == 0


def test_prefill_is_overhead_tokens_and_attention():
    costs = replace_costs(COSTS["free"], prefill_tokens_per_s=10_000, prefill_batch_ms=3, attention_ms_per_1k_x_1k=0.5)
    assert clockwork(costs).batch_ns(1000, 1000 * 4000) == 3_000_000 + 100_000_000 + 2_000_000


def test_io_backend_and_layout_change_the_copy():
    toy = COSTS["toy"]
    kernel, direct = (clockwork(toy, 1, backend).h2d_ns(1000) for backend in ("kernel", "direct"))
    assert direct > 2 * kernel
    assert clockwork(toy, 1, "kernel", "page_first").h2d_ns(1000) < kernel
    known = replace_costs(toy, io={"direct": IoPath(h2d_gb_per_s=1, d2h_gb_per_s=1)})
    with pytest.raises(UsageError, match=r"'kernel'.*known are direct"):
        clockwork(known)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_overlap_is_no_faster_than_either_and_no_slower_than_both(compute: int, load: int):
    took = clockwork(COSTS["toy"]).overlapped_ns(compute, load)
    assert max(compute, load) <= took <= compute + load


def test_one_layer_means_no_overlap():
    assert clockwork(replace_costs(COSTS["toy"], layers=1)).overlapped_ns(5, 7) == 12


@pytest.mark.parametrize("name", COSTS)
def test_a_preset_survives_its_file(name, tmp_path):
    path = tmp_path / "costs.toml"
    path.write_text(dump_costs(COSTS[name], "two\nlines"))
    assert load_costs(str(path)) == COSTS[name]
    assert load_costs(name) is COSTS[name]
    assert COSTS[name].name == name
    assert COSTS[name].source


@given(st.floats(0, 1e9), st.floats(1e-3, 1e9), st.text(max_size=20), st.integers(1, 200))
def test_any_costs_survive_their_file(rate, kv_bytes, source, layers):
    costs = replace_costs(COSTS["toy"], prefill_tokens_per_s=rate, kv_bytes_per_token=kv_bytes, layers=layers,
                          source=source)
    assert parse_costs(msgspec.toml.decode(dump_costs(costs).encode())) == costs


@pytest.mark.parametrize(("change", "rule"), [
    ({"decode_step_ms": -1}, "decode_step_ms = -1.*: must be 0 or more"),
    ({"prefill_tokens_per_s": float("nan")}, "prefill_tokens_per_s"),
    ({"kv_bytes_per_token": 0}, "above 0"),
    ({"layers": 0}, "at least 1"),
    ({"io": {"warp": {"h2d_gb_per_s": 1, "d2h_gb_per_s": 1}}}, r"io.warp: allowed are kernel"),
    ({"io": {"kernel": {"h2d_gb_per_s": -1, "d2h_gb_per_s": 1}}}, r"io.kernel.h2d_gb_per_s"),
    ({"layout_page_us": {"sideways": 1}}, r"layout_page_us.sideways"),
    ({"speed": 1}, "speed"),
    ({"layers": "many"}, "layers"),
])
def test_bad_costs_are_refused_by_key_and_rule(change, rule):
    tables = msgspec.to_builtins(COSTS["toy"]) | change
    with pytest.raises(UsageError, match=rule):
        parse_costs(tables, "my.toml")


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"'nothing'.*preset \(toy"):
        load_costs("nothing")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(UsageError, match=r"broken\.toml: not readable as TOML"):
        load_costs(str(broken))
