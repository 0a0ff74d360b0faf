"""The fold child of a load process: raw logs in, complete rows and a few figures out.

Parsing in the load process would delay the stamps of other streams, under gevent as much as under asyncio.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable

from hicache_bench.clock import NS_PER_MS
from hicache_bench.locust_user.channel import inherited
from hicache_bench.locust_user.job import PART_BYTES, Figures, RowBatch, pack_rows
from hicache_bench.recording import complete
from hicache_bench.records import Attempt, Exchange
from hicache_bench.scrub import byte_forms, mask_bytes


def figures_of(row: Attempt) -> Figures:
    """Latencies count from the schedule, as everywhere; ITL is the mean over the answer's later tokens."""
    begin = row.scheduled_ns if row.scheduled_ns is not None else row.sent_ns
    later = sum(row.chunk_tokens[1:])
    gap_ns = row.chunk_ns[-1] - row.chunk_ns[0] if later > 0 else None
    return Figures(
        row.outcome,
        row.error,
        _ms(begin, row.done_ns) if row.sent_ns is not None else None,
        _ms(begin, row.first_token_ns),
        None if gap_ns is None else gap_ns / later / NS_PER_MS,
        row.body_bytes or 0,
        row.prompt_tokens,
        row.cached_tokens,
        row.device_tokens,
        row.host_tokens,
        row.storage_tokens,
        row.output_tokens,
    )


def _ms(begin_ns: int | None, end_ns: int | None) -> float | None:
    return None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / NS_PER_MS


def batches(rows: list[Attempt], limit: int = PART_BYTES) -> list[RowBatch]:
    """The rows in batches of at most `limit` bytes; a single row over it is a batch of its own."""
    if not rows:
        return []
    data = pack_rows(rows)
    if len(data) <= limit or len(rows) == 1:
        return [RowBatch(len(rows), data, [figures_of(row) for row in rows])]
    half = len(rows) // 2
    return [*batches(rows[:half], limit), *batches(rows[half:], limit)]


def hide(exchange: Exchange, forms: Iterable[bytes]) -> None:
    """Take secrets out of what the server said (some repeat the request's headers), before it becomes a row.

    `forms` from `scrub.byte_forms`. An error body is searched in one piece: a read may end in the middle of a key.
    """
    reads = exchange.reads
    if reads and exchange.status is not None and exchange.status >= 400:
        reads[:] = [(reads[-1][0], b"".join(data for _, data in reads))]
    exchange.reads = [(at_ns, mask_bytes(data, forms)) for at_ns, data in reads]


def main(argument: str) -> None:
    """Serve until the load process closes its end or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = inherited(argument)
    forms: tuple[bytes, ...] = ()
    try:
        channel.send("ready")
        while (message := channel.receive()) is not None:
            kind, body = message
            if kind == "flush":
                channel.send("flushed")
                continue
            if kind == "secrets":
                forms = byte_forms(body)
                continue
            if forms:
                for _, _, exchange in body:
                    hide(exchange, forms)
            for batch in batches([complete(*item) for item in body]):
                channel.send("rows", batch)
    except OSError:
        pass  # the load process is gone, and its rows with it


if __name__ == "__main__":
    # Messages name the classes of this module by its real name, not __main__.
    from hicache_bench.locust_user.folding import main as serve

    serve(sys.argv[1])
