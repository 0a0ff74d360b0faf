"""File descriptors: raised up front, or refused with the number to set (bug D18)."""

from __future__ import annotations

import resource

from hicache_bench.errors import UsageError

HEADROOM = 64
"""Descriptors the process needs beside its load connections: files, pipes, metrics, the event loop."""


def ensure_descriptors(connections: int) -> int:
    """Make room for `connections` sockets; returns the soft limit now in force.

    Raises UsageError when even the hard limit is too small: thousands of client-side failures would
    otherwise look like a failing server.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = connections + HEADROOM
    if soft != resource.RLIM_INFINITY and (soft < need or soft < hard):
        wanted = need if hard == resource.RLIM_INFINITY else hard
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            pass
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < need:
        raise UsageError(
            f"{connections} connections need {need} file descriptors but this process may open {soft} "
            f"(hard limit {hard}); raise it with `ulimit -n {need}` or lower the concurrency or limit"
        )
    return soft
