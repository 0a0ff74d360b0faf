"""A worker: takes its share from the master, sends it, hands its rows over in bounded batches."""


from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from hicache_bench.clock import now_ns
from hicache_bench.errors import BenchError
from hicache_bench.locust_user.job import RowBatch, unpack_job
from hicache_bench.locust_user.node import Node, identity
from hicache_bench.locust_user.options import reach
from hicache_bench.locust_user.statistics import Statistics

log = logging.getLogger(__name__)

WINDOW = 16
"""Batches under way to the master (8 MiB); more wait here."""
ROOM_S = 10.0
"""How long a full window is waited for; a master that does not answer that long is not asked again."""


class WorkerSide:
    """Answers the master's messages. Each run gives it a new node."""

    def __init__(self, environment: Any) -> None:
        self._environment, self._runner = environment, environment.runner
        self._options = environment.parsed_options
        self._run: str | None = None
        self._pieces: dict[int, bytes] = {}
        self._under_way = 0
        self._room = Event()
        self._told = True
        self.node: Node | None = None
        self._register("job", self._on_job)
        self._register("ping", self._on_ping, concurrent=False)
        self._register("start", self._on_start)
        self._register("stop", self._on_stop)
        self._register("ack", self._on_ack, concurrent=False)
        environment.events.test_stopping.add_listener(lambda **_: self._finish())
        environment.events.quitting.add_listener(lambda **_: self._finish())

    def _register(self, name: str, handle: Callable[[dict[str, Any]], None], *, concurrent: bool = True) -> None:
        def listen(environment: Any, msg: Any) -> None:
            if name == "job" or msg.data["run"] == self._run:
                handle(msg.data)

        self._runner.register_message(f"hicache_{name}", listen, concurrent=concurrent)

    def _send(self, name: str, **data: Any) -> None:
        self._runner.send_message(f"hicache_{name}", {"run": self._run, **data})

    # ------------------------------------------------------------------ the master's messages

    def _on_job(self, data: dict[str, Any]) -> None:
        if data["run"] != self._run:
            self._run, self._pieces, self._under_way, self._told = data["run"], {}, 0, False
        self._pieces[data["part"]] = data["data"]
        if len(self._pieces) < data["of"]:
            return
        packed = b"".join(self._pieces[index] for index in range(data["of"]))
        self._pieces = {}
        refusal = None
        try:
            job = unpack_job(packed)
            where = reach(self._options, data["host"])
            self.node = Node(job, where, Statistics(self._environment), self._upstream, data["processes"])
            self.node.prepare()
        except BenchError as error:
            refusal = str(error)
        except Exception as error:  # the master waits for an answer; a different version may not read the job
            log.exception("hicache: the share could not be taken")
            refusal = f"{type(error).__name__}: {error}"
        self._send("ready", about=identity(), refusal=refusal)

    def _on_ping(self, data: dict[str, Any]) -> None:
        self._send("pong", sent_ns=data["sent_ns"], mine_ns=now_ns())

    def _on_start(self, data: dict[str, Any]) -> None:
        node = self.node
        if node is None:
            return
        node.engine.start(data["start_ns"])
        node.engine.done.wait()
        self._finish()

    def _on_stop(self, data: dict[str, Any]) -> None:
        self._finish()

    def _on_ack(self, data: dict[str, Any]) -> None:
        self._under_way -= 1
        self._room.set()

    # ------------------------------------------------------------------ to the master

    def _upstream(self, batch: RowBatch) -> None:
        while self._under_way >= WINDOW:
            self._room.clear()
            if not self._room.wait(ROOM_S):
                break
        self._under_way += 1
        self._send("rows", n=batch.n, data=batch.data)

    def _finish(self) -> None:
        """End the share and tell the master how it ended: once, whoever asks first."""
        if self._told or self.node is None:
            return
        self._told = True
        ending = self.node.finish()
        self._send("done", ending=dataclasses.asdict(ending))
        gevent.sleep(0)
