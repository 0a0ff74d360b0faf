"""The companion as Locust's process sees it: start it, take the plan's shares, give it rows, have it seal."""


from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.queue import Queue

from hicache_bench.errors import MeasureError
from hicache_bench.locust_user.channel import end_child, start_child
from hicache_bench.locust_user.job import Ending

log = logging.getLogger(__name__)

SEAL_S = 600.0
"""Settling and sealing take seconds; the bound only keeps a broken companion from holding Locust for ever."""


class Desk:
    """One run's companion. Its refusals are raised as MeasureError with the exit code they have elsewhere."""

    def __init__(self, settings: Mapping[str, Any], on_stop: Callable[[str], None]) -> None:
        self._on_stop = on_stop
        self._answers: Queue[tuple[str, Any] | None] = Queue()
        self.live: dict[str, Any] | None = None
        self._channel, self._process = start_child("hicache_bench.locust_user.companion")
        self._receiver = gevent.spawn(self._receive)
        self._channel.send("settings", dict(settings))

    @property
    def pid(self) -> int:
        return self._process.pid

    def planned(self) -> dict[str, Any]:
        """Waits through capture, reset, priming and warm-up; returns `closed`, `sessions`, `requests`,
        `duration_ns`."""
        plan = self._expect("planned")
        assert isinstance(plan, dict)
        return plan

    def split(self, n: int) -> list[bytes]:
        """The plan cut for `n` load processes, packed (`job.unpack_job`)."""
        self._send("split", n)
        return [self._expect("share") for _ in range(n)]

    def begin(self, start_ns: int, shares: list[tuple[str, int, dict[str, Any]]]) -> None:
        """The measured phase starts; each share's process by name, clock offset and what is noted of it."""
        self._send("start", (start_ns, shares))

    def rows(self, index: int, data: bytes) -> None:
        """Rows of share `index`, as `job.pack_rows` made them."""
        try:
            self._channel.send("rows", (index, data))
        except OSError:
            self._on_stop("the companion process is gone; rows since then are lost")

    def end(self, endings: list[tuple[Ending | None, int | None]]) -> dict[str, Any]:
        """Every share's ending (None: lost) and clock drift; returns `path` and `text` of the sealed run."""
        self._send("end", endings)
        with gevent.Timeout(SEAL_S, MeasureError(f"the run was not sealed within {SEAL_S:.0f} s")):
            sealed = self._expect("sealed")
        assert isinstance(sealed, dict)
        return sealed

    def close(self) -> None:
        """Let go: a companion still at work seals the run as aborted and ends."""
        self._channel.close()
        end_child(self._process)

    def _send(self, kind: str, body: Any) -> None:
        try:
            self._channel.send(kind, body)
        except OSError:
            pass  # what it said before it went is in `_answers`

    def _expect(self, kind: str) -> Any:
        message = self._answers.get()
        if message is None:
            self._answers.put(None)
            raise MeasureError("the companion process ended early")
        if message[0] == "failed":
            code, text = message[1]
            error = MeasureError(text)
            error.exit_code = code
            raise error
        assert message[0] == kind, f"{message[0]} instead of {kind}"
        return message[1]

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            kind, body = message
            if kind == "note":
                log.info("hicache: %s", body)
            elif kind == "phase":
                log.info("hicache: phase %s", body)
            elif kind == "live":
                self.live = body
            elif kind == "stop":
                self._on_stop(body)
            else:
                self._answers.put(message)
        self._answers.put(None)
