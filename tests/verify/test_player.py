"""Every shipped case passes on a sound server, and every fault is caught by a case that names it."""

from __future__ import annotations

import msgspec
import pytest

from hicache_bench.errors import UsageError
from hicache_bench.profiles.profile import Figure
from hicache_bench.verify.conditions import Setting, why_not
from hicache_bench.verify.ground import computed_profile
from hicache_bench.verify.player import Player, check_prompts
from hicache_bench.verify.steps import SHIPPED, load_scenarios, parse_scenario
from hicache_bench.verify.suite import verdict_of
from tests.verify.fake import Fake, play, staged


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("hicache_bench.phases.CLEAR_DEADLINE_NS", 10**8)


def case(name):
    (scenario,) = load_scenarios((name,))
    return scenario


def quick_case(name):
    """A case whose pauses between tries are left out."""
    scenario = case(name)
    steps = tuple(msgspec.structs.replace(step, pause=0) if hasattr(step, "pause") else step for step in scenario.step)
    return msgspec.structs.replace(scenario, step=steps)


def told(findings):
    return [(finding.step, finding.verdict, finding.reason) for finding in findings if finding.verdict != "pass"]


@pytest.mark.parametrize("name", [n for n in SHIPPED if n not in ("selective", "write_back", "dp", "pd", "shared",
                                                                  "restart")])
async def test_a_sound_server_passes(name):
    findings = await play(Fake(), case(name))
    assert told(findings) == []
    assert findings


@pytest.mark.parametrize(("name", "policy"), [("selective", "write_through_selective"), ("write_back", "write_back")])
async def test_a_policy_case_passes_under_its_policy_and_fails_under_write_through(name, policy):
    assert told(await play(Fake(policy=policy), case(name))) == []
    assert verdict_of(await play(Fake(), case(name))) == "fail"


@pytest.mark.parametrize(("fault", "name", "word"), [
    ("wrong_text", "l2", "differs from the resident one at token 1"),
    ("wrong_text", "l3", "differs from the resident one at token 1"),
    ("wrong_text", "concurrent", "differs from the resident one at token 1"),
    ("wrong_text", "fidelity", "differs from the resident one at token 1"),
    ("l3_lost", "l3", "storage is 0, expected"),
    ("flush_drops_l3", "flush_keeps_l3", "storage is 0, expected >0"),
    ("host_lost", "l2", "host is 0, expected"),
    ("salt_leak", "salt", "cached is"),
    ("fails", "l1", "boom"),
])
async def test_each_fault_is_caught_by_a_case_that_names_it(fault, name, word):
    findings = await play(Fake(fault=fault), case(name))
    assert verdict_of(findings) in ("fail", "error")
    assert any(word in finding.reason for finding in findings), told(findings)
    assert all(finding.seen.startswith("cached=") or finding.verdict == "error" for finding in findings)


async def test_a_clear_without_effect_fails_the_reset_and_names_the_clear():
    findings = await play(Fake(fault="clear_noop"), quick_case("clear"))
    assert verdict_of(findings) == "fail"
    assert findings[0].step == "reset"
    assert "clear" in findings[0].advice


async def test_a_clear_without_effect_is_caught_by_the_case_itself_when_there_was_no_reset():
    scenario = quick_case("clear")
    findings = await play(Fake(fault="clear_noop"), msgspec.structs.replace(scenario, step=scenario.step[1:]))
    assert verdict_of(findings) == "fail"
    assert "leased keys" in findings[-1].advice
    assert "try 3 of 3" in findings[-1].reason


async def test_a_clear_that_works_at_the_second_try_passes_and_says_so():
    class Leased(Fake):
        def __call__(self, seen):
            self.fault = "clear_noop" if self.paths["/hicache/storage-backend/clear"] < 2 else ""
            return super().__call__(seen)

    scenario = quick_case("clear")
    findings = await play(Leased(), msgspec.structs.replace(scenario, step=scenario.step[1:]))
    assert verdict_of(findings) == "pass"
    assert "try 3 of 3" in findings[-1].reason or "try 2 of 3" in findings[-1].reason


@pytest.mark.parametrize("name", ["l1", "l2", "l3"])
async def test_answers_without_details_are_inconclusive_never_a_pass(name):
    findings = await play(Fake(fault="no_details"), case(name))
    assert verdict_of(findings) == "inconclusive"
    assert any("not reported" in finding.reason for finding in findings) or "does not say" in findings[0].reason


async def test_best_effort_without_a_hit_is_a_policy_effect():
    findings = await play(Fake(prefetch="best_effort"), case("l3"))
    worst = [finding for finding in findings if finding.verdict != "pass"]
    assert worst[0].verdict == "inconclusive"
    assert "best_effort, not a fault" in worst[0].reason
    assert "wait_complete" in worst[0].advice


async def test_an_output_that_batching_changes_makes_the_restore_inconclusive():
    findings = await play(Fake(fault="flaky_text"), case("concurrent"))
    assert verdict_of(findings) == "inconclusive"
    assert any("in the control, too" in finding.reason for finding in findings)


async def test_a_storage_check_needs_no_storage_tier_where_there_is_none():
    findings = await play(Fake(storage=False), case("l2"))
    assert told(findings) == []
    assert any("storage=-" in finding.seen for finding in findings)


async def test_too_few_peers_fail_with_what_to_change():
    async with staged(Fake()) as made:
        profile = computed_profile(made.info)
    few = msgspec.structs.replace(profile.figures, evict_peers=Figure(2, "computed"), stay_peers=Figure(1, "computed"))
    findings = await play(Fake(), case("l2"), msgspec.structs.replace(profile, figures=few))
    assert verdict_of(findings) == "fail"
    assert "raise figures.evict_peers" in findings[2].advice


async def test_too_many_peers_fail_with_what_to_change():
    async with staged(Fake()) as made:
        profile = computed_profile(made.info)
    many = msgspec.structs.replace(profile.figures, evict_peers=Figure(15, "computed"),
                                   stay_peers=Figure(14, "computed"))
    findings = await play(Fake(), case("l1"), msgspec.structs.replace(profile, figures=many))
    assert verdict_of(findings) == "fail"
    assert "lower figures.stay_peers" in findings[2].advice


async def test_a_commit_lag_is_checked_both_ways():
    async with staged(Fake()) as made:
        profile = computed_profile(made.info)
    lagging = msgspec.structs.replace(profile.figures, commit_lag=Figure(1, "computed"))
    findings = await play(Fake(), case("l1"), msgspec.structs.replace(profile, figures=lagging))
    assert verdict_of(findings) == "fail"
    assert "commit_lag" in findings[1].advice
    prompt = msgspec.structs.replace(profile.figures, commit_lag=Figure(0, "computed"))
    findings = await play(Fake(), case("l1"), msgspec.structs.replace(profile, figures=prompt))
    assert told(findings) == []


async def test_each_rank_gets_its_own_requests():
    fake = Fake(dp=2)
    assert told(await play(fake, case("dp"), rank=0)) == []
    assert told(await play(fake, case("dp"), rank=1)) == []
    assert fake.ranks[0] == fake.ranks[1] > 3


async def test_two_servers_on_one_store():
    first, second, apart = Fake(), Fake(), Fake()
    second.held["store"] = first.held["store"]
    for other, verdict in ((second, "pass"), (apart, "fail")):
        async with staged(first) as one, staged(other, "m") as two:
            player = Player(case("shared"), [one.stage, two.stage], computed_profile(one.info))
            assert verdict_of(await player.play()) == verdict


async def test_a_restart_keeps_storage_and_an_empty_store_fails():
    for keeps, verdict in ((True, "pass"), (False, "fail")):
        fake = Fake()

        async def restart(fake=fake, keeps=keeps):
            fake._flush()
            if not keeps:
                fake.held["store"].clear()

        assert verdict_of(await play(fake, case("restart"), restart=restart)) == verdict


async def test_a_dead_server_is_an_error_and_ends_the_case():
    fake = Fake()
    async with staged(fake) as made:
        fake.fault = "dies"
        player = Player(case("l1"), [made.stage], computed_profile(made.info))
        findings = await player.play()
    assert verdict_of(findings) == "error"
    assert len(findings) == 1


def scenario(*steps, **more):
    return parse_scenario({"name": "mine", "title": "t", "step": list(steps), **more}, "mine.toml")


async def test_a_second_server_that_is_not_there_is_a_usage_error():
    with pytest.raises(UsageError, match=r"server = 2, but 1 URL"):
        await play(Fake(), scenario({"do": "send", "server": 2}, {"do": "expect", "cached": 0}))


async def test_an_expect_without_an_answer_is_a_usage_error():
    with pytest.raises(UsageError, match="before any answer"):
        await play(Fake(), scenario({"do": "expect", "of": "other", "cached": 0}))


async def test_host_peers_that_the_profile_lacks_are_a_usage_error():
    with pytest.raises(UsageError, match="no host_peers"):
        await play(Fake(), scenario({"do": "prime"}, {"do": "pressure", "peers": "host"}))


async def test_repeat_counts_every_peer_as_a_prompt_of_its_own():
    steps = ({"do": "repeat", "times": 3, "step": [{"do": "pressure", "peers": 2}, {"do": "send", "beside": 1},
                                                  {"do": "expect", "cached": ">=0"}]},)
    async with staged(Fake()) as made:
        player = Player(scenario(*steps), [made.stage], computed_profile(made.info))
        assert check_prompts(player, made.stage.space) == 1 + 3 * 3
        await player.play()
        assert player.peers == 9
        assert {row.label for row in made.rows} == {"mine: peer 1/2", "mine: peer 2/2", "mine: send base beside 1"}
        assert {row.phase for row in made.rows} == {"warmup", "measure"}


async def test_what_applies_is_decided_from_the_captured_flags():
    async def reason(name, fake, **more):
        async with staged(fake) as made:
            return why_not(case(name), Setting((made.info,), computed_profile(made.info), **more))

    assert await reason("l2", Fake()) == ""
    assert "HiCache is off" in await reason("l2", Fake(hicache=False))
    assert await reason("l1", Fake(hicache=False)) == ""
    assert "no storage tier" in await reason("l3", Fake(storage=False))
    assert "write_back fills storage only at eviction" in await reason("l3", Fake(policy="write_back"))
    assert "write policy is write_back" in await reason("selective", Fake(policy="write_back"))
    assert "one data-parallel rank" in await reason("dp", Fake())
    assert await reason("dp", Fake(dp=2)) == ""
    assert "--admin-url" in await reason("pd", Fake())
    assert await reason("pd", Fake(), engine_apart=True) == ""
    assert "--url twice" in await reason("shared", Fake())
    assert "--restart-command" in await reason("restart", Fake())
    assert await reason("restart", Fake(), may_restart=True) == ""
