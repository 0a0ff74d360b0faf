import copy

from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.analysis.comparable import _flat, differences, plan_changes, settings
from hicache_bench.analysis.sets import RunSet
from tests.analysis.runs import SPEC, simple_run


def sets(*sides):
    return [RunSet(f"set{i}", tuple(runs)) for i, runs in enumerate(sides)]


def changed(**how):
    spec = copy.deepcopy(SPEC)
    spec["load"]["concurrency"] = 4
    spec["seed"] = 9
    spec["stream"].insert(0, {"name": "t", "kind": "multi_turn", "share": 2.0})
    spec["stream"][1]["share"] = 3.0
    return spec | how


def test_differing_plans_name_their_keys(tmp_path):
    base = simple_run(tmp_path, rows=[])
    new = simple_run(tmp_path, rows=[], plan_digest="other", spec=changed(name="v"))
    (text,) = differences(sets([base], [new]))
    assert text == ("plan digest abc against other (seed 0 vs 9, load.concurrency 2 vs 4, stream[s].share 1.0 vs 3.0, "
                    "stream[t].name absent vs t, stream[t].kind absent vs multi_turn, stream[t].share absent vs 2.0)")


def test_plans_that_cannot_be_told_apart(tmp_path):
    base = simple_run(tmp_path, rows=[])
    assert "specs agree" in differences(sets([base], [simple_run(tmp_path, rows=[], plan_digest="o")]))[0]
    bare = simple_run(tmp_path, rows=[], plan_digest="o", spec=None)
    assert plan_changes(base, bare) is None
    assert "no plan.json" in differences(sets([base], [bare]))[0]


def test_seeds_may_differ_inside_a_set_when_both_sides_have_them(tmp_path):
    one = [simple_run(tmp_path, rows=[], plan_digest=digest) for digest in "xy"]
    two = [simple_run(tmp_path, rows=[], plan_digest=digest) for digest in "yx"]
    assert differences(sets(one, two)) == []
    assert "plan digest x and y against x" in differences(sets(one, two[1:]))[0]


def test_mixed_states_inside_a_set(tmp_path):
    mixed = [simple_run(tmp_path, rows=[], start_state=state) for state in ("cold", "warm")]
    again = [simple_run(tmp_path, rows=[], start_state=state) for state in ("cold", "warm")]
    assert differences(sets(mixed, again)) == ["start state cold and warm in one set"]
    assert differences(sets(mixed[:1], again)) == ["start state cold against cold and warm"]


def test_settings_resolved_and_asked(tmp_path):
    base = simple_run(tmp_path, rows=[], flags={"ratio": 2.0, "x": None})
    new = simple_run(tmp_path, rows=[], flags={"ratio": 4.0}, server_asked={"ratio": "auto"})
    other = simple_run(tmp_path, rows=[], flags={"ratio": 2.0})
    found = settings(sets([base], [new, other]))
    assert [(item.name, item.asked, item.values) for item in found] == [
        ("ratio", False, ("2.0", "2.0 | 4.0")), ("ratio", True, (None, "auto"))]  # fmt: skip


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                                         max_size=3), max_leaves=10)


@given(TREES)
def test_any_spec_flattens_to_text(tree):
    assert all(isinstance(key, str) and isinstance(text, str) for key, text in _flat(tree).items())
