"""The master: cuts one frozen plan for its workers, starts them together, gathers their rows in one run."""


from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
import msgspec
from gevent.event import Event
from locust import runners
from locust.dispatch import UsersDispatcher

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.errors import MeasureError, UsageError
from hicache_bench.locust_user.desk import Desk
from hicache_bench.locust_user.job import Clock, Ending, parts, relate, to_correct
from hicache_bench.locust_user.node import boot_id
from hicache_bench.locust_user.options import Reach

log = logging.getLogger(__name__)

READY_S = 180.0
LEAD_NS = NS_PER_S
PINGS = 16
PING_S = 1.0
POLL_S = 0.2
LIVENESS = 8
"""Missed heartbeats (1 s each) until Locust gives a worker up. Its own 3 were seen to be too few for living
workers on a machine with more processes than cores, and Locust ends the test when it has given up the last."""
SILENT_NS = 5 * NS_PER_S
"""A worker that Locust has given up is lost when it has said nothing to us for so long, either."""
FINISH_S = 90.0
"""Beyond the drain time: rows still on their way from a worker that has fallen behind."""


class FrozenDispatcher(UsersDispatcher):
    """The workers of a test are those it began with: one that comes later would have no share of the plan."""

    def add_worker(self, worker_node: Any) -> None:
        """Locust would move running users over to it."""


@dataclass(slots=True)
class Hand:
    """One worker of the run."""

    id: str
    index: int
    heard_ns: int = 0
    ready: Event = field(default_factory=Event)
    done: Event = field(default_factory=Event)
    pong: Event = field(default_factory=Event)
    pings: list[tuple[int, int, int]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    clock: Clock | None = None
    offset_ns: int = 0
    ending: Ending | None = None
    refusal: str | None = None


class MasterRun:
    """Same face as `LocalRun`."""

    node = None

    def __init__(self, environment: Any, settings: Mapping[str, Any], reach: Reach,
                 on_over: Callable[[], None]) -> None:
        self._runner, self._on_over = environment.runner, on_over
        self._desk = Desk(settings, self._stop)
        self._hands: dict[str, Hand] = {}
        self._begun = self._ended = False
        self._run_id = f"{now_ns():x}"
        self._host = environment.host  # Locust tells its workers with the first user, which is too late
        runners.HEARTBEAT_LIVENESS = LIVENESS
        for name, listener in (("ready", self._on_ready), ("pong", self._on_pong), ("rows", self._on_rows),
                               ("done", self._on_done)):
            # Locust refuses to register a name twice, and each run of a master has listeners of its own.
            self._runner.custom_messages.pop(f"hicache_{name}", None)
            self._runner.register_message(f"hicache_{name}", listener)

    @property
    def live(self) -> dict[str, Any] | None:
        return self._desk.live

    def knows(self, client_id: str) -> bool:
        """Whether a worker has a share; before the plan is cut everyone may have one."""
        return not self._hands or client_id in self._hands

    def prepare(self, users: int) -> None:
        """Phases before the measured one, shares to the workers, clocks, the common start. Raises BenchError."""
        planned = self._desk.planned()
        ids = [client.id for client in self._runner.clients.ready]
        if not ids:
            raise UsageError("no worker is connected; start some with --worker, or use --processes N")
        if planned["closed"] and users < len(ids):
            raise UsageError(f"{users} users for {len(ids)} workers; allowed: at least one user a worker")
        shares = self._desk.split(len(ids))
        self._hands = {name: Hand(name, index) for index, name in enumerate(ids)}
        for hand, share in zip(self._hands.values(), shares, strict=True):
            self._give(hand, share, len(ids))
        for hand in self._hands.values():
            self._await_ready(hand)
        for hand in self._hands.values():
            hand.clock = self._measure_clock(hand)
            hand.offset_ns = to_correct(hand.clock, hand.about.get("boot") == boot_id() != "")
        start_ns = now_ns() + LEAD_NS
        self._desk.begin(start_ns, [(hand.id, hand.offset_ns, _about(hand)) for hand in self._hands.values()])
        self._begun = True
        for hand in self._hands.values():
            self._send("start", hand, start_ns=start_ns + hand.offset_ns)
        gevent.spawn(self._watch)

    def conclude(self) -> dict[str, Any] | None:
        """End the run at every worker, gather what they have, seal. None when nothing had begun."""
        try:
            for hand in self._pending():
                self._send("stop", hand)
            if not self._begun:
                return None
            deadline_ns = now_ns() + int(FINISH_S * NS_PER_S)
            while (left := self._pending()) and now_ns() < deadline_ns:
                gevent.wait([hand.done for hand in left], timeout=POLL_S)
            drifts = [self._drift(hand) for hand in self._hands.values()]
            self._ended = True
            return self._desk.end([(hand.ending, drift) for hand, drift in
                                   zip(self._hands.values(), drifts, strict=True)])
        finally:
            self._desk.close()

    def _pending(self) -> list[Hand]:
        return [hand for hand in self._hands.values() if not hand.done.is_set() and not self._lost(hand)]

    def _lost(self, hand: Hand) -> bool:
        node = self._runner.clients.get(hand.id)
        given_up = node is None or node.state == runners.STATE_MISSING
        return given_up and now_ns() - hand.heard_ns > SILENT_NS

    def _watch(self) -> None:
        """Over when every worker has ended its share or is gone."""
        while self._pending():
            gevent.sleep(POLL_S)
        self._on_over()

    def _stop(self, why: str) -> None:
        log.error("hicache: %s", why)
        for hand in self._pending():
            self._send("stop", hand)

    # ------------------------------------------------------------------ to a worker

    def _send(self, name: str, hand: Hand, **data: Any) -> None:
        self._runner.send_message(f"hicache_{name}", {"run": self._run_id, **data}, client_id=hand.id)

    def _give(self, hand: Hand, share: bytes, processes: int) -> None:
        pieces = parts(share)
        for index, piece in enumerate(pieces):
            self._send("job", hand, part=index, of=len(pieces), data=piece, processes=processes,
                       host=self._host)
            gevent.sleep(0)

    def _await_ready(self, hand: Hand) -> None:
        deadline_ns = now_ns() + int(READY_S * NS_PER_S)
        while not hand.ready.wait(POLL_S):
            if self._lost(hand) or now_ns() > deadline_ns:
                raise MeasureError(f"worker {hand.id} did not get ready; is hicache-bench installed there?")
        if hand.refusal is not None:
            raise MeasureError(f"worker {hand.id}: {hand.refusal}")

    def _measure_clock(self, hand: Hand) -> Clock:
        hand.pings = []
        for _ in range(PINGS):
            hand.pong.clear()
            self._send("ping", hand, sent_ns=now_ns())
            hand.pong.wait(PING_S)
        if not hand.pings:
            raise MeasureError(f"worker {hand.id} did not answer about its clock")
        return relate(hand.pings)

    def _drift(self, hand: Hand) -> int | None:
        """How far the worker's clock has moved against ours since the start; None for a lost worker."""
        if hand.clock is None or self._lost(hand):
            return None
        try:
            return self._measure_clock(hand).offset_ns - hand.clock.offset_ns
        except MeasureError:
            return None

    # ------------------------------------------------------------------ from a worker

    def _hand(self, msg: Any) -> Hand | None:
        """The sender; None for a stranger or an earlier run."""
        same = isinstance(msg.data, dict) and msg.data.get("run") == self._run_id and not self._ended
        hand = self._hands.get(msg.node_id) if same else None
        if hand is not None:
            hand.heard_ns = now_ns()
        return hand

    def _on_ready(self, environment: Any, msg: Any) -> None:
        if (hand := self._hand(msg)) is not None:
            hand.about, hand.refusal = msg.data["about"], msg.data["refusal"]
            hand.ready.set()

    def _on_pong(self, environment: Any, msg: Any) -> None:
        received_ns = now_ns()
        if (hand := self._hand(msg)) is not None:
            hand.pings.append((msg.data["sent_ns"], msg.data["mine_ns"], received_ns))
            hand.pong.set()

    def _on_rows(self, environment: Any, msg: Any) -> None:
        if (hand := self._hand(msg)) is not None and not hand.done.is_set():
            self._desk.rows(hand.index, msg.data["data"])
            self._send("ack", hand)

    def _on_done(self, environment: Any, msg: Any) -> None:
        if (hand := self._hand(msg)) is not None:
            hand.ending = msgspec.convert(msg.data["ending"], Ending)
            hand.done.set()


def _about(hand: Hand) -> dict[str, Any]:
    assert hand.clock is not None
    return {"index": hand.index, "pid": hand.about.get("pid"), "offset_ns": hand.clock.offset_ns,
            "uncertainty_ns": hand.clock.uncertainty_ns, "corrected_ns": hand.offset_ns}


def refuse_late(environment: Any, current: Callable[[], MasterRun | None]) -> None:
    """A worker that connects while a run is under way is told to quit: all of the plan is given out."""

    def connected(client_id: str, **_: Any) -> None:
        run = current()
        if run is not None and not run.knows(client_id):
            log.warning("hicache: worker %s came after the start and is refused: it would have no share", client_id)
            gevent.spawn_later(0.2, environment.runner.send_message, "quit", None, client_id)

    environment.events.worker_connect.add_listener(connected)
