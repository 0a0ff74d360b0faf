"""A sweep as one SVG: what each tier served of every point, and its TTFT. No library, no script, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hicache_bench.simulate.sweep import Point
from hicache_bench.units import format_ns

_COLORS = {"device": "#2a6f97", "host": "#61a5c2", "storage": "#f4a259"}
_WIDTH_BAR, _LEFT, _PANEL, _GAP, _TOP, _LABELS = 34, 70, 220, 46, 54, 150


def sweep_svg(title: str, labels: Sequence[str], points: Sequence[Point]) -> str:
    """Bars of hit ratios (stacked by tier) above TTFT p50 and p99 on a log scale; one column a point."""
    width = _LEFT + len(points) * _WIDTH_BAR + 40
    height = _TOP + 2 * _PANEL + _GAP + _LABELS
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)} (simulated)</text>', *_legend(),
             *_ratios(points), *_latencies(points, _TOP + _PANEL + _GAP), *_names(labels)]
    return "\n".join([*parts, "</svg>", ""])


def _x(column: int) -> float:
    return _LEFT + (column + 0.5) * _WIDTH_BAR


def _legend() -> list[str]:
    found, x = [], _LEFT
    for name, color in [*_COLORS.items(), ("ttft p50", "#333333"), ("ttft p99", "#c1121f")]:
        found += [f'<rect x="{x}" y="28" width="10" height="10" fill="{color}"/>',
                  f'<text x="{x + 14}" y="37">{name}</text>']
        x += 80
    return found


def _ratios(points: Sequence[Point]) -> list[str]:
    found = []
    for step in range(0, 101, 20):
        y = _TOP + _PANEL * (1 - step / 100)
        found += [f'<line x1="{_LEFT}" x2="{_x(len(points))}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>',
                  f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{step}%</text>']
    for column, point in enumerate(points):
        base = 0.0
        for tier, color in _COLORS.items():
            share = getattr(point, f"{tier}_ratio") or 0.0
            y, high = _TOP + _PANEL * (1 - base - share), _PANEL * share
            found.append(f'<rect x="{_x(column) - 11:.1f}" y="{y:.1f}" width="22" height="{high:.1f}" fill="{color}">'
                         f'<title>{tier} {100 * share:.1f}%</title></rect>')
            base += share
    return found


def _latencies(points: Sequence[Point], top: int) -> list[str]:
    known = [value for point in points for value in (point.ttft_p50_ns, point.ttft_p99_ns) if value]
    if not known:
        return []
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)) + 1e-9)
    span = max(high - low, 1)

    def y(value: float) -> float:
        return top + _PANEL * (1 - (math.log10(value) - low) / span)

    found = []
    for decade in range(low, low + span + 1):
        at = y(10.0**decade)
        found += [f'<line x1="{_LEFT}" x2="{_x(len(points))}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>',
                  f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{format_ns(10**decade)}</text>']
    for name, color in (("ttft_p50_ns", "#333333"), ("ttft_p99_ns", "#c1121f")):
        for column, point in enumerate(points):
            value = getattr(point, name)
            if value:
                found.append(f'<circle cx="{_x(column):.1f}" cy="{y(value):.1f}" r="4" fill="{color}">'
                             f'<title>{name[5:8]} {format_ns(value)}</title></circle>')
    return found


def _names(labels: Sequence[str]) -> list[str]:
    y = _TOP + 2 * _PANEL + _GAP + 14
    return [f'<text transform="translate({_x(column) + 4:.1f},{y}) rotate(60)">{escape(label)}</text>'
            for column, label in enumerate(labels)]
