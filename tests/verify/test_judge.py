"""Absent is inconclusive, never a pass; a miss says what to change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.records import Folded
from hicache_bench.verify.judge import Ground, compare_outputs, expectation, judge, shown
from hicache_bench.verify.steps import Expect

GROUND = Ground({"match": 3072, "prompt": 3200, "page": 128, "cold": 0}, storage=True)
HOST = Expect(cached="match", device=0, host="match", storage=0)


def answer(cached=3072, device=0, host=3072, storage=0, ids=(1, 2, 3), **more):
    return Folded("ok", cached_tokens=cached, device_tokens=device, host_tokens=host, storage_tokens=storage,
                  output_ids=None if ids is None else list(ids), **more)


def verdict(expect, seen, reference=None, ground=GROUND, **more):
    return judge("c", "s", expect, seen, reference, ground, **more)


def test_a_pass_shows_seen_and_expected():
    found = verdict(HOST, answer())
    assert (found.verdict, found.reason, found.advice) == ("pass", "", "")
    assert found.seen == "cached=3072 device=0 host=3072 storage=0"
    assert found.expected == "cached=3072 device=0 host=3072 storage=0"


@pytest.mark.parametrize("tier", ["cached", "device", "host", "storage"])
def test_what_is_not_reported_is_inconclusive(tier):
    found = verdict(HOST, answer(**{tier: None}))
    assert found.verdict == "inconclusive"
    assert f"{tier} is not reported" in found.reason
    assert f"{tier}=-" in found.seen


def test_a_miss_beside_something_unknown_is_still_a_fail():
    assert verdict(HOST, answer(device=128, storage=None)).verdict == "fail"


def test_nothing_cached_means_that_every_tier_gave_nothing():
    found = verdict(Expect(cached=0, storage=0, host=0), Folded("ok", cached_tokens=0))
    assert found.verdict == "pass"


def test_storage_is_left_out_only_where_the_configuration_has_none():
    silent = answer(storage=None)
    assert verdict(HOST, silent, ground=Ground(GROUND.names, storage=False)).verdict == "pass"
    assert verdict(HOST, silent, ground=Ground(GROUND.names, storage=None)).verdict == "inconclusive"
    wants = Expect(storage=">0")
    assert verdict(wants, silent, ground=Ground(GROUND.names, storage=False)).verdict == "inconclusive"


def test_a_failed_request_is_an_error():
    found = verdict(HOST, Folded("timeout", error="late"))
    assert (found.verdict, found.reason) == ("error", "the request failed (timeout): late")


@pytest.mark.parametrize(("seen", "words"), [
    (answer(device=3072, host=0), "raise figures.evict_peers"),
    (answer(cached=0, host=0), "hicache_ratio"),
    (answer(cached=2944, host=2944), "figures.match_tokens"),
])
def test_a_miss_says_what_to_change(seen, words):
    found = verdict(HOST, seen)
    assert found.verdict == "fail"
    assert words in found.advice


def test_a_step_can_bring_its_own_advice():
    assert verdict(Expect(device=0, advice="do this"), answer(device=1)).advice == "do this"


SAME = Expect(output="same")


def test_outputs_name_the_first_token_that_differs():
    found = verdict(SAME, answer(ids=(1, 2, 9)), answer())
    assert found.verdict == "fail"
    assert "at token 2: 9 instead of 3" in found.reason
    assert verdict(SAME, answer(), answer()).verdict == "pass"
    assert verdict(SAME, answer(), None).verdict == "inconclusive"
    assert "3 tokens, the resident one 2" in verdict(SAME, answer(), answer(ids=(1, 2))).reason


def test_a_difference_that_the_control_had_too_is_inconclusive():
    assert verdict(SAME, answer(ids=(9,)), answer(), trusted=False).verdict == "inconclusive"


def test_text_is_compared_where_there_are_no_ids():
    first, second = answer(ids=None, text="abc"), answer(ids=None, text="abd")
    assert (compare_outputs(first, second) or "").endswith("at character 2: 'c' instead of 'd'")
    assert compare_outputs(answer(ids=None, text=""), answer(ids=None, text="")) is None
    assert "character" in (compare_outputs(answer(ids=None, text=""), first) or "")


L3 = Expect(cached="match", device=0, host=0, storage="match")


@pytest.mark.parametrize(("policy", "want"), [("best_effort", "inconclusive"), ("wait_complete", "fail"),
                                              ("timeout", "fail"), (None, "fail")])
def test_only_best_effort_excuses_an_empty_storage_answer(policy, want):
    ground = Ground(GROUND.names, storage=True, prefetch_policy=policy)
    assert verdict(L3, answer(cached=0, host=0), ground=ground).verdict == want


def test_best_effort_does_not_excuse_another_output_or_another_tier():
    ground = Ground(GROUND.names, storage=True, prefetch_policy="best_effort")
    assert verdict(Expect(storage=">0", output="same"), answer(cached=0, host=0, ids=(9,)), answer(),
                   ground=ground).verdict == "fail"
    assert verdict(L3, answer(), ground=ground).verdict == "fail"


@given(*(st.none() | st.integers(0, 9000) for _ in range(4)), st.booleans())
def test_a_pass_needs_every_bound_to_be_seen_and_to_hold(cached, device, host, storage, has_storage):
    found = verdict(HOST, answer(cached, device, host, storage), ground=Ground(GROUND.names, storage=has_storage))
    holds = (cached, device, host) == (3072, 0, 3072) and (storage == 0 or (storage is None and not has_storage))
    assert (found.verdict == "pass") == holds
    assert shown(answer(cached, device, host, storage)) == found.seen


def test_expectations_are_printed_in_numbers():
    assert expectation(Expect(cached=">=page", device=0, output="same"), GROUND) == "cached>=128 device=0 output=same"
