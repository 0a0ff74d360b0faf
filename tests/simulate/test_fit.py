"""The fit against runs whose costs are known, because they were simulated with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import COSTS, IoPath, replace_costs
from hicache_bench.errors import Inconclusive
from hicache_bench.manifest import RunOptions
from hicache_bench.simulate.fit import FEWEST_ROWS, fit_run, fitted_costs, least_deviations
from hicache_bench.simulate.offline import simulate
from hicache_bench.simulate.replay import predict, setup_of, spec_of
from hicache_bench.simulate.setup import Setup
from hicache_bench.store.rundir import RunDir
from hicache_bench.workload.spec import load_spec

WORKLOAD = """
name = "fit"
seed = 1
[load]
concurrency = 1
requests = {requests}
[[stream]]
name = "p"
kind = "shared_prefix"
groups = 24
prefix_tokens = {{ dist = "uniform", min = 300, max = 900 }}
suffix_tokens = {{ dist = "uniform", min = 20, max = 200 }}
output_tokens = 12
popularity = "zipf"
"""
TRUE = replace_costs(COSTS["free"], name="true", prefill_tokens_per_s=50_000, prefill_batch_ms=3.0, decode_step_ms=4.0,
                     kv_bytes_per_token=1_000_000, layers=1, storage_read_gb_per_s=100,
                     io={"kernel": IoPath(h2d_gb_per_s=500, d2h_gb_per_s=0)})
"""20 ms per 1000 tokens computed, 2 ms from host, 12 ms from storage (10 to the host, 2 on)."""


def run_of(tmp_path: Path, requests: int = 400) -> RunDir:
    path = tmp_path / "fit.toml"
    path.write_text(WORKLOAD.format(requests=requests))
    config = CacheConfig(page_size=16, device_tokens=4096, host_ratio=1.5, storage=True,
                         prefetch_policy="wait_complete", chunked_prefill_size=8192)
    return RunDir(simulate(Setup(config, TRUE), load_spec(path), path, RunOptions(tmp_path / "results"),
                           lambda text: None))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDir:
    return run_of(tmp_path_factory.mktemp("fit"))


def test_the_fit_finds_the_costs_it_was_made_with(run):
    fit = fit_run(run.path, run.meta)
    assert fit.queue_known
    assert fit["recompute"] == pytest.approx(20, rel=0.05)
    assert fit["start"] == pytest.approx(3, rel=0.15)
    assert fit["storage"] == pytest.approx(12, rel=0.1)
    assert fit["host"] == pytest.approx(2, rel=0.25)
    assert fit.decode_step_ms == pytest.approx(4, rel=0.05)
    for term in fit.terms:
        assert term.low <= term.value <= term.high
        assert term.n >= 5


def test_the_fitted_costs_predict_the_run(run):
    costs = fitted_costs(fit_run(run.path, run.meta), COSTS["toy"], "mine", "test")
    assert costs.prefill_tokens_per_s == pytest.approx(50_000, rel=0.05)
    said: list[str] = []
    compared = {one.name: one for one in predict(run, setup_of(run, costs), spec_of(run), said.append)}
    assert not said
    for name in ("ttft p50", "ttft p90", "e2e p50"):
        assert compared[name].predicted == pytest.approx(compared[name].measured, rel=0.1), name
    for tier in ("cached", "device", "host", "storage"):
        one = compared[f"hit {tier}"]
        assert one.predicted == pytest.approx(one.measured, abs=0.02), tier


def test_a_changed_workload_is_said(run, tmp_path):
    spec = spec_of(run)
    import msgspec

    said: list[str] = []
    predict(run, setup_of(run, TRUE), msgspec.structs.replace(spec, seed=9), said.append)
    assert any("built again" in text for text in said)


def test_the_same_run_gives_the_same_fit(run):
    assert fit_run(run.path, run.meta, seed=1).terms == fit_run(run.path, run.meta, seed=1).terms


def test_too_few_answers_are_inconclusive(tmp_path):
    small = run_of(tmp_path, FEWEST_ROWS - 1)
    with pytest.raises(Inconclusive, match=f"{FEWEST_ROWS - 1} answers"):
        fit_run(small.path, small.meta)


def test_a_server_without_sizes_cannot_be_simulated(run, tmp_path):
    other = RunDir(tmp_path)
    other.write_json("server.json", {"page_size": None, "device_tokens": 5})
    with pytest.raises(Inconclusive, match="page size"):
        setup_of(other, TRUE)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 50), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_coefficients_come_back_through_outliers(true, seed):
    draw = np.random.default_rng(seed)
    design = np.column_stack([np.ones(200), draw.uniform(0, 4, (200, 2))])
    values = design @ np.array(true) + draw.normal(0, 0.01, 200)
    values[:20] += draw.uniform(50, 500, 20)
    found = least_deviations(design, values)
    assert (found >= 0).all()
    assert found == pytest.approx(true, abs=0.3)


def test_a_negative_slope_becomes_zero():
    x = np.linspace(0, 1, 50)
    found = least_deviations(np.column_stack([np.ones(50), x]), 5 - x)
    assert found[1] == 0
    assert 4 <= found[0] <= 5
