"""Plans: who sends what when, and what it should hit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hicache_bench.errors import UsageError
from hicache_bench.records import ClosedLoop, OpenLoop, Segment
from hicache_bench.workload.english import WORDS
from hicache_bench.workload.footprint import footprint
from hicache_bench.workload.plan import Capacity, build_plan, prime_prompts
from hicache_bench.workload.spec import load_spec, override, parse_spec
from hicache_bench.workload.tokens import TokenSpace, check_unique
from tests.workload.traces import public, write_mooncake

PREFIX = {"name": "p", "kind": "shared_prefix", "groups": 4, "prefix_tokens": 100, "suffix_tokens": 20,
          "output_tokens": 4}
UNIQUE = {"name": "u", "kind": "unique", "prompt_tokens": 100, "output_tokens": 4}
CHAT = {"name": "c", "kind": "multi_turn", "turns": 3, "first_tokens": 50, "turn_tokens": 10, "output_tokens": 5}
ROOT = Path(__file__).parents[2]


def spec_of(*streams, seed=0, **load):
    return parse_spec({"name": "w", "seed": seed, "load": load, "stream": list(streams)})


def plan_of(*streams, page=16, capacity=None, base_dir=ROOT, seed=0, notes=None, **load):
    return build_plan(spec_of(*streams, seed=seed, **load), base_dir=base_dir, page_size=page,
                      capacity=capacity or Capacity(), notes=notes)


def streams_of(plan):
    return Counter(session.stream for session in plan.sessions)


# ---------------------------------------------------------------- loops, stops, arrivals

def test_closed_loop_by_requests():
    plan = plan_of(UNIQUE, concurrency=4, requests=50)
    assert plan.loop == ClosedLoop(4)
    assert (len(plan.sessions), plan.n_requests, plan.stop.requests, plan.stop.duration_ns) == (50, 50, 50, None)
    assert plan.arrivals_ns.tolist() == [0] * 50
    assert [session.id for session in plan.sessions] == list(range(50))


def test_closed_loop_by_time_is_bounded():
    plan = plan_of(UNIQUE, concurrency=8, duration="3s")
    assert len(plan.sessions) == 3 * 160
    assert (plan.stop.duration_ns, plan.stop.requests) == (3 * 10**9, None)
    assert len(plan_of(UNIQUE, concurrency=1, duration="2s").sessions) == 200


def test_open_loop_by_time_and_by_requests():
    timed = plan_of(UNIQUE, rate="100/s", arrival="constant", duration="2s", limit=7)
    assert timed.loop == OpenLoop(7)
    assert timed.arrivals_ns.tolist() == [i * 10**7 for i in range(200)]
    counted = plan_of(UNIQUE, rate="100/s", requests=300)
    assert len(counted.arrivals_ns) == len(counted.sessions) == 300
    assert np.all(np.diff(counted.arrivals_ns) >= 0)
    both = plan_of(UNIQUE, rate="100/s", arrival="constant", duration="10s", requests=50)
    assert len(both.sessions) == len(both.arrivals_ns) == 50


def test_stages_bring_their_own_end():
    plan = plan_of(UNIQUE, arrival="constant", stages=[{"duration": "2s", "rate": 10},
                                                       {"duration": "2s", "rate": 10, "to": 30}])
    assert len(plan.sessions) == 20 + 40
    assert plan.stop.duration_ns == 4 * 10**9


def test_loads_without_loop_or_end_are_refused():
    with pytest.raises(UsageError, match="no loop"):
        plan_of(UNIQUE, requests=3)
    with pytest.raises(UsageError, match="need a total"):
        plan_of(UNIQUE, concurrency=3)
    with pytest.raises(UsageError, match="no requests to send"):
        plan_of({**UNIQUE, "count": 0}, concurrency=3)
    with pytest.raises(UsageError, match="trace streams only; u is unique"):
        plan_of(UNIQUE, arrival="trace", requests=3)


def test_counts_alone_are_a_total():
    plan = plan_of({**UNIQUE, "count": 5}, {**CHAT, "count": 2}, concurrency=2)
    assert streams_of(plan) == {"u": 5, "c": 2}
    assert plan.stop.requests == plan.n_requests == 11


# ---------------------------------------------------------------- the mix

def test_shares_by_largest_remainder_and_interleaved():
    streams = ({**UNIQUE, "share": 1}, {**PREFIX, "share": 1}, {**UNIQUE, "name": "v", "share": 1})
    plan = plan_of(*streams, concurrency=1, requests=100)
    assert streams_of(plan) == {"u": 34, "p": 33, "v": 33}
    first_half = Counter(session.stream for session in plan.sessions[:50])
    assert min(first_half.values()) > 8


def test_count_and_share_mix():
    plan = plan_of({**UNIQUE, "count": 10}, {**PREFIX, "share": 3}, {**UNIQUE, "name": "v", "share": 1},
                   concurrency=1, requests=50)
    assert streams_of(plan) == {"u": 10, "p": 30, "v": 10}


def test_multi_turn_fills_up_to_the_asked_requests():
    chat = {**CHAT, "turns": {"dist": "lognormal", "median": 2, "sigma": 1.2, "min": 1, "max": 9}}
    plan = plan_of(chat, UNIQUE, concurrency=1, requests=500)
    assert plan.n_requests == 500
    assert plan.stop.requests == 500


def test_cut_session_keeps_its_first_turns():
    plan = plan_of(CHAT, concurrency=1, requests=7)
    assert [len(session.turns) for session in plan.sessions] == [3, 3, 1]


def test_zipf_uniform_and_grouped():
    n = 6_000
    counted = Counter(s.affinity for s in plan_of({**PREFIX, "popularity": "zipf"}, concurrency=1, requests=n).sessions)
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    expected = n * weights / weights.sum()
    assert [counted[f"p/g{g}"] for g in range(4)] == pytest.approx(expected, rel=0.1)
    even = Counter(s.affinity for s in plan_of(PREFIX, concurrency=1, requests=n).sessions)
    assert list(even.values()) == pytest.approx([n / 4] * 4, rel=0.1)
    grouped = [s.affinity for s in plan_of({**PREFIX, "order": "grouped"}, concurrency=1, requests=100).sessions]
    assert grouped == sorted(grouped)


def test_more_requests_do_not_change_the_earlier_ones():
    short = plan_of(UNIQUE | {"prompt_tokens": {"dist": "uniform", "min": 5, "max": 90}}, concurrency=1, requests=20)
    long = plan_of(UNIQUE | {"prompt_tokens": {"dist": "uniform", "min": 5, "max": 90}}, concurrency=1, requests=40)
    assert long.sessions[:20] == short.sessions


# ---------------------------------------------------------------- fill

def test_fill_from_the_capacity():
    """3,200 + 4 - 1 tokens leave 25 pages of 128; a device of 512 pages holds 20 such prompts."""
    stream = {**UNIQUE, "prompt_tokens": 3200, "fill": 1.2}
    notes = []
    plan = plan_of(stream, page=128, capacity=Capacity(512 * 128, None, None), concurrency=1, notes=notes)
    assert len(plan.sessions) == 25  # ceil(1.2 * 512 / 25)
    assert notes == ["stream u: 25 prompts fill 1.2 of device"]
    host = plan_of({**stream, "fill": 0.5, "of": "host"}, page=128, capacity=Capacity(None, 25 * 128 * 8),
                   concurrency=1)
    assert len(host.sessions) == 4


def test_fill_without_the_capacity_says_what_to_give():
    with pytest.raises(UsageError, match=r"stream u: fill = 1.2 of device.*--url.*--device-tokens"):
        plan_of({**UNIQUE, "fill": 1.2}, capacity=Capacity(None, 99), concurrency=1)


# ---------------------------------------------------------------- ideal hits

@pytest.mark.parametrize("history", ["live", "scripted"])
def test_ideal_hit_of_round_k_tends_to_k_over_k_plus_one(history):
    plan = plan_of({**CHAT, "turns": 6, "first_tokens": 1000, "turn_tokens": 1000, "output_tokens": 1,
                    "history": history}, page=1, concurrency=1, requests=12)
    for session in plan.sessions:
        for k, turn in enumerate(session.turns):
            assert turn.ideal_cached_tokens / turn.prompt_tokens == pytest.approx(k / (k + 1), abs=0.002)


def test_shared_prefix_ideal_and_planned_lengths():
    plan = plan_of(PREFIX, page=16, concurrency=1, requests=60)
    seen = set()
    for session in plan.sessions:
        (turn,) = session.turns
        assert turn.prompt_tokens == 120
        assert turn.ideal_cached_tokens == (96 if session.affinity in seen else 0)
        seen.add(session.affinity)


def test_system_prompt_is_shared_by_all_conversations():
    plan = plan_of({**CHAT, "system_tokens": 64}, page=16, concurrency=1, requests=9)
    assert [session.turns[0].ideal_cached_tokens for session in plan.sessions] == [0, 64, 64]
    assert [turn.live for turn in plan.sessions[0].turns] == [False, True, True]


def test_footprint_adds_up():
    plan = plan_of(PREFIX, CHAT, UNIQUE, page=16, concurrency=1, requests=200)
    made = footprint(plan, 16)
    assert set(made.streams) == {"p", "c", "u"}
    for column in ("sessions", "requests", "prompt_tokens", "output_tokens", "unique_tokens", "unique_pages",
                   "shared_pages", "ideal_cached_tokens"):
        assert getattr(made.whole, column) == sum(getattr(f, column) for f in made.streams.values())
    turns = [turn for session in plan.sessions for turn in session.turns]
    assert made.whole.requests == 200
    assert made.whole.ideal_cached_tokens == sum(turn.ideal_cached_tokens for turn in turns)
    assert made.whole.prompt_tokens == sum(turn.prompt_tokens for turn in turns)
    unique = made.streams["u"]
    assert unique.shared_pages == 0
    assert unique.unique_pages == unique.requests * ((100 + 4 - 1) // 16)
    assert made.streams["p"].shared_pages == 4 * (100 // 16)
    assert footprint(plan_of(UNIQUE, concurrency=1, requests=1), 16).whole.ideal_hit_ratio == 0.0


# ---------------------------------------------------------------- too long

def test_made_up_prompts_over_the_limit_name_stream_and_number():
    with pytest.raises(UsageError, match=r"stream u: a request of 100 prompt \+ 4 output tokens is 4 over the 100"):
        plan_of(UNIQUE, capacity=Capacity(None, None, 100), concurrency=1, requests=2)
    with pytest.raises(UsageError, match=r"stream c: a request of 80 prompt \+ 5"):
        plan_of(CHAT, capacity=Capacity(None, None, 84), concurrency=1, requests=3)


def trace(tmp_path, **changed):
    path = write_mooncake(tmp_path / "m.jsonl", [(0, 1200, 8, [0, 1, 2]), (9, 300, 8, [3]), (9, 1000, 8, [0, 4]),
                                                 (12, 500, 8, [5])])
    return {"name": "t", "kind": "trace", "format": "mooncake", "path": path.name, **changed}


def test_traces_truncate_drop_or_refuse(tmp_path):
    capacity = Capacity(None, None, 808)
    with pytest.raises(UsageError, match="length_scale"):
        plan_of(trace(tmp_path), base_dir=tmp_path, capacity=capacity, arrival="trace")
    notes = []
    plan = plan_of(trace(tmp_path, over="truncate"), base_dir=tmp_path, capacity=capacity, arrival="trace", notes=notes)
    assert [session.turns[0].prompt_tokens for session in plan.sessions] == [800, 300, 800, 500]
    assert plan.sessions[0].turns[0].prompt.segments == (Segment("t/0", 512), Segment("t/1", 288))
    assert notes == ["stream t: 2 prompts were truncated to fit"]
    notes = []
    plan = plan_of(trace(tmp_path, over="drop", max_prompt_tokens=400), base_dir=tmp_path, arrival="trace", notes=notes)
    assert [session.turns[0].prompt_tokens for session in plan.sessions] == [300]
    assert notes == ["stream t: 3 requests were dropped as too long"]
    with pytest.raises(UsageError, match="max_prompt_tokens = 400"):
        plan_of(trace(tmp_path, max_prompt_tokens=400), base_dir=tmp_path, arrival="trace")


def test_dropped_requests_do_not_use_up_the_cap(tmp_path):
    plan = plan_of(trace(tmp_path, over="drop", max_prompt_tokens=600), base_dir=tmp_path, arrival="trace", requests=2)
    assert [session.turns[0].prompt_tokens for session in plan.sessions] == [300, 500]


def test_trace_in_a_closed_loop_and_max_requests(tmp_path):
    plan = plan_of(trace(tmp_path, max_requests=3), base_dir=tmp_path, concurrency=2)
    assert [session.turns[0].prompt_tokens for session in plan.sessions] == [1200, 300, 1000]
    assert plan.arrivals_ns.tolist() == [0, 0, 0]


# ---------------------------------------------------------------- digest

def test_digest_covers_what_is_sent_and_when_and_nothing_else():
    base = plan_of(UNIQUE, rate=5, requests=9)
    assert len(base.digest) == 16
    assert plan_of(UNIQUE, rate=5, requests=9).digest == base.digest
    assert plan_of(UNIQUE, rate=5, requests=9, page=128).digest == base.digest
    assert plan_of(UNIQUE, rate=5, requests=9, seed=1).digest != base.digest
    assert plan_of(UNIQUE, rate=6, requests=9).digest != base.digest
    assert plan_of({**UNIQUE, "output_tokens": 5}, rate=5, requests=9).digest != base.digest


def test_digest_is_the_same_in_another_process():
    code = ("from tests.workload.test_plan import *\n"
            "print(plan_of(PREFIX, CHAT, UNIQUE, rate=5, requests=90).digest)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == plan_of(PREFIX, CHAT, UNIQUE, rate=5, requests=90).digest


def test_digest_does_not_depend_on_where_the_trace_lies(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    digests = {plan_of(trace(folder), base_dir=folder, arrival="trace").digest
               for folder in (tmp_path / "a", tmp_path / "b")}
    absolute = trace(tmp_path / "a") | {"path": str(tmp_path / "a" / "m.jsonl")}
    digests.add(plan_of(absolute, base_dir=tmp_path, arrival="trace").digest)
    assert len(digests) == 1


# ---------------------------------------------------------------- priming, shipped files, size

def test_prime_prompts_one_for_every_shared_beginning():
    spec = spec_of(PREFIX, UNIQUE, {**CHAT, "system_tokens": 64}, {**CHAT, "name": "d"}, concurrency=1, requests=200)
    plan = build_plan(spec, base_dir=ROOT, page_size=16, capacity=Capacity())
    prompts = prime_prompts(plan, spec)
    assert sorted(p.segments[0].key for p in prompts) == ["c/system", "p/g0", "p/g1", "p/g2", "p/g3"]
    assert all(p.segments[1].n_tokens == 1 and p.n_tokens == p.segments[0].n_tokens + 1 for p in prompts)


@pytest.mark.parametrize("name", ["smoke", "prefix_reuse", "pressure", "multi_turn", "mixed"])
def test_shipped_workloads_plan_and_are_unique(name):
    spec = load_spec(ROOT / "workloads" / f"{name}.toml")
    plan = build_plan(spec, base_dir=ROOT / "workloads", page_size=64, capacity=Capacity(65536, 131072, 8192))
    space = TokenSpace.english([[i] for i in range(len(WORDS))], "n")
    roots = {turn.prompt.segments[0].key for session in plan.sessions for turn in session.turns if not turn.live}
    assert check_unique(space, plan, 64) == len(roots)
    if name == "smoke":
        assert footprint(plan, 64).whole.unique_tokens < 4096
        assert max(turn.prompt_tokens for session in plan.sessions for turn in session.turns) <= 600
    if name == "pressure":
        assert footprint(plan, 64).streams["pressure"].unique_pages * 64 >= 1.2 * 65536


def test_shipped_mooncake_workload_on_the_public_file():
    path = public("mooncake_conversation_trace.jsonl")
    spec = override(load_spec(ROOT / "workloads" / "mooncake_conversation.toml"), trace_path=str(path))
    notes = []
    plan = build_plan(spec, base_dir=ROOT, page_size=16, capacity=Capacity(None, None, 8192), notes=notes)
    assert plan.n_requests == 500
    assert plan.arrivals_ns[-1] == 165 * 10**9
    assert notes == ["stream conversation: 5 prompts were truncated to fit"]
    assert 0.1 < footprint(plan, 16).whole.ideal_hit_ratio < 0.2


@pytest.mark.slow
def test_a_plan_of_200k_requests_is_small():
    code = (
        "import resource, time; from tests.workload.test_plan import *\n"
        "before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()\n"
        "plan = plan_of(PREFIX, concurrency=4, requests=200_000)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, time.process_time() - start)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    grown_mib, seconds = map(float, out.stdout.split())
    assert grown_mib < 220
    assert seconds < 60


def test_a_stream_that_the_total_cuts_is_named():
    notes = []
    plan_of({**UNIQUE, "name": "pressure", "count": 40}, {**UNIQUE, "name": "rest", "share": 1}, concurrency=1,
            requests=10, notes=notes)
    assert any("pressure: 10 of its 40" in note for note in notes)
    assert any("rest: nothing is sent" in note for note in notes)


def test_nothing_is_said_when_everything_fits():
    notes = []
    plan_of({**UNIQUE, "count": 40}, concurrency=1, requests=50, notes=notes)
    assert not notes
