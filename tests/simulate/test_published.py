"""Published results the simulator has to agree with in kind: who wins where, and by roughly how much."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "llmd_table_a.py"


def load():
    made = importlib.util.spec_from_file_location("llmd_table_a", SCRIPT)
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


def test_llmd_table_a():
    table = load()
    rates = [5, 10, 20, 40]
    device, both = (list(table.stages(rates, hicache=hicache)) for hicache in (False, True))
    published = [table.PUBLISHED[rate] for rate in rates]
    # Light and cold: no difference worth having.
    assert both[0][0] == pytest.approx(device[0][0], rel=0.25)
    # From 10 requests a second on the host wins in TTFT, as published.
    for ours, theirs in zip(zip(device, both, strict=True), published, strict=True):
        if theirs[0][0] > 2 * theirs[1][0]:
            assert ours[0][0] > 2 * ours[1][0]
    # Saturated: throughput with host over without, 2.9 published.
    gain = both[3][2] / device[3][2]
    assert gain == pytest.approx(published[3][1][2] / published[3][0][2], rel=0.25)
    for ours, theirs in ((device[2:], 0), (both[2:], 1)):
        for (mean, p90, speed, _), row in zip(ours, published[2:], strict=True):
            assert mean == pytest.approx(row[theirs][0], rel=0.5)
            assert p90 == pytest.approx(row[theirs][1], rel=0.5)
            assert speed == pytest.approx(row[theirs][2], rel=0.25)
