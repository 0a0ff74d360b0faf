"""Sweeps: every combination, the same figures in any number of processes, a table and a plot of them."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.errors import StoreError, UsageError
from hicache_bench.simulate.plot import sweep_svg
from hicache_bench.simulate.setup import Setup
from hicache_bench.simulate.sweep import Tally, combinations, sweep, table
from hicache_bench.store.frames import read_frame, write_frame
from hicache_bench.workload.spec import parse_spec

SPEC = parse_spec({"name": "s", "seed": 1, "load": {"concurrency": 2, "requests": 60}, "stream": [
    {"name": "p", "kind": "shared_prefix", "groups": 12, "prefix_tokens": 512, "suffix_tokens": 20,
     "output_tokens": 2}]})


def setups(*ratios: float) -> list[Setup]:
    return [Setup(CacheConfig(page_size=16, device_tokens=2048, host_ratio=ratio)) for ratio in ratios]


def test_combinations_in_order():
    assert combinations({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert combinations({}) == [{}]
    with pytest.raises(UsageError, match="b: a sweep needs"):
        combinations({"a": [1], "b": []})
    with pytest.raises(UsageError, match="at most"):
        combinations({"a": list(range(100)), "b": list(range(100))})


def test_more_host_gives_more_host_hits():
    heard: list[int] = []
    points = sweep(setups(1.0, 4.0), SPEC, Path(), jobs=1, done=lambda number, point: heard.append(number))
    assert heard == [0, 1]
    small, large = points
    assert (small.requests, small.ok, small.shed) == (60, 60, 0)
    assert large.hit_ratio > small.hit_ratio
    assert large.host_ratio > small.host_ratio
    assert large.ttft_p50_ns < small.ttft_p50_ns
    for point in points:
        assert point.hit_ratio == pytest.approx(point.device_ratio + point.host_ratio + point.storage_ratio)


def test_processes_change_nothing():
    alone = sweep(setups(1.0, 2.0, 4.0), SPEC, Path(), jobs=1)
    assert sweep(setups(1.0, 2.0, 4.0), SPEC, Path(), jobs=2) == alone


def test_a_setup_the_workload_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="tokens"):
        sweep([Setup(CacheConfig(page_size=16, device_tokens=256))], SPEC, Path(), jobs=1)


def test_nothing_measured_has_no_figures():
    point = Tally().point(0)
    assert (point.requests, point.hit_ratio, point.ttft_p50_ns, point.output_tokens_per_s) == (0, None, None, None)


def test_table_and_plot(tmp_path):
    points = sweep(setups(1.0, 4.0), SPEC, Path(), jobs=1)
    points.append(dataclasses.replace(Tally().point(0)))
    rows = table([{"hicache_ratio": ratio} for ratio in (1.0, 4.0, 8.0)], points)
    write_frame(tmp_path / "sweep.parquet", rows)
    assert read_frame(tmp_path / "sweep.parquet") == rows
    with pytest.raises(StoreError, match=r"no\.parquet"):
        read_frame(tmp_path / "no.parquet")
    drawn = ElementTree.fromstring(sweep_svg("a <b> & c", ["r=1", "r=4", "<&>"], points))
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f".//{space}circle")) == 4
    assert len([rect for rect in drawn.findall(f".//{space}rect") if rect.find(f"{space}title") is not None]) == 9
    texts = [text.text for text in drawn.iter(f"{space}text")]
    assert "a <b> & c (simulated)" in texts
    assert "<&>" in texts
    assert sweep_svg("none", [], []).startswith("<svg")
