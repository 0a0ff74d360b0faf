"""How true the simulated server's time is: many paced streams, one core for the server, one for the client.

    python benchmarks/served.py [--streams 500] [--tokens 100] [--decode-ms 50]

Prints how far the gap between two tokens, at this client, is from the decode step it should be (ms), for steps in
which nothing is prefilled, with the CPU both sides used. Run it on an idle machine: it needs both cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time

import numpy as np

from hicache_bench.clock import NS_PER_MS
from hicache_bench.load.fast import FastTransport
from hicache_bench.records import Exchange
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.process import spawn_server
from hicache_bench.wire.fold import fold
from hicache_bench.wire.generate import build_generate


async def ask(transport: FastTransport, number: int, tokens: int) -> list[int]:
    request = build_generate(input_ids=[number, *range(64)], text=None, max_new_tokens=tokens, streamed=True,
                             ignore_eos=True, incremental=True)
    exchange = Exchange()
    await transport.send(request, exchange, None)
    found = fold(request, exchange)
    assert found.outcome == "ok", (found.outcome, found.error)
    return found.chunk_ns


async def drive(url: str, streams: int, tokens: int) -> list[list[int]]:
    transport = FastTransport(url, {}, connections=streams)
    await transport.open()
    try:
        return await asyncio.gather(*(ask(transport, number, tokens) for number in range(streams)))
    finally:
        await transport.close()


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--decode-ms", type=float, default=50.0)
    args = parser.parse_args()
    config = SimConfig(costs="free", decode_ms=args.decode_ms, max_running_requests=args.streams,
                       max_total_tokens=4_000_000, incremental_streaming_output=True)
    with spawn_server(config) as server:
        os.sched_setaffinity(server.pid, {0})
        os.sched_setaffinity(0, {1})
        asyncio.run(drive(server.url, 4, 4))
        before, start = cpu_s(server.pid), time.process_time()
        began = time.monotonic()
        stamps = asyncio.run(drive(server.url, args.streams, args.tokens))
        wall = time.monotonic() - began
        server_cpu, client_cpu = cpu_s(server.pid) - before, time.process_time() - start
    # The first steps belong to the start, when streams still join.
    gaps = np.concatenate([np.diff(one)[10:] for one in stamps]) / NS_PER_MS
    off = np.abs(gaps - args.decode_ms)
    print(f"{args.streams} streams x {args.tokens} tokens, a step of {args.decode_ms:g} ms, {wall:.1f} s")
    print(f"gap off by (ms): p50 {np.percentile(off, 50):.2f}  p99 {np.percentile(off, 99):.2f}  max {off.max():.1f}")
    print(f"CPU: server {server_cpu / wall:.0%} of a core, client {client_cpu / wall:.0%}")


if __name__ == "__main__":
    main()
