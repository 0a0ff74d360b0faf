"""How fast the simulator is: blocks a second over a real trace, memory, cost growth, and what a second core brings.

    python benchmarks/simulator.py --trace conversation_trace.jsonl [--largest 1000000] [--part trace]

The trace is Mooncake's (github.com/kvcache-ai/Mooncake, FAST25-release/traces). CPU seconds, and the same divided by
those of a plain Python loop measured beside it, so that figures of a busy or slow machine can be compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from hicache_bench.cachesim.cache import HiCache
from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import COSTS, replace_costs
from hicache_bench.cachesim.engine import Engine
from hicache_bench.cachesim.jobs import Job
from hicache_bench.simulate.setup import Setup
from hicache_bench.simulate.sweep import sweep
from hicache_bench.workload.spec import parse_spec

BLOCK = 512
COSTS_FAST = replace_costs(COSTS["toy"], name="fast enough for the trace", prefill_tokens_per_s=200_000,
                           attention_ms_per_1k_x_1k=0.002)
LOOP = 5_000_000


def tiers(chunk: int | None = 8192) -> CacheConfig:
    return CacheConfig(page_size=BLOCK, device_tokens=10_000 * BLOCK, host_tokens=30_000 * BLOCK, storage=True,
                       prefetch_policy="wait_complete", chunked_prefill_size=chunk)


def loop_s() -> float:
    """CPU seconds of five million additions: the machine's speed right now."""
    start, total = time.process_time(), 0
    for number in range(LOOP):
        total += number
    return time.process_time() - start


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(name: str, blocks: int, seconds: float, beside_s: float, more: str = "") -> None:
    print(f"{name:34} {blocks:>9,} blocks {seconds:7.2f} s CPU {blocks / seconds:>9,.0f} blocks/s "
          f"{seconds / beside_s:6.2f} loops {peak_mib():6.0f} MiB peak  {more}", flush=True)


def trace_jobs(rows: list[dict]) -> Iterator[tuple[Job, int]]:
    for number, row in enumerate(rows):
        yield (Job(number, row["hash_ids"], row["input_length"], row["output_length"]),
               round(row["timestamp"] * 1e6))


def whole_trace(rows: list[dict]) -> None:
    blocks = sum(len(row["hash_ids"]) for row in rows)
    for chunk in (None, 8192):
        beside, cache, start = loop_s(), HiCache(tiers(chunk)), time.process_time()
        for row in rows:
            cache.run_one(row["hash_ids"], row["input_length"], 1)
        report(f"cache alone, chunk {chunk}", blocks, time.process_time() - start, beside)
        beside, engine, start = loop_s(), Engine(tiers(chunk), COSTS_FAST), time.process_time()
        for job, at_ns in trace_jobs(rows):
            engine.advance(max(at_ns, engine.now_ns))
            engine.submit(job, engine.now_ns)
        engine.run()
        seconds, totals = time.process_time() - start, engine.totals
        report(f"engine, chunk {chunk}", blocks, seconds, beside,
               f"device {totals.device_tokens / totals.prompt_tokens:.3f} host "
               f"{totals.host_tokens / totals.prompt_tokens:.3f} storage "
               f"{totals.storage_tokens / totals.prompt_tokens:.3f}, {totals.decode_steps:,} decode steps")


def growth(largest: int) -> None:
    """Requests of 16 pages over a Zipf-like set of prefixes on a fixed cache: cost a request, and memory."""
    size = 1000
    while size <= largest:
        config = CacheConfig(page_size=64, device_tokens=64 * 4096, host_ratio=2.0, storage=True, storage_pages=16_384,
                             prefetch_policy="wait_complete")
        beside, engine, start = loop_s(), Engine(config, replace_costs(COSTS["toy"], prefill_tokens_per_s=10**6)), \
            time.process_time()
        for number in range(size):
            group = int(1.002 ** (number * 7919 % 3000))
            keys = [*((group, page) for page in range(12)), *((number, page) for page in range(12, 16))]
            engine.advance(number * 12_000_000)
            engine.submit(Job(number, keys, 1030, 4), engine.now_ns)
        engine.run()
        seconds = time.process_time() - start
        report(f"{size:,} requests", 16 * size, seconds, beside, f"{1e6 * seconds / size:.0f} us/request")
        size *= 10


def two_cores(trace: Path, requests: int, points: int) -> None:
    spec = parse_spec({"name": "sweep", "load": {"arrival": "trace", "requests": requests, "limit": 4096}, "stream": [
        {"name": "t", "kind": "trace", "format": "mooncake", "path": str(trace.resolve())}]})
    setups = [Setup(CacheConfig(page_size=BLOCK, device_tokens=2000 * BLOCK, host_ratio=0.25 * (1 + point),
                                chunked_prefill_size=8192), COSTS_FAST) for point in range(points)]
    took = {}
    for jobs in (1, 2):
        start = time.perf_counter()
        sweep(setups, spec, Path(), jobs=jobs)
        took[jobs] = time.perf_counter() - start
    print(f"sweep of {points} points over {requests:,} requests: {took[1]:.1f} s on one process, {took[2]:.1f} s on "
          f"two: {took[1] / took[2]:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=20_000, help="of the trace, at most")
    parser.add_argument("--largest", type=int, default=100_000, help="requests of the largest growth step")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--part", choices=["trace", "growth", "sweep"], help="only this one")
    given = parser.parse_args()
    with given.trace.open() as lines:
        rows = [json.loads(line) for line in lines][: given.requests]
    if given.part in (None, "trace"):
        whole_trace(rows)
    if given.part in (None, "growth"):
        growth(given.largest)
    if given.part in (None, "sweep"):
        two_cores(given.trace, min(len(rows), 1000), given.points)


if __name__ == "__main__":
    main()
