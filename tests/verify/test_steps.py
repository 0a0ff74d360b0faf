"""Scenario files: the shipped ones are well formed, and a wrong one is told where and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.verify import steps
from hicache_bench.verify.conditions import _CONDITIONS
from hicache_bench.verify.steps import Expect, Repeat, load_scenarios, parse_bound, parse_scenario, shipped, walk

NAMES = {"match": 3072, "prompt": 3200, "page": 128, "cold": 0}


def test_the_list_of_shipped_cases_is_the_folder():
    assert {path.stem for path in Path(shipped("l1")).parent.glob("*.toml")} == set(steps.SHIPPED)


def test_shipped_cases_are_named_like_their_file_and_compare_outputs():
    for scenario in load_scenarios(()):
        assert scenario.name in steps.SHIPPED
        assert any(isinstance(step, Expect) and step.output for step in walk(scenario.step)), scenario.name


def test_every_need_has_a_condition():
    assert set(steps.Need.__args__) == set(_CONDITIONS)


def test_the_repeat_of_a_case_is_walked_into():
    (clear,) = load_scenarios(("clear",))
    assert any(isinstance(step, Repeat) for step in clear.step)
    assert any(isinstance(step, Expect) and step.cached == "<=cold" for step in walk(clear.step))


@pytest.mark.parametrize(("bound", "want"), [(0, ("=", 0)), ("0", ("=", 0)), (">0", (">", 0)), (">= 256", (">=", 256)),
                                            ("match", ("=", 3072)), ("<=cold", ("<=", 0)), ("<prompt", ("<", 3200))])
def test_bounds(bound, want):
    assert parse_bound(bound, NAMES) == want


@given(st.sampled_from(["", "=", ">", ">=", "<", "<="]), st.sampled_from(["", " "]), st.integers(0, 10**9 - 1))
def test_any_operator_and_count_is_a_bound(operator, space, count):
    expect = Expect(device=f"{operator}{space}{count}")
    assert parse_bound(expect.device, NAMES) == (operator or "=", count)


@given(st.text(max_size=12))
def test_any_other_text_is_refused_with_the_key(text):
    if re.fullmatch(r"(>=|<=|>|<|=|)\s*(\d{1,9}|match|prompt|page|cold)", text, re.ASCII):
        return
    with pytest.raises(ValueError, match="device = "):
        Expect(device=text)


@pytest.mark.parametrize(("change", "text"), [
    ({"step": [{"do": "sleep"}]}, r"step\[0\]\.do = 'sleep' is unknown.*allowed: reset, prime, pressure, send"),
    ({"step": [{"peers": 3}]}, r"step\[0\]\.do is missing"),
    ({"step": [{"do": "pressure", "peers": "many"}]}, r"step\[0\]\.peers"),
    ({"step": [{"do": "expect"}]}, "name cached, device, host, storage or output"),
    ({"step": [{"do": "expect", "device": "lots"}]}, "device = 'lots'"),
    ({"step": [{"do": "send", "part": 1.5}, {"do": "expect", "cached": 0}]}, "part = 1.5"),
    ({"step": [{"do": "repeat", "times": 0, "step": []}]}, "times = 0"),
    ({"step": [{"do": "settle", "deadline": "5"}]}, "duration"),
    ({"step": [{"do": "flush"}]}, "judges nothing"),
    ({"needs": ["gpu"], "step": [{"do": "prime"}]}, r"needs\[0\]"),
    ({"name": "a b", "step": [{"do": "prime"}]}, "name = 'a b'"),
    ({"title": "t", "steps": []}, "unknown key steps"),
])
def test_a_wrong_file_is_told_where_and_what_is_allowed(change, text):
    with pytest.raises(UsageError, match=text) as caught:
        parse_scenario({"name": "n", "title": "t", **change}, "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


def test_names_files_and_doubles(tmp_path):
    with pytest.raises(UsageError, match="no case 'l4'; shipped are l1, l2"):
        load_scenarios(("l4",))
    with pytest.raises(UsageError, match="no such file"):
        load_scenarios((str(tmp_path / "none.toml"),))
    with pytest.raises(UsageError, match="given twice"):
        load_scenarios(("l1", "l1"))
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\ntitle = "t"\n[[step]]\ndo = "prime"\n')
    assert [one.name for one in load_scenarios((str(mine), "l2"))] == ["mine", "l2"]
