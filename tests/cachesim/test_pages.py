from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hicache_bench.cachesim.pages import IllegalTransition, PagePool, PageState, PoolExhausted
from hicache_bench.errors import UsageError

FREE, COPYING, READABLE, REFERENCED = PageState


def holding_in(state):
    pool = PagePool(4)
    holding = pool.acquire("a", 2)
    if state in (READABLE, REFERENCED, FREE):
        pool.commit(holding)
    if state is REFERENCED:
        pool.retain(holding)
    if state is FREE:
        pool.evict(holding)
    assert holding.state is state
    return pool, holding


ARROWS = {
    (COPYING, "commit"): READABLE, (COPYING, "abort"): FREE, (COPYING, "grow"): COPYING,
    (COPYING, "hand_over"): COPYING, (COPYING, "give_back"): COPYING,
    (READABLE, "retain"): REFERENCED, (READABLE, "evict"): FREE,
    (REFERENCED, "retain"): REFERENCED, (REFERENCED, "release"): READABLE,
}
ARGUMENTS = {"grow": (1,), "hand_over": (0, 1, "b"), "give_back": (0, 1)}


@pytest.mark.parametrize("verb", ["commit", "abort", "retain", "release", "evict", "grow", "hand_over", "give_back"])
@pytest.mark.parametrize("state", list(PageState))
def test_every_transition(state, verb):
    pool, holding = holding_in(state)
    act = getattr(pool, verb)
    if (state, verb) not in ARROWS:
        free = pool.free_pages
        with pytest.raises(IllegalTransition, match=state.name):
            act(holding, *ARGUMENTS.get(verb, ()))
        assert (holding.state, pool.free_pages) == (state, free)
    else:
        act(holding, *ARGUMENTS.get(verb, ()))
        assert holding.state is ARROWS[state, verb]
    pool.check()


@pytest.mark.parametrize("state", [COPYING, READABLE, REFERENCED])
def test_split_keeps_state_and_readers(state):
    pool, holding = holding_in(state)
    head = pool.split(holding, 1, "head")
    assert (head.state, head.readers) == (holding.state, holding.readers) == (state, int(state is REFERENCED))
    assert head.pages + holding.pages == [0, 1]
    pool.check()


def test_a_free_holding_and_an_impossible_place_do_not_split():
    pool, holding = holding_in(FREE)
    with pytest.raises(IllegalTransition):
        pool.split(holding, 1, "head")
    pool, holding = holding_in(READABLE)
    for at, owner in ((0, "head"), (2, "head"), (1, "a")):
        with pytest.raises(IllegalTransition):
            pool.split(holding, at, owner)


def test_middle_page_is_reused_without_collision():
    """The essay's counter-example: numbering new pages by len(active) gives D the page that C still has."""
    pool = PagePool(3)
    a, b, c = (pool.acquire(key) for key in "ABC")
    assert [a.pages, b.pages, c.pages] == [[0], [1], [2]]
    pool.commit(b)
    pool.evict(b)
    d = pool.acquire("D")
    assert d.pages == [1]
    assert c.pages == [2]
    assert pool.acquire("D") is d
    with pytest.raises(PoolExhausted, match="0 of 3 free"):
        pool.acquire("E")
    assert "E" not in pool.active
    pool.check()


def test_two_readers_must_both_end_before_eviction():
    pool, holding = holding_in(REFERENCED)
    pool.retain(holding)
    pool.release(holding)
    with pytest.raises(IllegalTransition, match="REFERENCED"):
        pool.evict(holding)
    pool.release(holding)
    pool.evict(holding)
    assert pool.free_pages == 4


def test_an_owner_has_one_holding_and_a_page_one_owner():
    pool, holding = holding_in(COPYING)
    with pytest.raises(IllegalTransition):
        pool.hand_over(holding, 0, 1, "a")
    with pytest.raises(IllegalTransition):
        pool.hand_over(holding, 1, 1, "b")
    with pytest.raises(UsageError):
        PagePool(-1)


@pytest.mark.parametrize("damage", [
    lambda pool: pool.active["a"].pages.append(0),
    lambda pool: pool.active["a"].pages.pop(),
    lambda pool: pool._freed.append(1),
    lambda pool: setattr(pool, "free_pages", 0),
    lambda pool: setattr(pool.active["a"], "readers", 1),
    lambda pool: pool.active.__setitem__("b", pool.active["a"]),
])
def test_check_finds_damage(damage):
    pool, _ = holding_in(READABLE)
    pool.check()
    damage(pool)
    with pytest.raises(IllegalTransition):
        pool.check()


class TwoTiers(RuleBasedStateMachine):
    """Device and host pools with copies both ways in flight: a source is retained until its copy has ended."""

    def __init__(self):
        super().__init__()
        self.device, self.host = PagePool(7, "device"), PagePool(9, "host")
        self.copies = []
        self.made = 0

    def pick(self, data, pool, *states):
        found = [holding for holding in pool.active.values() if holding.state in states]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(n=st.integers(1, 4))
    def compute(self, n):
        self.made += 1
        if n > self.device.free_pages:
            with pytest.raises(PoolExhausted):
                self.device.acquire(self.made, n)
            return
        self.device.commit(self.device.acquire(self.made, n))

    @rule(data=st.data(), down=st.booleans())
    def copy(self, data, down):
        source_pool, target_pool = (self.device, self.host) if down else (self.host, self.device)
        source = self.pick(data, source_pool, READABLE, REFERENCED)
        if source is None or source.owner in target_pool.active or len(source) > target_pool.free_pages:
            return
        target = target_pool.acquire(source.owner, len(source))
        source_pool.retain(source)
        self.copies.append((source_pool, source, target_pool, target))

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), ok=st.booleans())
    def land(self, data, ok):
        source_pool, source, target_pool, target = self.copies.pop(data.draw(st.integers(0, len(self.copies) - 1)))
        source_pool.release(source)
        (target_pool.commit if ok else target_pool.abort)(target)

    @rule(data=st.data(), down=st.booleans())
    def evict(self, data, down):
        pool = self.device if down else self.host
        holding = self.pick(data, pool, READABLE)
        if holding is not None:
            pool.evict(holding)

    @invariant()
    def consistent(self):
        self.device.check()
        self.host.check()
        for _, source, _, target in self.copies:
            assert source.state is REFERENCED
            assert target.state is COPYING


TwoTiers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTwoTiers = TwoTiers.TestCase
