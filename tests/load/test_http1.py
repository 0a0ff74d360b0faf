"""Answers read from any split of their bytes; request heads."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.load.http1 import MAX_FIELD_BYTES, AnswerReader, request_head, request_prefix
from hicache_bench.load.transport import DEFAULT_FIELDS, request_fields
from tests.load.answers import BODY, CASES, CHUNKED, LENGTH, TE, plain
from tests.scripted import END, chunk, head


def read(pieces) -> tuple:
    reader = AnswerReader()
    body = b""
    for piece in pieces:
        body += reader.feed(piece)
        if reader.fault is not None or reader.complete:
            break
    ended = reader.end() if reader.fault is None else False
    # The words of a fault depend on how far a line had come; that there is one does not.
    return body, reader.status, reader.content_type, ended, reader.fault is None, reader.reusable


def raw(name: str) -> bytes:
    return b"".join(step for step in CASES[name] if isinstance(step, bytes))


def pieces_of(data: bytes, cuts) -> list[bytes]:
    cuts = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(cuts)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 10**6), max_size=12))
def test_every_split_reads_alike(name, cuts):
    data = raw(name)
    assert read(pieces_of(data, cuts)) == read([data])


@pytest.mark.parametrize("name", ["one write", "length", "trailers", "gzip in chunks", "100 continue"])
def test_byte_by_byte(name):
    data = raw(name)
    body, status, _, ended, good, reusable = read([data[i:i + 1] for i in range(len(data))])
    assert (body, status, ended, good, reusable) == (BODY, 200, True, True, True)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.booleans())
def test_no_bytes_raise(data, cuts, with_head):
    read(pieces_of(head() + data if with_head else data, cuts))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=100), max_size=12), st.randoms(use_true_random=False))
def test_any_chunked_body_comes_out_whole(parts, rng: random.Random):
    data = head() + b"".join(map(chunk, parts)) + END
    found = read(pieces_of(data, [rng.randrange(len(data)) for _ in range(6)]))
    assert found[0] == b"".join(parts)
    assert found[3:] == (True, True, True)


def test_one_reader_for_many_answers():
    reader = AnswerReader()
    for name in ("one write", "length", "gzip", "error 400", "one write"):
        reader.begin()
        reader.feed(raw(name))
        assert reader.complete
        assert reader.reusable
        assert reader.status == (400 if name == "error 400" else 200)


def test_bytes_after_the_answer_keep_it_and_end_the_connection():
    for rest in (b"garbage", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
        reader = AnswerReader()
        assert reader.feed(head() + CHUNKED + rest) == BODY
        assert reader.complete
        assert reader.fault is None
        assert not reader.reusable


def test_an_endless_line_is_refused_while_it_grows():
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(3 * MAX_FIELD_BYTES // 1000):
        reader.feed(b"a" * 1000)
        if reader.fault is not None:
            break
    assert reader.fault is not None
    assert "longer" in reader.fault


def test_body_before_a_fault_is_kept():
    reader = AnswerReader()
    assert reader.feed(head() + chunk(b"good") + b"zz\r\n") == b"good"
    assert reader.fault is not None
    assert not reader.end()


def test_closing_connections_are_not_reused():
    for data in (plain(TE, "Connection: close") + CHUNKED, plain(LENGTH, version="1.0") + BODY):
        reader = AnswerReader()
        reader.feed(data)
        assert reader.complete
        assert not reader.reusable


def test_request_head():
    prefix = request_prefix("/v1/x", "h:1", [("A", "b"), ("A", "c")])
    assert request_head(prefix, 12) == b"POST /v1/x HTTP/1.1\r\nHost: h:1\r\nA: b\r\nA: c\r\nContent-Length: 12\r\n\r\n"


def test_fields_given_win_over_defaults():
    fields = request_fields({"user-agent": "mine", "X": "1"})
    assert [value for name, value in fields if name.lower() == "user-agent"] == ["mine"]
    assert {name for name, _ in fields} >= set(DEFAULT_FIELDS) - {"User-Agent"}


@pytest.mark.parametrize("field", [("Content-Length", "3"), ("transfer-encoding", "chunked"), ("X", "a\r\nY: b"),
                                   ("X\n", "a"), ("", "a"), ("X Y", "a")])
def test_fields_that_break_the_framing_are_refused(field):
    with pytest.raises(UsageError, match="header"):
        request_fields(dict([field]))
