"""Token accounting: running totals, unknown chunks, the spread of a final figure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.wire.answer import Answer, spread


def answered(*events: tuple[int | None, bool]) -> Answer:
    answer = Answer()
    for at, (said, seen) in enumerate(events):
        answer.add(at, said, seen, 1 if seen else 0)
    return answer


def test_running_totals_give_the_difference():
    answer = answered((1, True), (5, True), (5, True), (9, False))
    assert (answer.chunk_ns, answer.chunk_tokens) == ([0, 1, 3], [1, 4, 4])
    assert answer.total(True) == (9, "server")


def test_a_total_that_falls_counts_nothing_twice():
    answer = answered((4, True), (2, True), (5, True))
    assert answer.chunk_tokens == [4, 1]
    assert answer.total(True) == (5, "server")


def test_without_figures_one_token_a_chunk():
    answer = answered((None, True), (None, False), (None, True))
    assert (answer.chunk_ns, answer.chunk_tokens) == ([0, 2], [1, 1])
    assert answer.total(True) == (2, "estimated")
    assert answer.total(False) == (None, None)


def test_a_late_figure_is_spread_over_the_chunks_it_covers():
    answer = answered((2, True), (None, True), (None, True), (8, True))
    assert answer.chunk_tokens == [2, 2, 2, 2]
    assert answer.total(True) == (8, "server")


def test_chunks_after_the_last_figure_make_it_an_estimate():
    answer = answered((3, True), (None, True))
    assert answer.total(True) == (4, "estimated")


def test_fewer_tokens_than_chunks_leaves_the_chunks_alone():
    answer = answered((None, True), (None, True), (None, True))
    answer.settle(2)
    assert answer.chunk_tokens == [1, 1, 1]
    assert answer.total(True) == (2, "server")


def test_zero_beside_visible_output_is_no_figure():
    answer = answered((None, True), (None, True))
    answer.settle(0)
    assert answer.total(True) == (2, "estimated")
    assert answered((0, False)).total(True) == (0, "server")


def test_hidden_end_token_goes_to_the_last_chunk():
    answer = answered((1, True), (2, True))
    answer.settle(3)
    assert answer.chunk_tokens == [1, 2]


def test_spread_follows_the_characters():
    assert spread(13, [1, 4, 4, 4]) == [1, 4, 4, 4]
    assert spread(9, [5] * 8) == [1] * 7 + [2]
    assert spread(6, [0, 0, 0]) == [2, 2, 2]
    assert spread(2, [1, 1, 1]) is None
    assert spread(2, []) is None


@given(st.integers(0, 5000), st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_spread_sums_up_and_leaves_no_chunk_empty(total: int, chars: list[int]):
    counts = spread(total, chars)
    if counts is None:
        assert total < len(chars)
    else:
        assert sum(counts) == total
        assert min(counts) >= 1
        assert len(counts) == len(chars)


def test_digest_prefers_the_ids_and_knows_hidden_text():
    assert Answer().digest() is None
    ids, text, hidden = Answer(), Answer(), Answer()
    ids.output_ids, ids.text = [1, 2], "a"
    text.text = hidden.text = "a"
    hidden.hidden = ["thought"]
    digests = {ids.digest(), text.digest(), hidden.digest()}
    assert len(digests) == 3
    assert all(digest is not None and len(digest) == 16 for digest in digests)
