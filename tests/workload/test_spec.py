"""Workload files: what is taken, what is refused and how it is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.workload.spec import dump_spec, load_spec, override, parse_spec

STREAM = {"name": "x", "kind": "unique", "prompt_tokens": 100, "output_tokens": 4}
SHIPPED = sorted(Path(__file__).parents[2].joinpath("workloads").glob("*.toml"))


def tables(**changed):
    return {"name": "w", "stream": [STREAM], **changed}


def refused(**changed):
    with pytest.raises(UsageError) as error:
        parse_spec(tables(**changed), "file.toml")
    return str(error.value)


def test_shipped_workloads_are_there():
    assert {path.stem for path in SHIPPED} >= {
        "prefix_reuse", "pressure", "multi_turn", "mixed", "mooncake_conversation", "smoke"
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_workloads_load_and_carry_their_name(path):
    spec = load_spec(path)
    assert spec.name == path.stem
    assert spec.description
    assert "../" not in path.read_text()


def test_values_become_typed():
    spec = parse_spec(tables(load={"rate": "480/m", "duration": "2m", "cv": 2}, slo={"ttft": "200ms"}))
    assert spec.load.rate == 8.0
    assert spec.load.duration == 120 * 10**9
    assert spec.slo.conditions_ns() == {"ttft": 200_000_000}
    assert spec.slo_text() == {"ttft": "200ms"}
    assert parse_spec(tables(load={"rate": 3})).load.rate == 3.0
    assert spec.load.timeout_ns == 600 * 10**9
    assert parse_spec(tables(load={"timeout": "0s"})).load.timeout_ns is None


def test_unknown_key_names_file_key_allowed_and_a_guess():
    said = refused(load={"concurency": 3})
    assert said.startswith("file.toml: unknown key load.concurency (did you mean concurrency?)")
    assert "requests" in said


def test_unknown_key_deep_inside_a_stream():
    stream = {**STREAM, "prompt_tokens": {"dist": "uniform", "min": 1, "mx": 3}}
    assert "unknown key stream[0].prompt_tokens.mx (did you mean max?)" in refused(stream=[stream])


def test_key_of_another_kind_is_unknown():
    said = refused(stream=[STREAM, {**STREAM, "name": "y", "groups": 3}])
    assert "stream[1].groups" in said
    assert "prompt_tokens" in said


def test_unknown_kind_and_dist_name_the_choices():
    assert "did you mean unique?" in refused(stream=[{**STREAM, "kind": "uniqe"}])
    assert "stream[0].kind is missing" in refused(stream=[{"name": "x"}])
    said = refused(stream=[{**STREAM, "output_tokens": {"dist": "normal"}}])
    assert "stream[0].output_tokens.dist = 'normal'" in said
    assert "lognormal" in said


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"load": {"concurrency": 0}}, ["load.concurrency = 0", "at least 1"]),
        ({"reset": {"device_host": False}}, ["reset.device_host", "storage = false"]),
        ({"load": {"rate": "0/s"}}, ["load.rate", "above 0"]),
        ({"load": {"rate": "fast"}}, ["load.rate", "8/s"]),
        ({"load": {"duration": 5}}, ["load.duration", "in quotes"]),
        ({"load": {"duration": "5"}}, ["load.duration", "did you mean 5s?"]),
        ({"load": {"concurrency": 2, "rate": "1/s"}}, ["load.concurrency = 2", "only one of concurrency, rate"]),
        ({"load": {"arrival": "trace", "rate": "1/s"}}, ["load.arrival = 'trace'", "without rate", "poisson"]),
        ({"load": {"arrival": "trace", "stages": [{"duration": "1s", "rate": 1}]}}, ["load.arrival", "without stages"]),
        ({"load": {"arrival": "trace", "concurrency": 3}}, ["load.arrival", "without concurrency"]),
        ({"load": {"rate": "1/s", "duration": "999999999h"}}, ["load.rate = '1/s'", "3.6e+12 session starts"]),
        ({"load": {"stages": [{"duration": "9h", "rate": 1, "to": 1e6}]}}, ["load.stages = ", "session starts"]),
        ({"load": {"duration": 60}}, ["load.duration", 'did you mean "60s"?']),
        ({"prompts": {"vocab": [0, 2**32]}}, ["prompts.vocab", "2^32"]),
        ({"prompts": {"vocab": [-1, 9]}}, ["prompts.vocab"]),
        ({"prompts": {"vocab": [5, 6]}}, ["prompts.vocab", "at least 2"]),
        ({"load": {"dp_routing": "rr"}}, ["load.dp_routing"]),
        ({"load": {"stages": []}}, ["load.stages"]),
        ({"seed": -1}, ["seed = -1"]),
        ({"stream": []}, ["stream"]),
        ({"stream": [STREAM, STREAM]}, ["stream", "name of its own"]),
        ({"stream": [{**STREAM, "prompt_tokens": 0}]}, ["stream[0].prompt_tokens = 0", "at least 1"]),
        ({"stream": [{**STREAM, "share": 1.0, "count": 2}]}, ["stream[0].share", "not both"]),
        ({"stream": [{**STREAM, "fill": 1.2, "count": 2}]}, ["stream[0].fill", "instead"]),
        ({"stream": [{**STREAM, "name": "a/b"}]}, ["stream[0].name"]),
        ({"stream": [{"name": "t", "kind": "trace", "format": "weka", "path": "p", "window": ["5s", "1s"]}]},
         ["stream[0].window", "after it begins"]),
        ({"prompts": {"source": "random_ids", "format": "text"}}, ["prompts.format", "no text"]),
        ({"prompts": {"vocab": [5, 5]}}, ["prompts.vocab"]),
        ({"stream": [{**STREAM, "output_tokens": {"dist": "lognormal", "sigma": 1}}]},
         ["stream[0].output_tokens.median", "median or mean"]),
    ],
)
def test_out_of_range_names_key_value_and_rule(changed, parts):
    said = refused(**changed)
    assert said.startswith("file.toml: ")
    for part in parts:
        assert part in said


def test_all_missing_keys_are_named_at_once():
    said = refused(load={"stages": [{"rate": 1}]}, stream=[{"name": "x", "kind": "shared_prefix", "groups": 2},
                                                           {"kind": "trace"}])
    assert said == ("file.toml: required and missing: stream[0].prefix_tokens, stream[0].suffix_tokens, "
                    "stream[0].output_tokens, stream[1].name, stream[1].format, stream[1].path, "
                    "load.stages[0].duration")
    with pytest.raises(UsageError, match=r"required and missing: name, stream$"):
        parse_spec({}, "file.toml")


def test_missing_file_and_bad_toml(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_spec(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("name = ")
    with pytest.raises(UsageError, match=r"bad.toml: not readable as TOML"):
        load_spec(bad)
    with pytest.raises(UsageError, match="not readable"):
        load_spec(tmp_path)


def test_override_replaces_loop_and_stop_whole():
    spec = parse_spec(tables(load={"arrival": "trace", "duration": "60s"}))
    closed = override(spec, concurrency=4, requests=10)
    assert (closed.load.concurrency, closed.load.rate, closed.load.arrival) == (4, None, "poisson")
    assert (closed.load.duration, closed.load.requests) == (None, 10)
    opened = override(closed, rate=3.5, duration_ns=10**9, arrival="gamma")
    assert (opened.load.concurrency, opened.load.rate, opened.load.arrival) == (None, 3.5, "gamma")
    assert (opened.load.duration, opened.load.requests) == (10**9, None)
    other = override(spec, seed=0, api="chat", stream=False, reuse=True, limit=5, dp_routing=2, timeout_ns=7)
    assert (other.seed, other.load.api, other.load.stream, other.prompts.reuse) == (0, "chat", False, True)
    assert (other.load.limit, other.load.dp_routing, other.load.timeout_ns) == (5, 2, 7)
    assert override(spec) == spec


def test_a_rate_over_recorded_times_is_asked_about():
    spec = parse_spec(tables(load={"arrival": "trace", "requests": 5}))
    with pytest.raises(UsageError, match=r"recorded times.*--arrival"):
        override(spec, rate=3.0)
    assert override(spec, rate=3.0, arrival="poisson").load.rate == 3.0
    with pytest.raises(UsageError, match="recorded times"):
        override(parse_spec(tables(load={"rate": 3})), arrival="trace")


def test_override_refuses_two_loops_bad_values_and_no_trace():
    spec = parse_spec(tables())
    with pytest.raises(UsageError, match="not both"):
        override(spec, concurrency=1, rate=1.0)
    with pytest.raises(UsageError, match="concurrency = 0"):
        override(spec, concurrency=0)
    with pytest.raises(UsageError, match="exactly one trace"):
        override(spec, trace_path="t.jsonl")


def test_trace_path_is_absolute_after_override():
    spec = parse_spec(tables(stream=[{"name": "t", "kind": "trace", "format": "mooncake", "path": "p"}]))
    assert Path(override(spec, trace_path="t.jsonl").stream[0].path).is_absolute()


def test_dump_is_plain_and_complete():
    spec = parse_spec(tables(load={"rate": "8/s", "duration": "1s"}))
    plain = dump_spec(spec)
    assert plain["load"]["duration"] == 10**9
    assert type(plain["load"]["duration"]) is int
    assert plain["stream"][0]["kind"] == "unique"
    msgspec.json.encode(plain)


_toml = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "load", "stream", "kind", "rate", "prompts", "dist", "unique", "min", "x"]),
        inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["name", "load", "stream", "seed", "prompts", "slo", "q"]), _toml))
def test_any_tables_give_a_spec_or_a_usage_error(data):
    said = "workload: "
    try:
        parse_spec(data)
    except UsageError as error:
        said = str(error)
    assert said.startswith("workload: ")
