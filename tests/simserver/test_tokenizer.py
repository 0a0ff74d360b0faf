import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.simserver.tokenizer import OUTPUT_IDS, VOCAB_SIZE, decode, encode
from hicache_bench.workload.english import WORDS


@settings(max_examples=60, deadline=None)
@given(st.text() | st.from_regex(r"( ?[a-z⟨⟩0-9]+)*", fullmatch=True))
def test_every_text_comes_back(text):
    ids = encode(text)
    assert decode(ids) == text.encode("utf-8", "replace").decode()
    assert all(token >= 0 for token in ids)


@given(st.lists(st.sampled_from(OUTPUT_IDS), min_size=1), st.sampled_from(["", "the", "x\n", "温 "]))
def test_answers_read_back_as_the_same_ids(ids, before):
    assert encode(before + decode(ids)) == encode(before) + ids


@given(st.lists(st.integers(VOCAB_SIZE, 2**32 - 1), min_size=1, max_size=8))
def test_unknown_ids_are_spelled_and_come_back(ids):
    assert encode(decode(ids)) == ids


def test_known_words_are_one_token():
    long = [word for word in WORDS if len(word) > 1]
    assert all(len(encode(word)) == 1 for word in long)
    assert len(encode("温")) == 3
    assert encode("") == []


@pytest.mark.parametrize("text", ["⟨5⟩", "⟨99999999999⟩", "⟨007777⟩", "⟨⟩", "⟨x⟩", "a⟨", "\ud800"])
def test_lookalikes_of_the_spelling_are_plain_text(text):
    assert decode(encode(text)) == text.encode("utf-8", "replace").decode()
