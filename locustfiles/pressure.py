"""Prefixes that come back after more unique prompts than the device pool holds. Copy this file and edit it.

    locust -f locustfiles/pressure.py --host http://127.0.0.1:30000 --headless

The number of unique prompts is computed from the server's own capacity, so there is no run time to give: the
test ends when all of them have been sent. With workers each of them sends a share; no prompt is sent twice.
"""

from pathlib import Path

from hicache_bench.locust_user import HiCacheUser

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"


class Pressure(HiCacheUser):
    """What HiCache is for: what the device pool has lost is read back from host memory or storage."""

    workload = WORKLOADS / "pressure.toml"
