"""The Locust user: one conversation partner of the server, taking its sessions from the run's plan."""


from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import gevent
from locust import FastHttpUser, constant, events, task

from hicache_bench.locust_user.options import add_options
from hicache_bench.locust_user.runtime import attach

IDLE_S = 0.1


class HiCacheUser(FastHttpUser):
    """Subclass it in a locustfile and name a workload. Class attributes are defaults of the options of the same
    name; what is measured, stored and shown is the same as with `hicache-bench run`."""

    abstract = True
    wait_time = constant(0)

    workload: ClassVar[str | Path | None] = None
    slo: ClassVar[str | None] = None
    api: ClassVar[str | None] = None
    trace: ClassVar[str | Path | None] = None

    @task
    def next_session(self) -> None:
        """The next session of this process's share. In an open loop the schedule sends, and users look on."""
        node = self.environment.hicache.node
        if node is None or not node.engine.closed or not node.engine.serve():
            gevent.sleep(IDLE_S)


events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]
events.init.add_listener(attach)  # type: ignore[no-untyped-call]
