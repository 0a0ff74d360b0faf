"""`hicache-bench serve`: the built-in simulated server in the foreground."""

from __future__ import annotations

from hicache_bench.simserver.__main__ import command

__all__ = ["command"]
