"""Bug D18: descriptors are raised, or refused with the number to set, before any load."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from hicache_bench.load.limits import ensure_descriptors
from hicache_bench.errors import UsageError
try:
    print("ok", ensure_descriptors({need}))
except UsageError as error:
    print("refused", error)
"""


def child(soft: int, hard: int, need: int) -> str:
    code = CODE.format(soft=soft, hard=hard, need=need)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_d18_refused_when_the_hard_limit_is_too_small():
    out = child(64, 64, 200)
    assert out.startswith("refused")
    assert "ulimit -n 264" in out


def test_d18_raised_within_the_hard_limit():
    assert child(64, 1024, 200) == "ok 1024\n"


def test_enough_is_left_alone():
    assert child(1024, 1024, 10) == "ok 1024\n"
