"""Quantities as people write them: `60s`, `250ms`, `8/s`, `64k`, `2GiB`, `1.2`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hicache_bench.errors import UsageError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ/]*)\s*")
_TIME_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9,
            "h": 3600 * 10**9}
_COUNT = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "m": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20,
          "Gi": 2**30}
_BYTES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20,
          "GiB": 2**30, "TiB": 2**40}
_PER_S = {"/s": 1.0, "": 1.0, "/m": 1 / 60, "/min": 1 / 60, "/h": 1 / 3600, "rps": 1.0}


_MEANT: dict[str, dict[str, str]] = {
    "duration": {"": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "msec": "ms", "mins": "m",
                 "minute": "m", "minutes": "m", "hr": "h", "hour": "h", "hours": "h", "/s": "s", "/m": "m"},
    "rate": {"s": "/s", "/sec": "/s", "/second": "/s", "qps": "/s", "req/s": "/s", "r/s": "/s", "hz": "/s", "m": "/m",
             "rpm": "/m", "/minute": "/m", "/hour": "/h", "h": "/h"},
    "count": {"kb": "k", "kib": "Ki", "mb": "M", "mib": "Mi", "gb": "G", "gib": "Gi", "b": ""},
    "size": {"k": "kB", "m": "MB", "g": "GB", "ki": "KiB", "mi": "MiB", "gi": "GiB", "t": "TiB", "tb": "TiB"},
}
"""What people write (lower case) instead of a unit of ours."""


def _parse(text: str, table: Mapping[str, float], what: str, example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match.group(2) not in table:
        meant = None if match is None else _meant(match.group(2), table, _MEANT[what])
        guess = "" if match is None or meant is None else f"; did you mean {match.group(1)}{meant}?"
        allowed = " ".join(unit for unit in table if unit)
        raise UsageError(f"{text!r} is not a {what}{guess or f'; write it like {example}'} (units: {allowed})")
    return float(match.group(1)) * table[match.group(2)]


def _meant(unit: str, table: Mapping[str, float], words: Mapping[str, str]) -> str | None:
    """The unit of `table` that `unit` stands for, if one comes to mind."""
    lower = unit.lower()
    return words.get(lower, next((known for known in table if known.lower() == lower), None))


def parse_duration_ns(text: str) -> int:
    """`"60s"` → 60_000_000_000. A bare number is refused: a duration has a unit."""
    return round(_parse(text, _TIME_NS, "duration", "60s, 250ms or 2m"))


def parse_rate(text: str) -> float:
    """`"8/s"`, `"8"` or `"480/m"` → requests per second (8.0)."""
    return _parse(text, _PER_S, "rate", "8/s or 480/m")


def parse_count(text: str) -> int:
    """`"64k"` → 64000, `"64Ki"` → 65536."""
    return round(_parse(text, _COUNT, "count", "1000, 64k or 64Ki"))


def parse_bytes(text: str) -> int:
    """`"2GiB"` → 2147483648."""
    return round(_parse(text, _BYTES, "size", "64MB or 2GiB"))


def format_ns(value: float | None) -> str:
    """A duration for people, three significant digits: `1.23 ms`; `-` when absent."""
    if value is None:
        return "-"
    for limit, scale, unit in ((10**3, 1, "ns"), (10**6, 10**3, "µs"), (10**9, 10**6, "ms")):
        if abs(value) < limit:
            return f"{value / scale:.3g} {unit}"
    seconds = value / 10**9
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def format_count(value: float | None) -> str:
    """A count for people with thousands separators; `-` when absent."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def format_bytes(value: float | None) -> str:
    """A size for people in binary units; `-` when absent."""
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def format_percent(value: float | None) -> str:
    """A ratio in 0..1 as a percentage with one decimal; `-` when absent."""
    return "-" if value is None else f"{100 * value:.1f}%"
