"""A plan on the simulator: its loops, its sessions, its rows and its run directory."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest

from hicache_bench.analysis.summary import summarize
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import COSTS, replace_costs
from hicache_bench.errors import UsageError
from hicache_bench.manifest import RunOptions
from hicache_bench.profiles.profile import load_profile, shipped_profiles
from hicache_bench.simulate.offline import ORIGIN_NS, Played, plan_for, play, simulate
from hicache_bench.simulate.setup import Setup
from hicache_bench.store.reader import read_attempts
from hicache_bench.store.rundir import RunDir
from hicache_bench.workload.spec import parse_spec

PAGE = 16
MS = 1_000_000
COSTS_1 = replace_costs(COSTS["free"], name="plain", prefill_tokens_per_s=1_000_000, decode_step_ms=1.0)
UNIQUE = {"name": "u", "kind": "unique", "prompt_tokens": 160, "output_tokens": 11}
CHAT = {"name": "chat", "kind": "multi_turn", "turns": 3, "first_tokens": 160, "turn_tokens": 80,
        "output_tokens": 33, "think": "5ms"}


def setup(**changes: object) -> Setup:
    config = CacheConfig(**{"page_size": PAGE, "device_tokens": 2048 * PAGE, "storage": True,
                            "prefetch_policy": "wait_complete", **changes})  # type: ignore[arg-type]
    return Setup(config, COSTS_1)


def spec(load: dict[str, object], *streams: dict[str, object], **more: object):
    return parse_spec({"name": "t", "seed": 3, "load": load, "stream": list(streams), **more})


def played(load: dict[str, object], *streams: dict[str, object], where: Setup | None = None, **more: object) -> Played:
    where, made = where or setup(), spec(load, *streams, **more)
    return play(where, made, plan_for(where, made, Path(), lambda text: None))


def test_the_same_plan_gives_the_same_rows():
    first, second = (played({"rate": "200/s", "requests": 50}, UNIQUE, CHAT).rows for _ in range(2))
    assert first == second
    assert len(first) >= 50
    other = play(setup(), spec({"rate": "200/s", "requests": 50}, UNIQUE, CHAT, seed=4),
                 plan_for(setup(), spec({"rate": "200/s", "requests": 50}, UNIQUE, CHAT, seed=4), Path(),
                          lambda text: None)).rows
    assert other != first


def test_a_closed_loop_keeps_its_workers_busy_and_no_more():
    rows = played({"concurrency": 3, "requests": 12}, UNIQUE).rows
    assert len(rows) == 12
    starts, ends = sorted(row.sent_ns for row in rows), sorted(row.done_ns for row in rows)
    assert starts[:3] == [ORIGIN_NS] * 3
    assert starts[3:] == ends[:-3], "each worker begins its next session when its last one has ended"


def test_an_open_loop_sheds_above_its_limit():
    rows = played({"rate": "1000/s", "arrival": "constant", "requests": 40, "limit": 4}, UNIQUE).rows
    shed = [row for row in rows if row.outcome == "shed"]
    assert 0 < len(shed) < 40
    assert len(rows) == 40
    for row in shed:
        assert row.sent_ns is None
        assert row.prompt_tokens is None
        assert row.scheduled_ns is not None
        assert "4 sessions already in flight" in row.error


def test_turns_wait_think_and_hit_what_was_said_before():
    rows = played({"concurrency": 1, "requests": 3}, CHAT).rows
    assert [row.turn for row in rows] == [0, 1, 2]
    for before, row in pairwise(rows):
        assert row.scheduled_ns == row.sent_ns == before.done_ns + 5 * MS
        # all but the last generated token have KV; then whole pages
        assert row.cached_tokens == (before.prompt_tokens + 32) // PAGE * PAGE
        assert row.cached_tokens == row.ideal_cached_tokens
    assert rows[2].prompt_tokens == 160 + 33 + 80 + 33 + 80


def test_scripted_history_does_not_hit_answers():
    rows = played({"concurrency": 1, "requests": 3}, {**CHAT, "history": "scripted"}).rows
    assert [row.cached_tokens for row in rows] == [row.ideal_cached_tokens for row in rows]
    assert rows[1].cached_tokens == 160 // PAGE * PAGE


def test_the_duration_cuts_sessions_and_drains():
    rows = played({"concurrency": 2, "duration": "60ms"}, CHAT).rows
    assert max(row.sent_ns for row in rows) <= ORIGIN_NS + 60 * MS
    assert all(row.outcome == "ok" for row in rows)
    cut = played({"concurrency": 2, "duration": "60ms"}, {**CHAT, "output_tokens": 500}, drain={"deadline": "10ms"})
    assert {row.outcome for row in cut.rows} == {"aborted"}
    assert cut.driven.cancelled == 2
    assert all(row.done_ns <= ORIGIN_NS + 72 * MS for row in cut.rows)


def test_a_request_that_takes_too_long_is_a_timeout_and_ends_its_conversation():
    rows = played({"concurrency": 1, "requests": 3, "timeout": "10ms"}, CHAT).rows
    assert [row.outcome for row in rows] == ["timeout", "aborted", "aborted"]
    assert rows[0].done_ns - rows[0].sent_ns <= 12 * MS
    assert "live" in rows[1].error


def test_prime_makes_prefixes_resident_before_the_load():
    prefix = {"name": "p", "kind": "shared_prefix", "groups": 4, "prefix_tokens": 320, "suffix_tokens": 20,
              "output_tokens": 2}
    done = played({"concurrency": 2, "requests": 20}, prefix, prime={"enabled": True})
    assert done.primed is not None
    assert done.primed["resident"] == done.primed["prompts"] == 4
    measured = [row for row in done.rows if row.phase == "measure"]
    assert all(row.device_tokens == 320 for row in measured)
    assert {row.phase for row in done.rows} == {"prime", "measure"}
    assert min(row.sent_ns for row in measured) >= max(row.done_ns for row in done.rows if row.phase == "prime")


def test_hit_ratio_of_round_k_approaches_k_over_k_plus_1():
    """Equal turns and almost no output: SGLang issue 33984's series 0, .5, .667, .75 ..."""
    chat = {**CHAT, "turns": 6, "first_tokens": 1600, "turn_tokens": 1600, "output_tokens": 1, "think": "0s"}
    rows = played({"concurrency": 4, "requests": 24}, chat).rows
    for k in range(6):
        ratios = [row.cached_tokens / row.prompt_tokens for row in rows if row.turn == k]
        assert ratios
        assert all(abs(ratio - k / (k + 1)) < 0.01 for ratio in ratios)


def test_rows_say_what_a_server_would_say():
    row = played({"concurrency": 1, "requests": 1}, UNIQUE).rows[0]
    assert (row.outcome, row.status, row.finish_reason, row.token_source) == ("ok", 200, "length", "server")
    assert (row.prompt_tokens, row.output_tokens) == (160, 11)
    assert (row.cached_tokens, row.device_tokens, row.host_tokens, row.storage_tokens) == (0, 0, 0, 0)
    assert row.chunk_ns[0] == row.first_token_ns
    assert row.chunk_ns[-1] == row.last_token_ns == row.done_ns
    assert sum(row.chunk_tokens) == 11
    without = played({"concurrency": 1, "requests": 1}, UNIQUE, where=setup(storage=False)).rows[0]
    assert without.storage_tokens is None
    assert without.storage_backend is None


WORKLOAD = """
name = "small"
seed = 1
[load]
concurrency = 2
requests = 12
[[stream]]
name = "u"
kind = "unique"
prompt_tokens = 100
output_tokens = 4
"""


def test_the_run_directory_reads_like_a_measured_one(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(WORKLOAD)
    from hicache_bench.workload.spec import load_spec

    said: list[str] = []
    run = simulate(setup(), load_spec(path), path, RunOptions(tmp_path / "results"), said.append)
    meta = RunDir(run).meta
    assert meta["origin"] == "simulated"
    assert meta["status"] == "complete"
    assert meta["start_state"] == "cold"
    assert any("costs plain" in text for text in said)
    table = read_attempts(run)
    assert table.num_rows == 12
    summary = summarize(run)
    assert summary.outcomes == {"ok": 12}
    assert summary.latency["ttft"].n == 12
    assert (run / "workload.toml").read_text() == WORKLOAD
    server = RunDir(run).read_json("server.json")
    assert server["raw"]["costs"]["name"] == "plain"
    assert server["page_size"] == PAGE


def test_a_failure_leaves_a_failed_run(tmp_path, monkeypatch):
    path = tmp_path / "small.toml"
    path.write_text(WORKLOAD)
    from hicache_bench.workload.spec import load_spec

    monkeypatch.setattr("hicache_bench.simulate.offline.play", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simulate(setup(), load_spec(path), path, RunOptions(tmp_path / "results"), lambda text: None)
    (run,) = (tmp_path / "results").iterdir()
    assert RunDir(run).meta["status"] == "failed"


def test_prompts_over_the_device_are_refused_before_anything_runs():
    with pytest.raises(UsageError, match="tokens"):
        played({"concurrency": 1, "requests": 1}, {**UNIQUE, "prompt_tokens": 2048 * PAGE})


def test_the_fingerprint_follows_the_costs():
    one, other = setup(), dataclasses.replace(setup(), costs=COSTS["toy"])
    assert one.info().fingerprint == setup().info().fingerprint != other.info().fingerprint


@pytest.mark.parametrize("name", sorted(shipped_profiles()))
def test_every_profile_plays_under_pressure_and_leaks_nothing(name):
    """Windows, recurrent states and groups of pages, with chunks, decoding and eviction at once."""
    config = dataclasses.replace(load_profile(name).server.cache(), device_tokens=40_960, chunked_prefill_size=2048)
    where = Setup(config, COSTS["toy"])
    chat = {**CHAT, "first_tokens": 3500, "turn_tokens": 400, "output_tokens": 150, "turns": 4}
    prefix = {"name": "p", "kind": "shared_prefix", "groups": 6, "prefix_tokens": 2304, "suffix_tokens": 100,
              "output_tokens": 20}
    done = played({"concurrency": 6, "requests": 60}, chat, prefix, where=where)
    assert {row.outcome for row in done.rows} == {"ok"}
    assert any(row.cached_tokens for row in done.rows)
    for row in done.rows:
        assert row.cached_tokens <= row.prompt_tokens - 1
        assert row.cached_tokens == row.device_tokens + row.host_tokens + row.storage_tokens
    done.engine.run()
    assert done.engine.idle
    done.engine.cache.check()
    assert done.engine.cache.protected_tokens == 0
