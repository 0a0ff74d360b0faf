"""Workload stages as a Locust load shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from locust import LoadTestShape


class StageShape(LoadTestShape):
    """Ends the test with the last stage; the rate itself is the plan's schedule, exact to the request.

    A shape only sets a number of users, and users cannot hold a rate when the server slows down. So there is
    one user a load process, and each process keeps its share of the stages' starts.
    """

    abstract = True  # made by the runtime for workloads with stages, never picked up from a locustfile

    def __init__(self, over: Callable[[], bool], runner: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._over, self._runner = over, runner

    def tick(self) -> tuple[int, float] | None:
        """(users, spawn rate): one user a load process; None when the plan has ended."""
        if self._over():
            return None
        users = max(1, self._runner().worker_count)
        return users, float(users)
