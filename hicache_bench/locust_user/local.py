"""One run in one process: the companion's plan whole, sent by this process's users."""


from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gevent

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.locust_user.desk import Desk
from hicache_bench.locust_user.job import unpack_job
from hicache_bench.locust_user.node import Node, identity
from hicache_bench.locust_user.options import Reach
from hicache_bench.locust_user.statistics import Statistics

log = logging.getLogger(__name__)

LEAD_NS = NS_PER_S // 5
"""From the decision to start until the start: Locust has its first users by then."""


class LocalRun:
    """`prepare` before the users start, `conclude` when the test stops; `on_over` is called at the plan's end."""

    def __init__(self, environment: Any, settings: Mapping[str, Any], reach: Reach,
                 on_over: Callable[[], None]) -> None:
        self._environment, self._reach, self._on_over = environment, reach, on_over
        self._desk = Desk(settings, self._stop)
        self._begun = False
        self.node: Node | None = None

    @property
    def live(self) -> dict[str, Any] | None:
        return self._desk.live

    def prepare(self, users: int) -> None:
        """Blocks through the phases before the measured one. Raises BenchError when there will be no run."""
        self._desk.planned()
        (share,) = self._desk.split(1)
        self.node = Node(unpack_job(share), self._reach, Statistics(self._environment),
                         lambda batch: self._desk.rows(0, batch.data))
        self.node.prepare()
        start_ns = now_ns() + LEAD_NS
        self._desk.begin(start_ns, [("local", 0, identity())])
        self._begun = True
        self.node.engine.start(start_ns)
        gevent.spawn(self._watch, self.node)

    def conclude(self) -> dict[str, Any] | None:
        """End the run, whatever its state: returns what was sealed, None when nothing had begun."""
        try:
            if not self._begun or self.node is None:
                return None
            return self._desk.end([(self.node.finish(), None)])
        finally:
            if self.node is not None and not self._begun:
                self.node.close()
            self._desk.close()

    def _watch(self, node: Node) -> None:
        node.engine.done.wait()
        self._on_over()

    def _stop(self, why: str) -> None:
        log.error("hicache: %s", why)
        if self.node is not None:
            self.node.engine.stop()


