"""Recorded requests with their recorded times and shared prefixes. Copy this file and edit it.

    locust -f locustfiles/trace_replay.py --host http://127.0.0.1:30000 --headless --trace conversation_trace.jsonl

The trace is not part of this project; workloads/mooncake_conversation.toml says where to get it. It is read on
the master only. The load is open: requests leave at their instants, and the number of users does not matter.
"""

from pathlib import Path

from hicache_bench.locust_user import HiCacheUser

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"


class TraceReplay(HiCacheUser):
    """Set `trace` to a path to need no option for it."""

    workload = WORKLOADS / "mooncake_conversation.toml"
    trace = None
