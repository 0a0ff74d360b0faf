"""Page keys of segments against the tokens they stand for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.records import Message, Prompt, Segment
from hicache_bench.simulate.keys import Chain, add_prompt, segment_keys

SEGMENTS = st.lists(st.builds(Segment, st.sampled_from("abc"), st.integers(1, 20)), max_size=6)


def tokens(segments: list[Segment]) -> list[tuple[str, int]]:
    """What the segments hold: token i of the stream `key`."""
    return [(segment.key, offset) for segment in segments for offset in range(segment.n_tokens)]


def shared(left: list[object], right: list[object]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@given(SEGMENTS, SEGMENTS, st.integers(1, 9))
def test_two_prompts_share_keys_exactly_as_far_as_their_tokens(left, right, page):
    keys = [list(segment_keys(one, page)) for one in (left, right)]
    assert [len(one) for one in keys] == [len(tokens(one)) // page for one in (left, right)]
    assert shared(*keys) == shared(tokens(left), tokens(right)) // page


@given(SEGMENTS, SEGMENTS, st.integers(1, 9))
def test_a_fork_grows_on_its_own(first, more, page):
    chain = Chain(page)
    for segment in first:
        chain.add(segment.key, segment.n_tokens)
    fork = chain.fork()
    for segment in more:
        fork.add(segment.key, segment.n_tokens)
    assert fork.keys == segment_keys([*first, *more], page)
    assert chain.keys == segment_keys(first, page)
    assert fork.n_tokens == len(tokens([*first, *more]))


def test_a_page_across_two_segments_is_keyed_by_both():
    base, same, other = (segment_keys([Segment("a", 6), Segment(key, 6)], 4) for key in ("b", "b", "c"))
    assert base == same
    assert base[0] == other[0]
    assert base[1] != other[1]
    assert segment_keys([Segment("a", 6), Segment("b", 2)], 4) == base[:2]


def test_literal_text_shares_its_beginning():
    keys = []
    for question in ("why?", "how?"):
        chain = Chain(4)
        add_prompt(chain, Prompt(messages=(Message("system", "be brief " * 20), Message("user", question))))
        keys.append(chain.keys)
    assert 8 < shared(*keys) <= len(keys[0])
    chain = Chain(4)
    add_prompt(chain, Prompt(text="x" * 17))
    assert (chain.n_tokens, len(chain.keys)) == (5, 1)
