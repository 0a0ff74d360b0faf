"""Quantities: what is read, and what is suggested when the unit is not ours."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.units import parse_bytes, parse_count, parse_duration_ns, parse_rate


@pytest.mark.parametrize(("parse", "text", "value"), [
    (parse_duration_ns, "60s", 60 * 10**9), (parse_duration_ns, " 1.5 ms", 1_500_000),
    (parse_duration_ns, "2m", 12 * 10**10),
    (parse_rate, "8", 8.0), (parse_rate, "480/m", 8.0), (parse_count, "64k", 64_000), (parse_count, "64Ki", 65_536),
    (parse_bytes, "2GiB", 2**31),
])
def test_read(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text", "meant"), [
    (parse_duration_ns, "60", "60s"), (parse_duration_ns, "60sec", "60s"), (parse_duration_ns, "5 minutes", "5m"),
    (parse_duration_ns, "60S", "60s"), (parse_rate, "8s", "8/s"), (parse_rate, "8/sec", "8/s"),
    (parse_rate, "8qps", "8/s"),
    (parse_count, "64KB", "64k"), (parse_count, "64ki", "64Ki"), (parse_bytes, "2G", "2GB"),
])
def test_suggested(parse, text, meant):
    with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
        parse(text)
    parse(meant)


@given(st.text(max_size=12))
def test_any_text_gives_a_number_or_a_usage_error(text):
    for parse in (parse_duration_ns, parse_rate, parse_count, parse_bytes):
        with contextlib.suppress(UsageError):
            assert parse(text) >= 0
