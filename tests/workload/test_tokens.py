"""From keys to tokens and text."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.records import ClosedLoop, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.workload.english import EMPTY, WORDS, word_matrix
from hicache_bench.workload.tokens import TokenSpace, check_unique, load_tokenizer

IDS = [[3 * i, 3 * i + 1, 3 * i + 2][: 1 + (i % 3 == 0) + (i % 7 == 0)] for i in range(len(WORDS))]


def english(nonce="run"):
    return TokenSpace.english(IDS, nonce)


def spaces():
    return [english(), TokenSpace.random_ids(100, 30000, "run")]


def plan_of(keys, n=64):
    sessions = tuple(
        Session(i, "s", "unique", (Turn(Prompt((Segment(key, n),), n_tokens=n), 1),)) for i, key in enumerate(keys)
    )
    return Plan("p", 0, sessions, np.zeros(len(sessions), dtype=np.int64), ClosedLoop(1), Stop(), "")


def test_words_are_unique_and_joinable():
    assert len(set(WORDS)) == len(WORDS)
    assert len(WORDS) > 1000
    assert all(word[0] == " " or word in ".,;:?!" for word in WORDS)


@pytest.mark.parametrize("space", spaces(), ids=["english", "random"])
@settings(max_examples=20, deadline=None)
@given(key=st.text(max_size=8), n=st.integers(0, 700), more=st.integers(0, 700))
def test_exact_length_and_prefix_stable(space, key, n, more):
    short, long = space.tokens(Segment(key, n)), space.tokens(Segment(key, n + more))
    assert short.dtype == np.uint32
    assert len(short) == n
    assert len(long) == n + more
    assert np.array_equal(short, long[:n])


def test_random_ids_stay_in_range_and_fill_it():
    made = TokenSpace.random_ids(100, 104, "r").tokens(Segment("k", 4000))
    assert np.bincount(made, minlength=104)[100:].min() > 900
    assert set(made.tolist()) == {100, 101, 102, 103}


def test_same_content_in_another_process():
    """hash() differs between processes; SHAKE does not. The digest also pins the text of this version."""
    code = (
        "from tests.workload.test_tokens import english\n"
        "from hicache_bench.records import Segment\n"
        "import hashlib; print(hashlib.sha256(english().tokens(Segment('a', 500)).tobytes()).hexdigest())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == hashlib.sha256(english().tokens(Segment("a", 500)).tobytes()).hexdigest()


def test_english_does_not_repeat():
    """A paragraph repeated makes windows that are not unique (seed script); here no 16 tokens come twice."""
    made = english().tokens(Segment("k", 20_000))
    windows = np.lib.stride_tricks.sliding_window_view(made, 16)
    assert len(np.unique(windows, axis=0)) == len(windows)


def test_text_reads_as_sentences_and_matches_the_tokens():
    space = english()
    prompt = Prompt((Segment("k", 200),))
    text = space.text(prompt)
    assert text.startswith(" ")
    assert 5 <= sum(text.count(mark) for mark in ".?!") <= 40
    words = [i for i in word_matrix(b"run\0k\x000", 60).ravel().tolist() if i != EMPTY]
    ids = [token for i in words for token in IDS[i]]
    assert space.prompt_ids(prompt).tolist() == ids[:200]
    shown = 0
    while "".join(WORDS[i] for i in words[:shown]) != text:
        shown += 1
    assert 200 <= sum(len(IDS[i]) for i in words[:shown]) < 203


def test_text_shares_prefixes():
    space = english()
    shared = Segment("g", 100)
    a = space.text(Prompt((shared, Segment("a", 20))))
    b = space.text(Prompt((shared, Segment("b", 20))))
    common = space.text(Prompt((shared,)))
    assert a.startswith(common)
    assert b.startswith(common)
    assert a != b


def test_two_nonces_share_no_first_page():
    for make in (english, lambda nonce: TokenSpace.random_ids(100, 30000, nonce)):
        first, second = make("one"), make("two")
        heads = [{space.tokens(Segment(f"k{i}", 16)).tobytes() for i in range(300)} for space in (first, second)]
        assert not heads[0] & heads[1]
        assert make("one").tokens(Segment("k", 50)).tolist() == first.tokens(Segment("k", 50)).tolist()


def test_random_space_has_no_text_and_literal_prompts_no_ids():
    space = TokenSpace.random_ids(0, 10, "r")
    with pytest.raises(UsageError, match="no text"):
        space.text(Prompt((Segment("a", 3),)))
    with pytest.raises(UsageError, match="literal text"):
        space.prompt_ids(Prompt(text="hello"))
    assert english().text(Prompt(text="hello")) == "hello"


def test_bad_tokenizations_are_refused():
    with pytest.raises(UsageError, match="1 of"):
        TokenSpace.english([[1]], "n")
    with pytest.raises(UsageError, match="no tokens"):
        TokenSpace.english([[], *IDS[1:]], "n")
    with pytest.raises(UsageError, match="random ids"):
        TokenSpace.random_ids(5, 5, "n")


def test_special_first_token_is_removed():
    marked = TokenSpace.english([[999_999, *word] for word in IDS], "run")
    assert marked.tokens(Segment("k", 100)).tolist() == english().tokens(Segment("k", 100)).tolist()


def test_check_unique_counts_roots_once():
    assert check_unique(english(), plan_of(["a", "b", "a", "c"]), 64) == 3


def test_check_unique_moves_collisions_the_same_way_each_time():
    """Eight ids in 16 places collide by chance at some 100,000 keys; two ids at 300."""
    keys = [f"k{i}" for i in range(600)]
    made = []
    for _ in range(2):
        space = TokenSpace.random_ids(0, 2, "r")
        before = [space.tokens(Segment(key, 16)).tobytes() for key in keys]
        assert len(set(before)) < len(keys)
        assert check_unique(space, plan_of(keys), 1) == len(keys)
        made.append([space.tokens(Segment(key, 16)).tobytes() for key in keys])
        assert len(set(made[-1])) == len(keys)
    assert made[0] == made[1]


def test_check_unique_gives_up_on_a_tiny_vocabulary():
    with pytest.raises(UsageError, match="widen"):
        check_unique(TokenSpace.random_ids(7, 8, "r"), plan_of(["a", "b"]), 1)


def test_local_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path)(["hello world", " world"]) == [[1, 2], [2]]
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad.json: not readable"):
        load_tokenizer(tmp_path / "bad.json")


def test_local_tokenizer_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install"):
        load_tokenizer(tmp_path)
