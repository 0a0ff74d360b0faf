"""Conversations that send the server's own answers back with each turn. Copy this file and edit it.

    locust -f locustfiles/multi_turn.py --host http://127.0.0.1:30000 --headless -u 16
    locust -f locustfiles/multi_turn.py --host http://127.0.0.1:30000 --headless --rate 2/s -t 2m --limit 64

A Locust user holds one conversation at a time (closed loop). With --rate conversations begin on a schedule,
whatever the server does, and those above --limit are shed and counted.
"""

from pathlib import Path

from hicache_bench.locust_user import HiCacheUser

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"


class MultiTurn(HiCacheUser):
    """A system prompt, 3 to 8 turns, pauses in between; the history is live."""

    workload = WORKLOADS / "multi_turn.toml"
