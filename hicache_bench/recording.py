"""The recorder: folds raw logs into rows and writes Parquet, in a process of its own.

Parsing answers in the client's process was measured to move TTFT p99 by 31 ms at 256 streams, so the driver
only hands over (row, raw log). A second process also keeps what it was given when the client is killed: it
sees the pipe close, writes the last part and ends.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from hicache_bench.errors import StoreError
from hicache_bench.records import Attempt, Exchange, Folded, WireRequest
from hicache_bench.sglang.scrape import Sample
from hicache_bench.store.schema import MetricRow
from hicache_bench.store.writer import MetricsWriter, PartWriter
from hicache_bench.wire.fold import fold

BATCH_ITEMS = 256
FLUSH_S = 0.05
PROGRESS_S = 0.25
MAX_AGE_NS = 2_000_000_000
"""Rows reach the disk at most this long after their request has ended."""

Item = tuple[Attempt, WireRequest, Exchange]
Queued = Item | Attempt | list[MetricRow]
Batch = list[Queued]


@dataclass(slots=True)
class Progress:
    """Running totals over all rows folded so far; sums only, for live display and final counts."""

    rows: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    storage_tokens: int = 0
    last_error: str | None = None
    recent_ttft_ns: list[int] = field(default_factory=list)

    def add(self, row: Attempt) -> None:
        self.rows += 1
        self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
        for name in ("prompt_tokens", "output_tokens", "cached_tokens", "device_tokens", "host_tokens",
                     "storage_tokens"):
            setattr(self, name, getattr(self, name) + (getattr(row, name) or 0))
        if row.error is not None:
            self.last_error = f"{row.outcome}: {row.error}"
        if row.first_token_ns is not None and row.sent_ns is not None:
            self.recent_ttft_ns = [*self.recent_ttft_ns[-255:], row.first_token_ns - row.sent_ns]


_SHARED = tuple(name for name in Folded.__dataclass_fields__
                if name in Attempt.__dataclass_fields__ and name != "extra")


def complete(row: Attempt, request: WireRequest, exchange: Exchange) -> Attempt:
    """Fill a row from its raw log."""
    folded = fold(request, exchange)
    for name in _SHARED:
        setattr(row, name, getattr(folded, name))
    row.extra = msgspec.json.encode(folded.extra).decode() if folded.extra else None
    row.clock = exchange.clock
    row.sent_ns = exchange.sent_ns
    row.connect_start_ns = exchange.connect_start_ns
    row.connected_ns = exchange.connected_ns
    row.headers_ns = exchange.headers_ns
    row.done_ns = exchange.done_ns
    row.status = exchange.status
    row.body_bytes = sum(len(data) for _, data in exchange.reads) if exchange.status is not None else None
    return row


class Recorder:
    """Hands rows to the recorder process without ever blocking the event loop.

    `put` appends to a queue; a thread pickles batches into the pipe. `check` raises StoreError when the
    recorder process has failed (disk full, killed).
    """

    def __init__(self, run_dir: Path) -> None:
        self._connection, child = Pipe()
        # A plain subprocess and not multiprocessing.Process: that one would import the caller's script again.
        # Its own session keeps Ctrl-C away; the client decides when it ends.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hicache_bench.recording", str(child.fileno()), str(run_dir)],
            pass_fds=[child.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        child.close()
        self._queue: deque[Queued] = deque()
        self._queued_bytes = 0
        self.max_backlog_bytes = 0
        self._wake = threading.Event()
        self._closing = False
        self._error: str | None = None
        self.progress = Progress()
        self._sender = threading.Thread(target=self._send_loop, name="recorder-send", daemon=True)
        self._receiver = threading.Thread(target=self._receive_loop, name="recorder-receive", daemon=True)
        self._ready = threading.Event()
        self._sender.start()
        self._receiver.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return when the child has imported its libraries, so that its start-up costs no measured time."""
        if not self._ready.wait(timeout_s) or self._error is not None:
            raise StoreError(self._error or f"the recorder process did not start within {timeout_s:.0f} s")

    def put(self, row: Attempt, request: WireRequest, exchange: Exchange) -> None:
        self._queued_bytes += _raw_bytes((row, request, exchange))
        self.max_backlog_bytes = max(self.max_backlog_bytes, self._queued_bytes)
        self._queue.append((row, request, exchange))
        if len(self._queue) >= BATCH_ITEMS:
            self._wake.set()

    def put_row(self, row: Attempt) -> None:
        """A row that is complete already: another process has folded it."""
        self._queue.append(row)

    def put_scrape(self, scrape_ns: int, wall_ns: int, source: str, samples: Sequence[Sample]) -> None:
        """One scrape of one metrics page; written by the recorder process, too, since fsync blocks."""
        self._queue.append([MetricRow(scrape_ns, wall_ns, source, one.name, one.labels, one.value, one.kind)
                            for one in samples])

    def check(self) -> None:
        if self._error is not None:
            raise StoreError(self._error)

    def close(self) -> Progress:
        """Flush everything to disk and end the child. Returns the final totals."""
        self._closing = True
        self._wake.set()
        self._sender.join()
        self._receiver.join(timeout=120)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._error = self._error or "the recorder process did not end; its last rows may be missing"
        self._connection.close()
        self.check()
        return self.progress

    def close_quietly(self) -> None:
        """`close` after an error: the first one is the one to report."""
        with contextlib.suppress(StoreError):
            self.close()

    def _send_loop(self) -> None:
        try:
            while True:
                self._wake.wait(FLUSH_S)
                self._wake.clear()
                closing = self._closing
                while self._queue:
                    batch = [self._queue.popleft() for _ in range(min(BATCH_ITEMS, len(self._queue)))]
                    self._connection.send_bytes(pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL))
                    self._queued_bytes -= sum(_raw_bytes(item) for item in batch)
                if closing:
                    self._connection.send_bytes(b"")
                    return
        except (OSError, ValueError) as error:
            if self._error is None:
                self._error = f"the recorder process is gone ({type(error).__name__}); rows since then are lost"

    def _receive_loop(self) -> None:
        finished = False
        try:
            while not finished:
                kind, payload = self._connection.recv()
                if kind == "ready":
                    self._ready.set()
                elif kind == "error":
                    self._error = payload
                    finished = True
                else:
                    self.progress = payload
                    finished = kind == "done"
        except (EOFError, OSError):
            if self._error is None:
                self._error = "the recorder process ended early; earlier parts are readable"
        finally:
            self._ready.set()


def _raw_bytes(item: Queued) -> int:
    return sum(len(data) for _, data in item[2].reads) if isinstance(item, tuple) else 0


def child_main(connection: Connection, run_dir: str) -> None:
    """The recorder process: read frames until the empty one or the end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        writer, metrics = PartWriter(Path(run_dir), max_age_ns=MAX_AGE_NS), MetricsWriter(Path(run_dir))
        _reply(connection, ("ready", None))
        _child_loop(connection, writer, metrics)
    except StoreError as error:
        _reply(connection, ("error", str(error)))
    except Exception as error:  # the parent must learn of a bug here, too
        _reply(connection, ("error", f"the recorder failed: {type(error).__name__}: {error}"))


def _child_loop(connection: Connection, writer: PartWriter, metrics: MetricsWriter) -> None:
    progress, told = Progress(), 0.0
    alive = True
    while alive:
        if connection.poll(PROGRESS_S):
            try:
                frame = connection.recv_bytes()
            except (EOFError, OSError):  # the client was killed: keep what it gave us
                break
            alive = frame != b""
            batch: Batch = pickle.loads(frame) if frame else []
            rows = [complete(*item) if isinstance(item, tuple) else item for item in batch
                    if not isinstance(item, list)]
            for row in rows:
                progress.add(row)
            writer.add(rows)
            for item in batch:
                if isinstance(item, list):
                    metrics.add(item)
        writer.flush_due()
        metrics.flush_due()
        if time.monotonic() - told >= PROGRESS_S:
            _reply(connection, ("progress", progress))
            told = time.monotonic()
    writer.close()
    metrics.close()
    _reply(connection, ("done", progress))


def _reply(connection: Connection, message: tuple[str, Any]) -> None:
    try:
        connection.send(message)
    except OSError:
        pass  # the client is gone; the rows are safe already


if __name__ == "__main__":
    # The frames name the classes of this module by its real name, not __main__.
    from hicache_bench.recording import child_main as main

    main(Connection(int(sys.argv[1])), sys.argv[2])
