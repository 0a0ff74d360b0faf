"""`hicache-bench list` tells runs apart and survives broken ones."""

from __future__ import annotations

from tests.analysis.build import attempt, run_dir
from tests.cli.invoke import hcb, strict_json


def rows_of(results):
    return {row["status"]: row for row in strict_json(hcb("list", "--results", results, "--format", "json").out)}


def test_runs_are_told_apart_by_load_and_figures(tmp_path):
    run_dir(tmp_path, attempt(0, 0, [(50, 2)], prompt_tokens=100, cached_tokens=40), status="complete",
            load={"concurrency": 4, "duration_ns": None, "requests": 9}, tags={"ratio": "2"})
    run_dir(tmp_path, status="failed", load={"rate": 8.0, "arrival": "poisson", "staged": False, "limit": 9,
                                             "duration_ns": 60 * 10**9, "requests": None})
    found = rows_of(tmp_path)
    whole, empty = found["complete"], found["failed"]
    assert (whole["load"], whole["requests"], whole["ttft_p50_ns"], whole["hit_ratio"]) == ("c=4 n=9", 1, 50e6, 0.4)
    assert whole["tags"] == {"ratio": "2"}
    assert empty["load"] == "r=8/s poisson d=60 s"
    assert (empty["requests"], empty["ttft_p50_ns"], empty["hit_ratio"]) == (0, None, None)
    text = hcb("list", "--results", tmp_path).out
    assert "ratio=2" in text
    assert "50 ms" in text


def test_a_run_of_an_older_load_or_with_broken_rows_is_still_listed(tmp_path):
    run = run_dir(tmp_path, attempt(0, 0, [(50, 2)]), load=7, tags=3, server="x")
    (part,) = (run.path / "requests").iterdir()
    part.write_bytes(b"PAR1 not any more")
    (row,) = rows_of(tmp_path).values()
    assert (row["load"], row["ttft_p50_ns"], row["tags"], row["model"]) == (None, None, {}, None)
    assert hcb("list", "--results", tmp_path).code == 0


def test_no_runs_is_said(tmp_path):
    assert "no runs in" in hcb("list", "--results", tmp_path).out
