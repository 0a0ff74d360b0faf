"""Many requests over a few long prefixes. Copy this file and edit it.

    locust -f locustfiles/prefix_reuse.py --host http://127.0.0.1:30000                  # web page on port 8089
    locust -f locustfiles/prefix_reuse.py --host http://127.0.0.1:30000 --headless -u 16 -t 60s --processes 2

Users, run time and seed come from the workload file unless given; every run leaves a directory in `results/`.
"""

from pathlib import Path

from hicache_bench.locust_user import HiCacheUser

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"


class PrefixReuse(HiCacheUser):
    """The prefixes are primed, so a run shows steady hits: device first, host once they outgrow it."""

    workload = WORKLOADS / "prefix_reuse.toml"
    slo = "ttft<500ms,itl<50ms"
