"""wire.sse against a second, slow reading of the same grammar."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.wire.sse import LineTooLong, SseEvent, SseParser


def parse(*reads: bytes, limit: int = 2**20) -> list[SseEvent]:
    parser = SseParser(limit)
    events = [event for data in reads for event in parser.feed(data)]
    return events + parser.close()


def slowly(raw: bytes) -> list[SseEvent]:
    """The grammar line by line on the whole text."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\r|\n", raw)[:-1]
    events, data, name = [], [], b""
    for line in lines:
        if line == b"":
            if data:
                events.append(SseEvent(b"\n".join(data), name.decode("utf-8", "replace")))
            data, name = [], b""
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return events


@pytest.mark.parametrize(("raw", "expected"), [
    (b"data: a\n\n", [(b"a", "")]),
    (b"data:a\n\n", [(b"a", "")]),
    (b"data:  a\n\n", [(b" a", "")]),
    (b"data: a\ndata: b\n\n", [(b"a\nb", "")]),
    (b"data: a\r\n\r\ndata: b\r\r", [(b"a", ""), (b"b", "")]),
    (b"data: a\r\n\ndata: b\r\n\n", [(b"a", ""), (b"b", "")]),
    (b": ping\n\ndata: a\n\n", [(b"a", "")]),
    (b"event: error\ndata: a\n\ndata: b\n\n", [(b"a", "error"), (b"b", "")]),
    (b"event: error\n\ndata: b\n\n", [(b"b", "")]),
    (b"id: 4\nretry: 3\nsomething\ndata: a\n\n", [(b"a", "")]),
    (b"data\n\n", [(b"", "")]),
    (b"\xef\xbb\xbfdata: a\n\n", [(b"a", "")]),
    ("data: a\u2028b\u0085c\x0bd\n\n".encode(), [("a\u2028b\u0085c\x0bd".encode(), "")]),
    (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [(b"a", ""), (b"b", "")]),
    (b"data: a\n", []),
    (b"database: a\n\n", []),
])
def test_grammar(raw: bytes, expected: list[tuple[bytes, str]]):
    assert parse(raw) == expected
    assert parse(*(raw[i : i + 1] for i in range(len(raw)))) == expected


def test_an_event_cut_between_cr_and_lf_is_one_event():
    assert parse(b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n") == [(b"a", ""), (b"b", "")]
    assert parse(b"data: a\r\n\r", b"", b"\ndata: b\n\n") == [(b"a", ""), (b"b", "")]


def test_unfinished_event_is_dropped_and_told():
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b") == [(b"a", "")]
    assert parser.pending
    assert parser.close() == []
    assert parser.pending
    whole = SseParser()
    whole.feed(b"data: a\n\n\n")
    assert not whole.pending


@pytest.mark.parametrize("reads", [[b"data: ok\n\ndata: 0123456789\n\n"], [b"data: ok\n\n", b"data: 0123", b"456789"],
                                   [b"data: ok\n\ndata: 01234567"], [b"data: ok\n\n", b"data: 0123456\n\n"]])
def test_limit_is_an_own_error_with_the_events_before_it(reads: list[bytes]):
    parser = SseParser(12)
    *first, last = reads
    events = [event for data in first for event in parser.feed(data)]
    with pytest.raises(LineTooLong, match="longer than 12 bytes") as caught:
        parser.feed(last)
    assert events + caught.value.events == [(b"ok", "")]


def test_limit_itself_is_allowed():
    assert parse(b"data: 123456\n\n", limit=12) == [(b"123456", "")]
    assert parse(b"data: 1", b"23456\n", b"\n", limit=12) == [(b"123456", "")]


PIECES = st.lists(
    st.sampled_from([b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"event", b"x", b"\xf0\x9f", b"\xef\xbb\xbf",
                     b"data: y\n\n", b"\xe2\x80\xa8", b"\x00"]) | st.binary(max_size=3),
    max_size=40)


@given(PIECES, st.lists(st.integers(0, 120), max_size=12))
def test_any_split_reads_like_the_grammar(pieces: list[bytes], cuts: list[int]):
    raw = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    assert parse(*(raw[a:b] for a, b in pairwise(edges))) == slowly(raw)


@given(PIECES, st.lists(st.integers(0, 120), max_size=12), st.integers(0, 30))
def test_the_limit_does_not_depend_on_the_split(pieces: list[bytes], cuts: list[int], limit: int):
    raw = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]

    def run(reads: list[bytes]) -> tuple[list[SseEvent], bool]:
        parser, events = SseParser(limit), []
        try:
            for data in reads:
                events += parser.feed(data)
        except LineTooLong as error:
            return events + error.events, True
        return events, False

    assert run([raw]) == run([raw[a:b] for a, b in pairwise(edges)])
