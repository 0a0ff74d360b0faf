"""Ill-typed values are absent, never an exception."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hicache_bench.wire.values import (
    BadJson,
    Tiers,
    count,
    decode_json,
    error_message,
    read_tiers,
    seconds,
    small_scalars,
    sum_of_tiers,
    token_ids,
)


@pytest.mark.parametrize(("value", "expected"), [
    (0, 0), (7, 7), (-1, None), (True, None), (7.0, None), ("7", None), (None, None), (2**31 - 1, 2**31 - 1),
    (2**31, None), ([], None), (math.nan, None)])
def test_count(value: Any, expected: int | None):
    assert count(value) == expected


@pytest.mark.parametrize(("value", "expected"), [
    (0, 0.0), (0.25, 0.25), (-0.1, None), (math.nan, None), (math.inf, None), (10**400, None), (True, None),
    ("1", None), (None, None)])
def test_seconds(value: Any, expected: float | None):
    assert seconds(value) == expected


def test_token_ids():
    assert token_ids([1, 0]) == [1, 0]
    assert token_ids([]) == []
    assert token_ids([1, -1]) is None
    assert token_ids([[1]]) is None
    assert token_ids("12") is None


@pytest.mark.parametrize(("details", "cached", "expected"), [
    ({"device": 5, "host": 6}, 11, Tiers(5, 6)),
    ({"device": 5, "host": 6, "storage": 7, "storage_backend": "HiCacheFile"}, 18, Tiers(5, 6, 7, "HiCacheFile")),
    ({"device": 0, "host": 0, "storage_MooncakeStore": 7}, 7, Tiers(0, 0, 7, "MooncakeStore")),
    ({"device": 0, "host": 0, "storage_A": 7, "storage_B": 1}, 8, Tiers(0, 0, 8, "A")),
    ({"device": -1, "host": "6", "storage": 1.5}, 11, Tiers()),
    ({}, 0, Tiers()),
    (None, 0, Tiers(0, 0)),
    (None, 512, Tiers()),
    (None, None, Tiers()),
    ("text", 512, Tiers()),
])
def test_tiers(details: Any, cached: int | None, expected: Tiers):
    assert read_tiers(details, cached) == expected


def test_sum_of_tiers():
    assert sum_of_tiers(Tiers(5, 6)) == 11
    assert sum_of_tiers(Tiers(5, 6, 7)) == 18
    assert sum_of_tiers(Tiers()) is None


def test_small_scalars_keep_what_a_row_can_carry():
    given = {"a": 1, "b": 0.5, "c": "x", "d": True, "e": None, "f": math.nan, "g": [1], "h": {}, "i": 2**70,
             "j": "x" * 200, "known": 1, "k" * 200: 1}
    assert small_scalars(given, frozenset({"known"})) == {"a": 1, "b": 0.5, "c": "x", "d": True}
    assert len(small_scalars({str(i): i for i in range(1000)}, frozenset())) == 32


@pytest.mark.parametrize(("answer", "expected"), [
    ({"error": "boom"}, "boom"),
    ({"error": {"message": "boom", "code": 400}}, "boom"),
    ({"error": {"code": 7}}, '{"code": 7}'),
    ({"error": {"message": ["a"]}}, '["a"]'),
    ({"error": 5}, "5"),
    ({"object": "error", "message": "boom"}, "boom"),
    ({"object": "error"}, "error"),
    ({"detail": "Not Found"}, "Not Found"),
    ({"detail": [{"msg": "x"}]}, '[{"msg": "x"}]'),
    ([{"error": "boom"}], "boom"),
    ({"error": None, "choices": []}, None),
    ({"error": ""}, None),
    ({"detail": "x", "choices": []}, None),
    ({"text": "error"}, None),
    ([], None), (None, None), ("error", None), (5, None),
])
def test_error_message(answer: Any, expected: str | None):
    assert error_message(answer) == expected


def test_error_message_of_any_size_and_depth():
    assert error_message({"error": "x" * 10**6}) == "x" * 500
    for depth in (100, 900, 990, 2000):
        try:
            nested = decode_json(b'{"error":' + b"[" * depth + b"1" + b"]" * depth + b"}")
        except BadJson:
            continue
        assert error_message(nested)


@pytest.mark.parametrize(("raw", "expected"), [
    (b'{"a": NaN, "b": 1}', {"a": pytest.approx(math.nan, nan_ok=True), "b": 1}),
    (b'{"a": Infinity}', {"a": math.inf}),
    (b'{"a": 1e999}', {"a": math.inf}),
    (b'"\\ud800x"', "?x"),
    ('{"a": "温🍵"}'.encode(), {"a": "温🍵"}),
])
def test_decode_json_takes_what_python_servers_write(raw: bytes, expected: Any):
    assert decode_json(raw) == expected


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'"\xff"', b"{'a': 1}", b"[" * 100_000, b"1" * 5000,
                                 '{"a": 1}'.encode("utf-16")])
def test_decode_json_refuses(raw: bytes):
    with pytest.raises(BadJson):
        decode_json(raw)
