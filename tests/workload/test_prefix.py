"""The unbounded prefix cache, against one that keeps every token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.records import Prompt, Segment, Turn
from hicache_bench.workload.prefix import PrefixIndex, ideal_cached, visit_session


def test_matching_leaves_one_token_and_floors_to_pages():
    """3,200 tokens on pages of 128 report 3,072; 3,201 report 3,200 (SGLang issue 27206)."""
    for tokens, cached in ((3200, 3072), (3201, 3200), (3328, 3200), (3329, 3328), (256, 128), (257, 256)):
        index = PrefixIndex(128)
        index.visit((Segment("a", tokens),), 1)
        assert ideal_cached(index.visit((Segment("a", tokens),), 1), 128) == cached


def test_first_time_hits_nothing():
    visit = PrefixIndex(16).visit((Segment("a", 100), Segment("b", 10)), 5)
    assert visit == (110, 0, 114, 7, 0)  # 110 + 5 - 1 = 114 tokens, 7 whole pages


def test_content_after_a_shorter_segment_is_other_content():
    index = PrefixIndex(1)
    index.visit((Segment("a", 100), Segment("b", 10)), 1)
    assert index.visit((Segment("a", 60), Segment("b", 10)), 1).matched == 60
    assert index.visit((Segment("a", 100), Segment("b", 4)), 1).matched == 104
    assert index.visit((Segment("b", 10),), 1).matched == 0


def test_pages_are_shared_once():
    index = PrefixIndex(10)
    prompt = (Segment("a", 35), Segment("x", 5))
    assert index.visit(prompt, 1).new_pages == 4
    assert index.visit((Segment("a", 35), Segment("y", 5)), 1)[2:] == (5, 1, 3)
    assert index.visit((Segment("a", 35), Segment("z", 5)), 1)[2:] == (5, 1, 0)


def test_live_history_continues_with_the_output_but_its_last_token():
    turns = (
        Turn(Prompt((Segment("u0", 10),), n_tokens=10), 6),
        Turn(Prompt((Segment("u1", 3),), n_tokens=3), 2, after=(0,), live=True),
        Turn(Prompt((Segment("u2", 3),), n_tokens=3), 2, after=(1,), live=True),
    )
    visits = visit_session(PrefixIndex(1), 0, turns)
    assert [(visit.prompt_tokens, visit.matched) for visit in visits] == [(10, 0), (19, 15), (24, 20)]


def test_scripted_history_does_not_hit_the_servers_own_output():
    script = Segment("a0", 6)
    turns = (
        Turn(Prompt((Segment("u0", 10),), n_tokens=10), 6),
        Turn(Prompt((Segment("u0", 10), script, Segment("u1", 3)), n_tokens=19), 2, after=(0,)),
    )
    assert visit_session(PrefixIndex(1), 0, turns)[1].matched == 10


def test_literal_prompts_cannot_be_counted():
    turns = (Turn(Prompt(text="x"), 3), Turn(Prompt((Segment("a", 3),)), 3, after=(0,), live=True))
    assert visit_session(PrefixIndex(1), 0, turns) == [None, None]


_prompt = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=4)


def _tokens(prompt):
    """Token k of a segment depends on its path, key and k: equal content exactly where the index says so."""
    path, made = (), []
    for key, n in prompt:
        made += [(path, key, k) for k in range(n)]
        path = (*path, (key, n))
    return made


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_prompt, st.integers(1, 5)), max_size=12), st.sampled_from([1, 3, 4, 16]))
def test_agrees_with_a_cache_of_every_token(requests, page):
    index, cache, reused = PrefixIndex(page), set(), set()
    pages, shared = set(), set()
    total_tokens = total_pages = total_shared = 0
    for number, (prompt, output) in enumerate(requests):
        tokens = _tokens(prompt)
        visit = index.visit([Segment(*part) for part in prompt], output)
        matched = 0
        while matched < len(tokens) and tuple(tokens[: matched + 1]) in cache:
            matched += 1
        assert visit.matched == matched
        assert visit.prompt_tokens == len(tokens)
        shared.update(tuple(tokens[:end]) for end in range(page, matched + 1, page))
        whole = tokens + [("out", number, k) for k in range(output - 1)]
        cache.update(tuple(whole[:end]) for end in range(1, len(whole) + 1))
        pages.update(tuple(whole[:end]) for end in range(page, len(whole) + 1, page))
        reused.update(tuple(tokens[:end]) for end in range(1, matched + 1))
        total_tokens, total_pages = total_tokens + visit.new_tokens, total_pages + visit.new_pages
        total_shared += visit.reused_pages
    assert (total_tokens, total_pages, total_shared) == (len(cache), len(pages), len(shared))
