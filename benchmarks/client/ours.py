"""One run of this package's client against a server, without the phases around it; prints one JSON line.

    python ours.py --port 8100 --lane fast --sink recorder -c 32 -n 20000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.driver import Driver
from hicache_bench.load.fast import FastTransport
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.pacing import count_schedule
from hicache_bench.recording import Recorder
from hicache_bench.records import ClosedLoop, OpenLoop, Plan, Prompt, Segment, Session, Stop, Turn
from hicache_bench.store.reader import read_attempts
from hicache_bench.wire.fold import fold
from hicache_bench.workload.tokens import TokenSpace

LANES = {
    "fast": lambda url, n: FastTransport(url, {}, connections=n),
    "fast-loopstamps": lambda url, n: FastTransport(url, {}, connections=n, kernel_stamps=False),
    "aiohttp": lambda url, n: AiohttpTransport(url, {}),
}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plan(args) -> Plan:
    sessions = tuple(Session(i, "s", "unique", (Turn(Prompt((Segment(f"p{i}", args.prompt),), n_tokens=args.prompt),
                                                     64, prompt_tokens=args.prompt),)) for i in range(args.n))
    if args.rate:
        offsets = count_schedule("poisson", args.rate, args.n, seed=args.seed)
        return Plan("b", 0, sessions, offsets, OpenLoop(100_000), Stop(), "-")
    return Plan("b", 0, sessions, np.zeros(args.n, dtype=np.int64), ClosedLoop(args.c), Stop(), "-")


async def run(args, run_dir: Path) -> dict:
    transport = LANES[args.lane](f"http://127.0.0.1:{args.port}", args.c)
    recorder = Recorder(run_dir) if args.sink == "recorder" else None
    kept: list = []
    builder = RequestBuilder(TokenSpace.random_ids(100, 5000, "n"), RequestOptions())
    driver = Driver(transport, builder, recorder.put if recorder else lambda *item: kept.append(item))
    the_plan = plan(args)
    driver.prebuild(the_plan)
    if recorder:
        await asyncio.to_thread(recorder.wait_ready)
        if args.recorder_nice:
            os.setpriority(os.PRIO_PROCESS, recorder._process.pid, args.recorder_nice)
    await transport.open()
    child0 = cpu_s(recorder._process.pid) if recorder else 0.0
    cpu0 = time.process_time()
    result = await driver.run(the_plan)
    cpu = time.process_time() - cpu0
    out = {"n": args.n, "seconds": (result.end_ns - result.start_ns) / 1e9, "client_cpu_us": cpu / args.n * 1e6}
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await transport.close()
    if recorder:
        # The recorder's own figure is read before it has ended: its last rows are still open then.
        await asyncio.to_thread(recorder.close)
        tail = time.process_time() - cpu0
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        out["all_cpu_us"] = (tail + children.ru_utime + children.ru_stime - child0) / args.n * 1e6
        rows = read_attempts(run_dir)
    out |= {"rss_mb": rss}
    return out | (figures_of_rows(rows) if recorder else figures_of_items(kept))


def figures_of_rows(rows) -> dict:
    names = ("sent_ns", "first_token_ns", "last_token_ns", "scheduled_ns", "chunk_ns", "clock", "outcome")
    got = {name: rows.column(name).to_pylist() for name in names}
    return figures([(s, f, last, due, len(chunks)) for s, f, last, due, chunks in zip(
        got["sent_ns"], got["first_token_ns"], got["last_token_ns"], got["scheduled_ns"], got["chunk_ns"],
        strict=True)], got["clock"], got["outcome"])


def figures_of_items(items) -> dict:
    rows = []
    outcomes = []
    for row, request, exchange in items:
        folded = fold(request, exchange)
        outcomes.append(folded.outcome)
        rows.append((exchange.sent_ns, folded.first_token_ns, folded.last_token_ns, row.scheduled_ns,
                     len(folded.chunk_ns)))
    return figures(rows, [exchange.clock for _, _, exchange in items], outcomes)


def figures(rows, clocks, outcomes) -> dict:
    ok = [row for row in rows if row[1] is not None]
    if not ok:
        return {"outcomes": {name: outcomes.count(name) for name in set(outcomes)}}
    ttft = np.array([first - sent for sent, first, *_ in ok]) / 1e6
    itl = np.array([(last - first) / max(1, n - 1) for _, first, last, _, n in ok]) / 1e6
    lag = np.array([sent - due for sent, _, _, due, _ in ok if due is not None]) / 1e6
    gaps = np.diff(np.sort([sent for sent, *_ in ok]))
    return {
        "ttft_p50_ms": float(np.quantile(ttft, 0.5)), "ttft_p99_ms": float(np.quantile(ttft, 0.99)),
        "itl_mean_ms": float(itl.mean()), "itl_p50_ms": float(np.quantile(itl, 0.5)),
        "itl_p99_ms": float(np.quantile(itl, 0.99)),
        "late_p50_ms": float(np.quantile(lag, 0.5)), "late_p99_ms": float(np.quantile(lag, 0.99)),
        "send_cv": float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() else None,
        "kernel": clocks.count("kernel") / len(clocks),
        "outcomes": {name: outcomes.count(name) for name in set(outcomes)},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lane", choices=LANES, default="fast")
    parser.add_argument("--sink", choices=("recorder", "memory"), default="recorder")
    parser.add_argument("-c", type=int, default=32)
    parser.add_argument("-n", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--recorder-nice", type=int, default=0, help="priority of the recorder process, e.g. 10")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        import uvloop
        uvloop.install()
    except ImportError:
        pass
    with tempfile.TemporaryDirectory() as where:
        out = asyncio.run(run(args, Path(where)))
    sys.stdout.write(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
