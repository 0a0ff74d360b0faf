"""One turn on its way out and its row on the way back: what every driver shares, whatever loop it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hicache_bench.clock import now_ns
from hicache_bench.load.requests import Api, History, RequestBuilder
from hicache_bench.records import Attempt, Exchange, Outcome, Session, WireRequest
from hicache_bench.wire.fold import last_output

Sink = Callable[[Attempt, WireRequest, Exchange], None]
"""Takes the half-filled row with the raw log; folding happens elsewhere, off the stamping path."""

PREBUILT_BYTES = 256 * 2**20
"""Request bodies built before the clock starts; what is beyond is built when it is due."""


@dataclass(slots=True)
class Counts:
    """Live counters of one drive (for progress); `active` counts sessions under way."""

    issued: int = 0
    in_flight: int = 0
    active: int = 0
    finished: int = 0
    shed: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """A turn ready to be sent. `context` is the conversation with this turn's prompt in it."""

    context: History
    request: WireRequest
    dp_rank: int | None


def planned_row(session: Session, index: int, scheduled_ns: int | None, *, phase: str, api: Api, streamed: bool,
                ignore_eos: bool, dp_rank: int | None = None) -> Attempt:
    """The row of an attempt at turn `index` as far as the plan knows it; `scheduled_ns` None: it never came due."""
    turn = session.turns[index]
    return Attempt(
        session=session.id,
        turn=index,
        attempt=0,
        stream=session.stream,
        kind=session.kind,
        label=turn.label,
        phase=phase,
        api=api,
        streamed=streamed,
        dp_rank_sent=dp_rank,
        scheduled_ns=scheduled_ns,
        planned_prompt_tokens=turn.prompt_tokens,
        planned_output_tokens=turn.output_tokens,
        ideal_cached_tokens=turn.ideal_cached_tokens,
        ignore_eos=ignore_eos,
    )


class Turns:
    """The turns of one phase: built ahead or when due, their rows handed to `sink`."""

    def __init__(self, builder: RequestBuilder, sink: Sink, *, phase: str, rid_prefix: str) -> None:
        self._builder = builder
        self._sink = sink
        self._phase = phase
        self._rid_prefix = rid_prefix
        self._ahead: dict[tuple[int, int], Made] = {}

    @property
    def timeout_ns(self) -> int | None:
        return self._builder.options.timeout_ns

    def build_ahead(self, session: Session) -> int:
        """Build the bodies of a session; returns the bytes they hold.

        Live turns wait for the server's answers and are built when they are due.
        """
        held = 0
        # Only chains with live turns need the context again; the bytes are enough otherwise.
        keeps = any(turn.live for turn in session.turns)
        for index, turn in enumerate(session.turns):
            if not turn.live:
                made = self._make(session, index, None)
                self._ahead[(session.id, index)] = made if keeps else Made(History(), made.request, made.dp_rank)
                held += len(made.request.body)
        return held

    def take(self, session: Session, index: int, history: History | None) -> Made:
        """A turn to send now. `history` is what came before a live one."""
        return self._ahead.pop((session.id, index), None) or self._make(session, index, history)

    def ended(self, session: Session, index: int, scheduled_ns: int, made: Made, exchange: Exchange) -> None:
        """Hand over the row of a request that was sent, however it ended."""
        request = made.request
        light = WireRequest(request.path, b"", request.api, request.streamed, request.incremental)
        self._sink(self._row(session, index, scheduled_ns, made.dp_rank), light, exchange)

    def unsent(self, session: Session, index: int, due_ns: int | None, outcome: Outcome, why: str) -> None:
        """Hand over the row of a turn that is not sent; `due_ns` None: now."""
        row = self._row(session, index, now_ns() if due_ns is None else due_ns, None)
        options = self._builder.options
        self._sink(row, WireRequest("", b"", options.api, options.streamed), Exchange(failure=(outcome, why)))

    def outcome(self, made: Made, exchange: Exchange, *, keep_output: bool) -> tuple[bool, History | None]:
        """(answered, history for a live next turn); the answer is read only with `keep_output`."""
        answered = exchange.failure is None and exchange.status is not None and exchange.status < 400
        if not (keep_output and answered):
            return answered, None
        ids, text = last_output(made.request, exchange)
        if ids is None and not text:
            return False, None
        return True, self._builder.extend(made.context, ids, text)

    def _make(self, session: Session, index: int, history: History | None) -> Made:
        turn = session.turns[index]
        context = self._builder.context(turn.prompt, history if turn.live else None)
        rank = self._builder.dp_rank(session)
        rid = f"{self._rid_prefix}-{self._phase}-{session.id}-{index}"
        return Made(context, self._builder.build(context, turn.output_tokens, rid, rank), rank)

    def _row(self, session: Session, index: int, scheduled_ns: int, dp_rank: int | None) -> Attempt:
        options = self._builder.options
        return planned_row(session, index, scheduled_ns, phase=self._phase, api=options.api,
                           streamed=options.streamed, ignore_eos=options.ignore_eos, dp_rank=dp_rank)
