"""The load of llm-d's tiered-prefix-cache guide on the simulator, beside the guide's own figures.

    python benchmarks/llmd_table_a.py [--rates 5,10,20,40]

docs/simulator.md (Against published figures) says what was assumed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hicache_bench.cachesim.config import CacheConfig
from hicache_bench.cachesim.costs import COSTS
from hicache_bench.cachesim.engine import Engine
from hicache_bench.simulate.drive import Ended, PlanDriver
from hicache_bench.simulate.offline import plan_for
from hicache_bench.simulate.setup import Setup
from hicache_bench.workload.spec import parse_spec

SERVERS, GROUPS, SYSTEM, QUESTION, OUTPUT, STAGE_S = 8, 250, 16_000, 256, 256, 60
DEVICE, HOST, PAGE = 2_384_000, 10_496_000, 64
PUBLISHED = {  # QPS: (mean TTFT s, P90, tok/s) device only; the same with host memory
    5: ((1.62, 2.65, 74_638), (1.17, 1.79, 82_880)),
    10: ((8.08, 16.61, 122_388), (0.41, 1.31, 167_028)),
    20: ((43.67, 78.13, 114_663), (0.89, 2.66, 300_749)),
    40: ((115.57, 206.39, 115_645), (25.38, 48.14, 331_213)),
}


def stages(rates: list[int], hicache: bool) -> Iterator[tuple[float, float, float, float]]:
    """For each rate (mean TTFT s, P90, tokens/s of all servers, hit ratio): one server with its share of groups and
    requests, cold at first; a stage begins when the one before has drained."""
    config = CacheConfig(page_size=PAGE, device_tokens=DEVICE // SERVERS, hicache=hicache,
                         host_tokens=HOST // SERVERS if hicache else None, chunked_prefill_size=8192)
    setup = Setup(config, COSTS["llmd-qwen3-32b"])
    engine = Engine(config, setup.costs)
    for rate in rates:
        spec = parse_spec({
            "name": "table_a", "seed": 1, "drain": {"deadline": "2h"},
            "load": {"rate": f"{rate / SERVERS}/s", "duration": f"{STAGE_S}s", "limit": 1_000_000, "timeout": "0s"},
            "stream": [{"name": "p", "kind": "shared_prefix", "groups": round(GROUPS / SERVERS),
                        "prefix_tokens": SYSTEM, "suffix_tokens": QUESTION, "output_tokens": OUTPUT}]})
        ended: list[Ended] = []
        driver = PlanDriver(engine, plan_for(setup, spec, Path(), lambda text: None), ended.append,
                            drain_ns=spec.drain.deadline)
        driven = driver.run(engine.now_ns)
        results = [one.result for one in ended if one.result is not None]
        ttft = np.array([one.result.first_token_ns - one.scheduled_ns for one in ended]) / 1e9
        seconds = (driven.end_ns - driven.start_ns) / 1e9
        tokens = sum(result.job.n_tokens + result.n_out for result in results)
        hit = sum(result.cached_tokens for result in results) / sum(result.job.n_tokens for result in results)
        yield float(ttft.mean()), float(np.percentile(ttft, 90)), SERVERS * tokens / seconds, hit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="5,10,20,40")
    rates = [int(rate) for rate in parser.parse_args().rates.split(",")]
    print("QPS  tiers        | TTFT mean / P90 s: published   simulated | tok/s: published  simulated | hit")
    both = zip(rates, stages(rates, hicache=False), stages(rates, hicache=True), strict=True)
    for rate, *simulated in both:
        for name, (mean, p90, speed), got in zip(("device", "device+host"), PUBLISHED[rate], simulated, strict=True):
            print(f"{rate:3}  {name:12} | {mean:8.2f} / {p90:6.2f}   {got[0]:10.2f} / {got[1]:6.2f} | "
                  f"{speed:12,} {got[2]:12,.0f} | {got[3]:.2f}", flush=True)


if __name__ == "__main__":
    main()
