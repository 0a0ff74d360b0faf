"""Mooncake and Azure loaders: every trap of the trace study, and the published figures."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.workload.plan import Capacity, build_plan
from hicache_bench.workload.prefix import PrefixIndex
from hicache_bench.workload.spec import parse_spec
from hicache_bench.workload.trace import block_segments, check_files, load_azure, load_mooncake
from tests.workload.traces import public, stream, write_mooncake


def segments(draft):
    return [(segment.key, segment.n_tokens) for segment in draft.turns[0].prompt.segments]


def test_mooncake_counts_by_ceiling_last_block_partial(tmp_path):
    path = write_mooncake(tmp_path / "m.jsonl", [(0, 1100, 7, [0, 1, 2]), (5, 1024, 9, [0, 3])])
    first, second = load_mooncake(stream("mooncake", path), path)
    assert segments(first) == [("t/0", 512), ("t/1", 512), ("t/2", 76)]
    assert segments(second) == [("t/0", 512), ("t/3", 512)]
    assert (first.turns[0].output_tokens, second.arrival_ns) == (7, 5_000_000)
    assert first.turns[0].prompt.n_tokens == 1100
    assert (first.affinity, second.affinity) == ("t/1", "t/3")


def test_mooncake_counts_by_floor_get_a_fresh_tail(tmp_path):
    path = write_mooncake(tmp_path / "m.jsonl", [(0, 1100, 7, [0, 1]), (0, 1100, 7, [0, 1]), (0, 100, 1, [])])
    a, b, c = load_mooncake(stream("mooncake", path), path)
    assert [n for _, n in segments(a)] == [512, 512, 76]
    assert segments(a)[:2] == segments(b)[:2]
    assert segments(a)[2] != segments(b)[2]
    assert [n for _, n in segments(c)] == [100]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1]}', "need 3 hash ids"),
        ('{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1, 2]}', "not 2"),
        ('{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 1]}', "occurs twice"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "input_length"),
        ('{"timestamp": -1, "input_length": 9, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        ('{"timestamp": 1e300, "input_length": 9, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        ('{"input_length": 9, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        ('{"timestamp": 0, "input_length": "9"', "not a Mooncake"),
        ("[]", "not a Mooncake"),
    ],
)
def test_mooncake_errors_name_the_line(tmp_path, line, said):
    path = write_mooncake(tmp_path / "m.jsonl", [(0, 9, 1, [1])])
    with path.open("a") as file:
        file.write("\n" + line + "\n")
    with pytest.raises(UsageError) as error:
        list(load_mooncake(stream("mooncake", path), path))
    assert f"{path}:3: " in str(error.value)
    assert said in str(error.value)


def test_missing_trace_says_where_to_look(tmp_path):
    path = tmp_path / "none.jsonl"
    with pytest.raises(UsageError, match=r"docs/workloads\.md#traces"):
        list(load_mooncake(stream("mooncake", path), path))
    with pytest.raises(UsageError, match="cannot read"):
        list(load_azure(stream("azure_csv", path), path))


def test_window_scale_cap_and_block_override(tmp_path):
    path = write_mooncake(tmp_path / "m.jsonl", [(i * 1000, 250, 10, [0, i + 1, 50 + i]) for i in range(10)])
    made = list(load_mooncake(stream("mooncake", path, block_tokens=100, window=["3s", "6s"], length_scale=0.5,
                                     output_scale=0.25), path))
    assert [draft.arrival_ns for draft in made] == [0, 10**9, 2 * 10**9]
    assert segments(made[0]) == [("t/0", 50), ("t/4", 50), ("t/53", 25)]
    assert made[0].turns[0].output_tokens == 2


def test_ties_keep_file_order_and_late_lines_are_sorted(tmp_path):
    rows = [(3000, 9, 1, [1]), (3000, 9, 1, [2]), (0, 9, 1, [3]), (3000, 9, 1, [4])]
    path = write_mooncake(tmp_path / "m.jsonl", rows)
    spec = parse_spec({"name": "w", "load": {"arrival": "trace"}, "stream": [
        {"name": "t", "kind": "trace", "format": "mooncake", "path": path.name, "speedup": 3.0}]})
    plan = build_plan(spec, base_dir=tmp_path, page_size=1, capacity=Capacity())
    assert [s.turns[0].prompt.segments[0].key for s in plan.sessions] == ["t/3", "t/1", "t/2", "t/4"]
    assert plan.arrivals_ns.tolist() == [0, 10**9, 10**9, 10**9]


def test_output_of_zero_becomes_one(tmp_path):
    path = write_mooncake(tmp_path / "m.jsonl", [(0, 9, 0, [1])])
    assert next(load_mooncake(stream("mooncake", path), path)).turns[0].output_tokens == 1


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9805900,374,44\r\n2023-11-17 00:00:01.0,9,0"


def test_azure_crlf_seven_digits_no_final_newline(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(AZURE.encode())
    first, second = load_azure(stream("azure_csv", path), path)
    assert first.turns[0].prompt.n_tokens == 374
    assert (first.arrival_ns, second.arrival_ns) == (0, 1_019_410_000)
    assert second.turns[0].output_tokens == 1
    assert segments(first)[0][0] != segments(second)[0][0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2023-11-17 18:15:46,x,4", "no token count"),
        ("2023-11-17 18:15:46,-3,4", "no token count"),
        ("2023-11-16 18:15:46,3,4", "earlier than the first"),
        ("2023-13-16 18:15:46,3,4", "no time"),
        ("yesterday,3,4", "no time"),
        ("2023-11-16 18:15:46,3", "too early"),
    ],
)
def test_azure_errors_name_the_line(tmp_path, row, said):
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "\r\n" + row)
    with pytest.raises(UsageError, match=said) as error:
        list(load_azure(stream("azure_csv", path), path))
    assert f"{path}:4: " in str(error.value)


def test_azure_needs_its_columns(tmp_path):
    path = tmp_path / "a.csv"
    for text in ("", "a,b\n1,2\n"):
        path.write_text(text)
        with pytest.raises(UsageError, match="needed: TIMESTAMP"):
            list(load_azure(stream("azure_csv", path), path))


@settings(max_examples=60, deadline=None)
@given(data=st.one_of(st.binary(max_size=80), st.dictionaries(
    st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]),
    st.one_of(st.none(), st.integers(-5, 1300), st.floats(), st.text(max_size=3),
              st.lists(st.integers(0, 3), max_size=4))).map(lambda row: json.dumps(row).encode())))
def test_any_bytes_give_drafts_or_a_usage_error(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    for load, format_ in ((load_mooncake, "mooncake"), (load_azure, "azure_csv")):
        path = folder / f"fuzz.{format_}"
        path.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n" * (format_ == "azure_csv") + data)
        said = str(path)
        try:
            for draft in load(stream(format_, path), path):
                assert draft.turns[0].prompt.n_tokens >= 1
        except UsageError as error:
            said = str(error)
        assert str(path) in said


@settings(max_examples=50, deadline=None)
@given(tokens=st.integers(1, 5000), block=st.integers(1, 600), ceil=st.booleans(), scale=st.floats(0.01, 2))
def test_block_lengths_add_up(tokens, block, ceil, scale):
    n = -(-tokens // block) if ceil else tokens // block
    made = block_segments(list(range(n)), tokens, block, "w", prefix="p/", tail="tail", scale=1.0)
    assert sum(segment.n_tokens for segment in made) == tokens
    small = block_segments(list(range(n)), tokens, block, "w", prefix="p/", tail="tail", scale=scale)
    assert len(small) == len(made)
    assert min(segment.n_tokens for segment in small) >= 1


# ------------------------------------------------------------------ the public files

@pytest.mark.parametrize(
    ("name", "requests", "mean_in", "mean_out", "blocks", "unique", "by_block", "by_token"),
    [
        ("conversation", 12_031, 12_035, 343, 288_500, 182_790, 0.3664, 0.3736),
        ("synthetic", 3_993, 15_325, 149, 121_877, 43_924, 0.6396, 0.6512),
    ],
)
def test_mooncake_published_figures(name, requests, mean_in, mean_out, blocks, unique, by_block, by_token):
    """FAST'25 Table 2 (counts and means) and the ideal hit ratios, from our own prefix structure."""
    path = public(f"mooncake_{name}_trace.jsonl")
    index, seen = PrefixIndex(512), set[str]()
    drafts = list(load_mooncake(stream("mooncake", path), path))
    lengths = [draft.turns[0].prompt.n_tokens for draft in drafts]
    assert len(drafts) == requests
    assert round(np.mean(lengths)) == mean_in
    assert round(np.mean([draft.turns[0].output_tokens for draft in drafts])) == mean_out
    hit_blocks = hit_tokens = 0
    for draft in drafts:
        parts = draft.turns[0].prompt.segments
        seen.update(segment.key for segment in parts)
        visit = index.visit(parts, 1)
        hit_tokens += visit.matched
        hit_blocks += -(-visit.matched // 512)
    total = sum(len(draft.turns[0].prompt.segments) for draft in drafts)
    assert (total, len(seen)) == (blocks, unique)
    assert hit_blocks / total == pytest.approx(by_block, abs=5e-5)
    assert hit_tokens / sum(lengths) == pytest.approx(by_token, abs=5e-5)
    if name == "conversation":
        assert len({draft.arrival_ns for draft in drafts}) == 1_180  # ties everywhere
        assert {segments(draft)[0][0] for draft in drafts} == {"t/0"}


@pytest.mark.parametrize(("name", "rows", "mean_in", "mean_out"),
                         [("code", 8_819, 2047.8, 27.9), ("conv", 19_366, 1154.7, 211.1)])
def test_azure_published_figures(name, rows, mean_in, mean_out):
    path = public(f"azure2023_llm_{name}.csv")
    turns = [draft.turns[0] for draft in load_azure(stream("azure_csv", path), path)]
    assert len(turns) == rows
    assert np.mean([turn.prompt.n_tokens for turn in turns]) == pytest.approx(mean_in, abs=0.06)
    assert np.mean([turn.output_tokens for turn in turns]) == pytest.approx(mean_out, abs=0.06)


def test_files_are_looked_for_and_pipes_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    check_files([stream("mooncake", tmp_path / "pipe"), stream("weka", tmp_path / "folder")], tmp_path)
    for name, kind in (("none", "mooncake"), ("folder", "mooncake"), ("none", "weka")):
        with pytest.raises(UsageError, match="cannot read it"):
            check_files([stream(kind, tmp_path / name)], tmp_path)
