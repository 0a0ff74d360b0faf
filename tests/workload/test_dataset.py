"""Literal prompts and conversations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.records import Message
from hicache_bench.workload.dataset import load_dataset
from hicache_bench.workload.plan import Capacity, build_plan
from hicache_bench.workload.spec import parse_spec


def spec(path, *, load=None, **changed):
    return parse_spec({"name": "w", "load": load or {"concurrency": 1},
                       "stream": [{"name": "d", "kind": "dataset", "path": str(path), **changed}]})


def load(path, **changed):
    return list(load_dataset(spec(path, **changed).stream[0], path, 0))


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts(tmp_path):
    path = write(tmp_path / "d.jsonl", {"prompt": "one"}, {"prompt": "two", "other": 1})
    made = load(path, output_tokens={"dist": "uniform", "min": 3, "max": 5})
    assert [draft.turns[0].prompt.text for draft in made] == ["one", "two"]
    assert all(3 <= draft.turns[0].output_tokens <= 5 for draft in made)
    assert made[0].turns[0].prompt.n_tokens is None


def test_openai_messages_and_batch_bodies(tmp_path):
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": [
        {"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    path = write(tmp_path / "d.jsonl", {"messages": messages}, {"custom_id": "1", "body": {"messages": messages}})
    for draft in load(path):
        assert draft.turns[0].prompt.messages == (Message("system", "be kind"), Message("user", "hello"))


def test_sharegpt_array_becomes_turns_with_the_files_answers(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps([{"id": "x", "conversations": [
        {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"},
        {"from": "gpt", "value": "d"}]}, {"conversations": []}], indent=1))
    (draft,) = load(path)
    assert [len(turn.prompt.messages) for turn in draft.turns] == [1, 3]
    assert draft.turns[1].prompt.messages[1] == Message("assistant", "b")
    assert (draft.turns[1].after, draft.turns[1].live) == ((0,), False)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "x"}, "keys question; needed: prompt"),
        ({"prompt": ""}, "not empty"),
        ({"prompt": 3}, "must be a text"),
        ({"messages": "x"}, "list of message objects"),
        ({"body": 3}, "list of message objects"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a text in content"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "a message needs from"),
        ([1], "a row is an object"),
    ],
)
def test_errors_name_the_line(tmp_path, row, said):
    path = write(tmp_path / "d.jsonl", {"prompt": "fine"}, row)
    with pytest.raises(UsageError, match=said) as error:
        load(path)
    assert f"{path}:2: " in str(error.value)


def test_not_json_and_no_file(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "x"}\n{oops\n')
    with pytest.raises(UsageError, match=r":2: not JSON"):
        load(path)
    path.write_text("[1,")
    with pytest.raises(UsageError, match="not JSON"):
        load(path)
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "none")


def build(path, **changed):
    return build_plan(spec(path, **changed), base_dir=path.parent, page_size=1, capacity=Capacity())


def test_the_plan_ends_with_the_file_unless_it_loops(tmp_path):
    path = write(tmp_path / "d.jsonl", *({"prompt": f"p{i}"} for i in range(5)))
    assert build(path).n_requests == 5
    assert build(path, load={"concurrency": 1, "requests": 12}).n_requests == 5
    assert build(path, load={"concurrency": 1, "requests": 3}).n_requests == 3
    assert build(path, max_requests=2).n_requests == 2
    looped = build(path, loop=True, load={"concurrency": 1, "requests": 12})
    assert [session.turns[0].prompt.text for session in looped.sessions][4:7] == ["p4", "p0", "p1"]
    with pytest.raises(UsageError, match="need a total"):
        build(path, loop=True)


def test_an_empty_file_that_loops_ends(tmp_path):
    path = write(tmp_path / "d.jsonl")
    with pytest.raises(UsageError, match="no requests"):
        build(path, loop=True, load={"concurrency": 1, "requests": 12})


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["prompt", "messages", "role", "content", "conversations", "from", "value", "body"]),
        inner, max_size=3), max_leaves=10).map(lambda row: json.dumps(row).encode())))
def test_any_bytes_give_drafts_or_a_usage_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(data)
    said = str(path)
    try:
        load(path)
    except UsageError as error:
        said = str(error)
    assert str(path) in said
