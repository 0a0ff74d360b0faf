"""Rows and runs made by hand for the analysis tests. Instants are milliseconds after T0."""

from hicache_bench.analysis.rows import rows_of
from hicache_bench.records import Attempt
from hicache_bench.store.rundir import RunDir
from hicache_bench.store.schema import rows_to_table
from hicache_bench.store.writer import PartWriter

MS = 1_000_000
T0 = 9_000_000_000_000_000  # a host up for 104 days: float64 nanoseconds would round


def at(ms):
    return None if ms is None else T0 + round(ms * MS)


def attempt(scheduled=0.0, sent=0.0, chunks=(), done=None, **fields):
    """`chunks` are (ms, tokens); first, last and output tokens follow from them unless given."""
    stamps = [at(ms) for ms, _ in chunks]
    row = Attempt(0, 0, 0, "s", "shared_prefix", "", "measure", "generate", True)
    row.scheduled_ns, row.sent_ns = at(scheduled), at(sent)
    row.chunk_ns, row.chunk_tokens = stamps, [tokens for _, tokens in chunks]
    if chunks:
        row.first_token_ns = row.first_content_ns = stamps[0]
        row.last_token_ns, row.output_tokens = stamps[-1], sum(tokens for _, tokens in chunks)
        row.token_source = "server"
    row.done_ns = at(done) if done is not None else (stamps[-1] if stamps else None)
    for name, item in fields.items():
        assert hasattr(row, name), name
        setattr(row, name, item)
    return row


def rows(*attempts, **how):
    return rows_of(rows_to_table(list(attempts)), **how)


META = {
    "status": "complete", "name": "w", "workload": "w", "plan_digest": "abc", "loop": "open", "load": {"limit": 8},
    "origin": "real", "start_state": "cold", "seed": 0, "warnings": [],
    "server": {"model": "tiny", "version": "0.5.23"},
}  # fmt: skip


def run_dir(root, *attempts, flags=None, **meta):
    run = RunDir.create(root, "w")
    run.write_json("run.json", META | meta)
    if flags is not None:
        run.write_json("server.json", {"flags": flags})
    writer = PartWriter(run.path)
    writer.add(attempts)
    writer.close()
    return run
