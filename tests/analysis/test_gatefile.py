import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.analysis.gatefile import GateSpec, load_gate, parse_gate, parse_share
from hicache_bench.errors import UsageError

GOOD = """
min_runs = 5
allow = ["loop_lag"]
[metrics."ttft p50"]
worse_by = "5%"
max = "300ms"
[metrics.hit_ratio]
worse_by = "2pt"
min = "40%"
[metrics.output_per_s]
min = 100
[[slo]]
objective = "ttft<200ms,itl<50ms"
min_share = "99%"
"""


def test_whole_file(tmp_path):
    path = tmp_path / "gate.toml"
    path.write_text(GOOD)
    found = load_gate(path)
    assert (found.min_runs, found.allow) == (5, ("loop_lag",))
    assert [(item.metric, item.kind, item.value) for item in found.limits] == [
        ("ttft p50", "worse_by", 0.05), ("ttft p50", "max", 3e8), ("hit_ratio", "worse_by", 0.02),
        ("hit_ratio", "min", 0.4), ("output_per_s", "min", 100), ("goodput", "min", 0.99)]  # fmt: skip
    assert [item.name for item in found.limits][-1] == "ttft<200ms,itl<50ms min 99%"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no threshold"),
        ("runs = 5", "unknown key 'runs'; allowed: min_runs, allow, metrics, slo"),
        ("min_runs = 1", "min_runs = 1: a whole number of at least 2"),
        ("min_runs = true", "min_runs = True"),
        ("allow = 'x'", "allow = 'x': a list"),
        ("metrics = 3", "metrics: tables"),
        ("slo = 3", "slo: a list of tables"),
        ('[metrics."ttft p51"]\nmax="1s"', 'metrics."ttft p51": no such metric; allowed: ttft p50'),
        ('[metrics."schedule_lag p50"]\nmax="1s"', "no such metric"),
        ('[metrics."ttft p50"]', "a table with one or more of worse_by, max, min"),
        ('[metrics."ttft p50"]\nmaximum="1s"', "unknown key 'maximum'; allowed: worse_by, max, min"),
        ('[metrics."ttft p50"]\nmax=1', 'metrics."ttft p50".max = 1: a duration'),
        ('[metrics."ttft p50"]\nmax="1"', "not a duration"),
        ('[metrics."ttft p50"]\nworse_by=5', "worse_by = 5: write it like '5%'"),
        ('[metrics."ttft p50"]\nworse_by="-5%"', "write it like '5%'"),
        ('[metrics."ttft p50"]\nworse_by="nan%"', "write it like '5%'"),
        ('[metrics.hit_ratio]\nworse_by="5%"', "write it like '2pt'"),
        ('[metrics.output_per_s]\nmin="5"', "min = '5': a number in tok/s"),
        ('[metrics.output_per_s]\nmin=nan', "a number in tok/s"),
        ('[[slo]]\nobjective="ttft<1s"', r"slo\[1\]: min_share is missing"),
        ('[[slo]]\nobjective="x<1s"\nmin_share="5%"', r"slo\[1\].objective: no metric 'x'"),
        ('[[slo]]\nobjective=1\nmin_share="5%"', r"slo\[1\].objective: text"),
        ('[[slo]]\nobjective="ttft<1s"\nshare="5%"', "unknown key 'share'"),
        ("a = = 1", "TOML"),
    ],
)
def test_bad_files_name_file_key_and_what_is_allowed(tmp_path, text, says):
    path = tmp_path / "gate.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        load_gate(path)
    assert str(path) in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_gate(tmp_path / "none.toml")


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                          st.sampled_from(["ttft p50", "hit_ratio", "max", "min", "worse_by", "objective",
                                           "min_share"]), inner, max_size=3), max_leaves=8)


@given(st.dictionaries(st.sampled_from(["min_runs", "allow", "metrics", "slo"]), VALUES, max_size=4))
def test_any_tables_are_a_spec_or_a_usage_error(tables):
    try:
        assert isinstance(parse_gate(tables), GateSpec)
    except UsageError:
        pass


@given(st.floats(0, 1000))
def test_shares(number):
    assert parse_share(f"{number!r}%", "x") == pytest.approx(number / 100)
