from types import SimpleNamespace

import numpy as np
import pytest

from hicache_bench.analysis.figures import FIGURE, FIGURES, with_primary
from hicache_bench.analysis.verdict import centre, pairing, replicated, spread_of, within_run
from hicache_bench.analysis.within import Spread
from hicache_bench.errors import UsageError


def runs(seed=0, n=5, sd=0.002, **factors):
    """n runs in which every row is 100 (ratios 0.4), times its factor, with some spread."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        values = {f.name: (0.4 if f.scale == "points" else 100) * (1 + sd * rng.standard_normal()) for f in FIGURES}
        found.append({name: value * factors.get(name.replace(" ", "_"), 1) for name, value in values.items()})
    return found


def test_better_worse_and_same():
    found = replicated(runs(), runs(1, ttft_p50=1.1, output_per_s=1.1, hit_ratio=0.5, e2e_p50=0.9))
    assert found["ttft p50"].verdict == "worse"
    assert found["output_per_s"].verdict == "better"
    assert found["hit_ratio"].verdict == "worse"
    assert found["e2e p50"].verdict == "better"
    assert found["tpot p50"].verdict == "same"
    assert found["ttft p50"].size == pytest.approx(0.1, abs=0.01)
    assert found["hit_ratio"].size == pytest.approx(-0.2, abs=0.01)
    assert found["ttft p50"].low < 0.1 < found["ttft p50"].high
    assert found["ttft p50"].p == pytest.approx(2 / 252)


def test_client_rows_never_have_a_word():
    found = replicated(runs(), runs(1, schedule_lag_p99=9, loop_lag_p99=9))
    assert {found[f.name].verdict for f in FIGURES if f.family == "client"} == {None}
    assert found["schedule_lag p99"].size == pytest.approx(8, rel=0.1)


def test_significant_but_below_the_floor_is_no_difference():
    found = replicated(runs(sd=1e-4), runs(1, sd=1e-4, ttft_p50=1.01))["ttft p50"]
    assert found.p < 0.05
    assert found.verdict == "same"
    assert replicated(runs(sd=1e-4), runs(1, sd=1e-4, ttft_p50=1.01), floor=0.005)["ttft p50"].verdict == "worse"


def test_wide_interval_is_unclear_and_not_same():
    found = replicated(runs(sd=0.05), runs(1, sd=0.05))["ttft p50"]
    assert found.verdict == "unclear"
    assert "wider than the floor" in found.why


def test_secondary_rows_wait_for_a_primary_one():
    new = runs(1, e2e_p50=1.2)
    alone = replicated(runs(), new)["e2e p50"]
    assert (alone.verdict, alone.p < 0.05) == ("unclear", True)
    assert "no primary row" in alone.why
    assert replicated(runs(), new, figures=with_primary(["e2e p50"]))["e2e p50"].verdict == "worse"
    with pytest.raises(UsageError, match=r"--primary 'ttft p51'.*ttft p50"):
        with_primary(["ttft p51"])
    with pytest.raises(UsageError):
        with_primary(["schedule_lag p50"])


def test_too_few_runs_say_so_and_have_no_word():
    found = replicated(runs(n=3), runs(1, n=3, ttft_p50=2.0))
    assert {item.verdict for item in found.values()} == {"unclear", None}
    assert found["ttft p50"].why == "too few runs: the smallest p that 3 and 3 runs can give is 0.1"
    assert found["ttft p50"].low is not None


def test_several_contrasts_share_the_error():
    one = replicated(runs(), runs(1, ttft_p50=1.1))["ttft p50"]
    seven = replicated(runs(), runs(1, ttft_p50=1.1), contrasts=7)["ttft p50"]
    assert seven.p == pytest.approx(7 * one.p)
    assert seven.verdict == "unclear"


def test_absent_and_zero_rows_are_not_tested():
    base, new = runs(), runs(1)
    base[2]["ttft p50"] = None
    new[0]["output_per_s"] = 0.0
    found = replicated(base, new)
    assert (found["ttft p50"].p, found["ttft p50"].why) == (None, "absent in 1 of 5 base runs")
    assert (found["output_per_s"].verdict, found["output_per_s"].why) == ("unclear", "zero in some new runs")
    for run in base:
        run["tpot p50"] = None
    assert replicated(base, new)["tpot p50"].size is None


def test_cells():
    figure, ratio = FIGURE["ttft p50"], FIGURE["hit_ratio"]
    assert centre(figure, [{"ttft p50": 1.0}, {"ttft p50": 4.0}, {"ttft p50": None}]) == pytest.approx(2)
    assert centre(ratio, [{"hit_ratio": 0.0}, {"hit_ratio": 0.5}]) == 0.25
    assert centre(figure, [{}]) is None
    assert spread_of(figure, [{"ttft p50": 1.0}]) is None
    assert spread_of(figure, [{"ttft p50": 1.0}, {"ttft p50": 3.0}]) == pytest.approx(2**0.5 / 2)


def test_one_run_a_side_never_has_a_word():
    base, new = runs(n=1)[0], runs(1, n=1)[0]
    found = within_run({"ttft p50": Spread(0.3, 0.2, 0.4, 0.001), "itl p50": Spread(0.0, -0.1, 0.1, 0.9)}, base, new)
    assert {item.verdict for item in found.values()} == {"unclear", None}
    assert (found["ttft p50"].within, found["ttft p50"].basis) == ("higher", "within run")
    assert found["itl p50"].within is None
    assert (found["output_per_s"].basis, found["output_per_s"].low) == ("none", None)


def fake(name, plan="p", at=None):
    return SimpleNamespace(name=name, meta={"plan_digest": plan, "started_wall_ns": at})


def test_pairing_by_plan_and_by_time():
    base = [fake(f"a{i}", f"p{i}") for i in range(8)]
    new = [fake(f"b{i}", f"p{i}") for i in reversed(range(8))]
    found = pairing(base, new)
    assert found.by == "plan"
    assert [run.meta["plan_digest"] for run in found.base] == [run.meta["plan_digest"] for run in found.new]
    times = {"A": [], "B": []}
    for at, side in enumerate("ABBA" * 4):
        times[side].append(at)
    base, new = ([fake(f"{side}{at}", at=at) for at in times[side]] for side in "AB")
    found = pairing(base, new)
    assert found.by == "time"
    assert {abs(a.meta["started_wall_ns"] - b.meta["started_wall_ns"])
            for a, b in zip(found.base, found.new, strict=True)} == {1}  # fmt: skip


def test_no_pairs_where_few_or_not_interleaved():
    few = [fake(str(i), f"p{i}") for i in range(5)]
    assert pairing(few, few) is None
    one, two = [fake(str(i), at=i) for i in range(8)], [fake(str(i), at=100 + i) for i in range(8)]
    assert pairing(one, two) is None
    assert pairing(one, [fake(str(i)) for i in range(8)]) is None
