"""What is sent, when, and what happened: the data types every layer shares.

Instants and durations are `int` nanoseconds ending in `_ns` (CLOCK_MONOTONIC); counts end in `_tokens` or
`_pages`. None always means "not known", never zero. No derived figure is kept here: metrics are computed
from these in `analysis`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

# --------------------------------------------------------------------------- what to send


@dataclass(frozen=True, slots=True)
class Segment:
    """A deterministic run of tokens: the first `n_tokens` of the endless token stream named `key`.

    Equal keys share content, so a shorter segment is a prefix of a longer one with the same key.
    """

    key: str
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Message:
    """One literal chat message (dataset streams)."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one turn adds to its session's context.

    Exactly one of `segments`, `text`, `messages` is set. `n_tokens` counts this prompt's own tokens; None
    when only the server can count (text and messages).
    """

    segments: tuple[Segment, ...] = ()
    text: str | None = None
    messages: tuple[Message, ...] = ()
    n_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    `after` lists the turns (indices in the session) that must have finished first; the turn is due
    `think_ns` after the last of them. `live` means that the prompt is appended to the whole conversation
    so far *including the server's own output* of turn `after[0]`; otherwise the prompt is complete as it is.
    `ideal_cached_tokens` is what an unbounded cache would serve, by the plan's own prefix structure.
    """

    prompt: Prompt
    output_tokens: int
    after: tuple[int, ...] = ()
    think_ns: int = 0
    live: bool = False
    label: str = ""
    prompt_tokens: int | None = None
    ideal_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that depend on each other: one conversation, one agent trace or one single request."""

    id: int
    stream: str
    kind: str
    turns: tuple[Turn, ...]
    affinity: str = ""
    """Sessions with equal affinity share a prefix; sticky data-parallel routing keeps them together."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Sessions start at their scheduled instants whatever the server does; above `limit` they are shed."""

    limit: int


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` workers, each starting its next session when the last one has finished."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Stop:
    """When to stop issuing: after a duration, after the planned requests, whichever is first."""

    duration_ns: int | None = None
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole load, known before the clock starts.

    `arrivals_ns` has one entry a session, offsets from the start of the measured phase, sorted (all zero in
    a closed loop). `digest` covers everything that decides what is sent and when except the run nonce, so
    two runs with equal digests are comparable.
    """

    name: str
    seed: int
    sessions: tuple[Session, ...]
    arrivals_ns: NDArray[np.int64]
    loop: OpenLoop | ClosedLoop
    stop: Stop
    digest: str

    @property
    def n_requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


# --------------------------------------------------------------------------- what happened

Outcome = Literal[
    "ok",  # complete answer with at least one token
    "empty",  # complete answer without any token: no TTFT
    "shed",  # never sent: more in flight than the limit
    "connect",  # no connection
    "disconnect",  # connection lost before the answer was complete
    "timeout",  # our deadline passed
    "http",  # status >= 400
    "server_error",  # error object or abort inside a 200 answer
    "protocol",  # bytes that are no answer of this API (or a line over the limit)
    "truncated",  # stream ended politely without [DONE] or finish reason
    "aborted",  # stopped by us: end of run, Ctrl-C
    "fd_limit",  # this client ran out of file descriptors
]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
NOT_FAILURES = ("ok", "empty", "shed", "aborted")
"""Outcomes outside the error rate: `empty` and `shed` have counts of their own, `aborted` was our doing."""

Phase = Literal["probe", "prime", "warmup", "measure"]


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request ready to be written: path below the base URL, body, and what is needed to read the answer.

    `api` is one of `generate`, `completions`, `chat`; `incremental` tells that a native stream sends
    disjoint deltas instead of the text so far (server flag --incremental-streaming-output).
    """

    path: str
    body: bytes
    api: str
    streamed: bool
    incremental: bool = False


@dataclass(slots=True)
class Exchange:
    """Raw record of one request on the wire, filled by a transport and never parsed there.

    `reads` holds (instant, bytes) of the *decoded* body (chunked framing removed), one entry a read.
    `connect_start_ns`/`connected_ns` are None when a pooled connection was reused.
    `failure` is (outcome, message) when the transport saw the end come badly, else None.
    """

    sent_ns: int | None = None
    connect_start_ns: int | None = None
    connected_ns: int | None = None
    headers_ns: int | None = None
    status: int | None = None
    content_type: str = ""
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    done_ns: int | None = None
    failure: tuple[Outcome, str] | None = None
    clock: str = "loop"


@dataclass(slots=True)
class Folded:
    """What the bytes of one answer say (see `wire.fold`)."""

    outcome: Outcome
    error: str | None = None
    first_token_ns: int | None = None
    first_content_ns: int | None = None
    last_token_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    token_source: str | None = None  # "server" or "estimated" (one token a chunk)
    cached_tokens: int | None = None
    device_tokens: int | None = None
    host_tokens: int | None = None
    storage_tokens: int | None = None
    storage_backend: str | None = None
    finish_reason: str | None = None
    output_digest: str | None = None
    dp_rank: int | None = None
    request_id: str | None = None
    server_e2e_s: float | None = None
    server_ttft_s: float | None = None
    server_queue_s: float | None = None
    prefetch_wait_s: float | None = None
    retractions: int | None = None
    extra: Mapping[str, Any] | None = None
    text: str | None = None
    output_ids: list[int] | None = None


@dataclass(slots=True)
class Attempt:
    """One row of `requests/part-*.parquet`: one attempt at one turn. Instants are monotonic nanoseconds."""

    # identity
    session: int
    turn: int
    attempt: int
    stream: str
    kind: str
    label: str
    phase: str
    api: str
    streamed: bool
    clock: str = "loop"
    request_id: str | None = None
    dp_rank_sent: int | None = None
    dp_rank: int | None = None
    # instants
    scheduled_ns: int | None = None
    sent_ns: int | None = None
    connect_start_ns: int | None = None
    connected_ns: int | None = None
    headers_ns: int | None = None
    first_token_ns: int | None = None
    first_content_ns: int | None = None
    last_token_ns: int | None = None
    done_ns: int | None = None
    # counts
    planned_prompt_tokens: int | None = None
    planned_output_tokens: int | None = None
    ideal_cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    token_source: str | None = None
    cached_tokens: int | None = None
    device_tokens: int | None = None
    host_tokens: int | None = None
    storage_tokens: int | None = None
    storage_backend: str | None = None
    ignore_eos: bool | None = None
    # outcome
    outcome: str = "ok"
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    output_digest: str | None = None
    # figures the answer carries about the server
    server_e2e_s: float | None = None
    server_ttft_s: float | None = None
    server_queue_s: float | None = None
    prefetch_wait_s: float | None = None
    retractions: int | None = None
    # stream chunks that carried tokens
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    body_bytes: int | None = None
    extra: str | None = None  # JSON of answer fields this version has no column for


# --------------------------------------------------------------------------- the server


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The resolved configuration of one server, as captured before a run (sources: /server_info,
    /model_info, GET /hicache/storage-backend, /metrics). `raw` keeps the whole answers."""

    origin: Literal["real", "simulated"]
    version: str | None = None
    model: str | None = None
    page_size: int | None = None
    device_tokens: int | None = None
    host_tokens: int | None = None
    context_length: int | None = None
    max_request_tokens: int | None = None
    hicache: bool | None = None
    storage_backend: str | None = None
    dp_size: int | None = None
    incremental_streaming: bool | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
