"""Where the public traces lie, and small look-alikes of our own making."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hicache_bench.workload.spec import parse_spec

PUBLIC = Path(__file__).parents[3] / "shared" / "data"


def public(name):
    path = PUBLIC / name
    if not path.exists():
        pytest.skip(f"the public trace {name} is not here")
    return path


def stream(format_, path, **changed):
    return parse_spec({"name": "w", "stream": [
        {"name": "t", "kind": "trace", "format": format_, "path": str(path), **changed}
    ]}).stream[0]


def write_mooncake(path, rows):
    path.write_text("".join(json.dumps(dict(zip(
        ("timestamp", "input_length", "output_length", "hash_ids"), row, strict=True))) + "\n" for row in rows))
    return path
