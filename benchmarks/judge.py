"""How often the judge is wrong, how often it is right, and what simpler judges say of the same runs (seeded).

    python benchmarks/judge.py                 # error, power, coverage: about 6 minutes on two cores
    python benchmarks/judge.py --pairs 100     # quick
    python benchmarks/judge.py --scale 5000000 # time and memory of comparing two runs of so many rows

Runs are simulated request by request on one plan: sessions of 4 turns, lognormal prompts, autocorrelated noise,
a drift within the run, 2 % heavy-tailed stalls, a cache that warms up. A run has its own factors for TTFT and for
pace; `spread` is the standard deviation of TTFT p50 over runs that comes out, `range` the usual (largest - smallest)
of 5 runs. Drift from run to run is a random walk over the order of the runs, A B B A unless said otherwise.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hicache_bench.analysis.figures import FIGURES, with_primary
from hicache_bench.analysis.replicates import ALPHA
from hicache_bench.analysis.verdict import replicated

REQUESTS = 2000
MS = 1e6


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    runs: int = 5
    own: float = 0.029  # spread of a run's own TTFT factor
    walk: float = 0.0  # step of the random walk over runs
    shift: float = 0.0  # what NEW adds to TTFT
    interleaved: bool = True
    share: float = 1.0  # of the pairs asked for
    primary: tuple[str, ...] = ()


SCENARIOS = (
    Scenario("A/A, sd 3 %"),
    Scenario("A/A, walk", own=0.012, walk=0.01, share=0.5),
    Scenario("A/A, walk, not interleaved", own=0.012, walk=0.01, interleaved=False, share=0.3),
    Scenario("A/A, 4 v 4", runs=4, share=0.3),
    Scenario("A/A, walk, 10 pairs", runs=10, own=0.012, walk=0.01, share=0.3),
    Scenario("+5 %, range 3 %, 5 v 5", own=0.0108, shift=0.05, share=0.4),
    Scenario("+5 %, range 3 %, 4 v 4", runs=4, own=0.0108, shift=0.05, share=0.3),
    Scenario("+5 %, sd 3 %, 5 v 5", shift=0.05, share=0.3),
    Scenario("+5 %, sd 3 %, 5 v 5, one primary row", shift=0.05, share=0.3, primary=("ttft p50",)),
    Scenario("+5 %, sd 3 %, 12 v 12", runs=12, shift=0.05, share=0.2),
    Scenario("+5 %, sd 3 % by walk, 8 pairs", runs=8, own=0.008, walk=0.02, shift=0.05, share=0.3),
    Scenario("no shift, range 1 %: same?", own=0.002, share=0.2),
    Scenario("+1 % (below the floor), 5 v 5", own=0.002, shift=0.01, share=0.2),
)


def plan(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"prompt": rng.lognormal(7, 0.6, REQUESTS), "output": rng.integers(16, 128, REQUESTS).astype(float)}


def autocorrelated(rng: np.random.Generator, n: int, rho: float, sd: float) -> np.ndarray:
    from scipy.signal import lfilter

    return lfilter([sd * math.sqrt(1 - rho**2)], [1, -rho], rng.standard_normal(n))


def simulate(rng: np.random.Generator, load: dict[str, np.ndarray], ttft_factor: float, pace_factor: float):
    """(row values, TTFT of every request in ns) of one run."""
    at = np.linspace(0, 1, REQUESTS)
    warm = np.clip(at / 0.2, 0, 1)
    hit = np.clip(0.7 * warm + 0.05 * rng.standard_normal(REQUESTS), 0, 0.95)
    noise = autocorrelated(rng, REQUESTS, 0.6, 0.12) + 0.03 * rng.standard_normal() * (at - 0.5)
    stalls = np.where(rng.random(REQUESTS) < 0.02, 1 + rng.pareto(1.5, REQUESTS), 1)
    ttft = (20 + 0.1 * load["prompt"] * (1 - hit)) * np.exp(noise + ttft_factor) * stalls * MS
    tpot = 12 * MS * np.exp(autocorrelated(rng, REQUESTS, 0.8, 0.05) + pace_factor)
    gaps = (tpot[:, None] * rng.lognormal(-0.02, 0.2, (REQUESTS, 8))).ravel()
    e2e = ttft + tpot * load["output"]
    ok = rng.random(REQUESTS) > 0.002
    span_s = e2e.sum() / 8 / 1e9
    found: dict[str, float | None] = dict.fromkeys(figure.name for figure in FIGURES)
    service = ttft - np.abs(rng.normal(0.1 * MS, 0.05 * MS, REQUESTS))
    for name, values in (("ttft", ttft), ("ttft_service", service), ("tpot", tpot), ("e2e", e2e), ("itl", gaps)):
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        found |= {f"{name} p50": p50, f"{name} p90": p90, f"{name} p99": p99, f"{name} mean": values.mean()}
    cached = hit * load["prompt"]
    found |= {
        "requests_per_s": ok.sum() / span_s, "output_per_s": load["output"][ok].sum() / span_s,
        "input_per_s": load["prompt"][ok].sum() / span_s, "hit_ratio": cached.sum() / load["prompt"].sum(),
        "hit_device": 0.6 * cached.sum() / load["prompt"].sum() + 0.002 * rng.standard_normal(),
        "hit_host": 0.4 * cached.sum() / load["prompt"].sum() + 0.002 * rng.standard_normal(),
        "goodput": float((ok & (ttft < 150 * MS)).mean()), "error_rate": float(1 - ok.mean()), "shed_rate": 0.0,
    }  # fmt: skip
    return found, ttft


def one(scenario: Scenario, seed: int) -> dict[str, float]:
    rng = np.random.default_rng((seed, sum(map(ord, scenario.name))))
    load, n = plan(rng), scenario.runs
    order = ("ABBA" * n)[: 2 * n] if scenario.interleaved else "A" * n + "B" * n
    walk = np.cumsum(scenario.walk * rng.standard_normal(2 * n))
    sides: dict[str, list] = {"A": [], "B": []}
    for number, side in enumerate(order):
        shared = walk[number]
        ttft = shared + scenario.own * rng.standard_normal() + (math.log1p(scenario.shift) if side == "B" else 0)
        sides[side].append((*simulate(rng, load, ttft, 0.5 * shared + 0.5 * scenario.own * rng.standard_normal()),))
    base, new = ([values for values, _ in sides[side]] for side in "AB")
    blocked = scenario.interleaved and n >= 8
    figures = with_primary(scenario.primary) if scenario.primary else FIGURES
    found = replicated(base, new, blocked=blocked, figures=figures)
    words = {name: delta.verdict for name, delta in found.items()}
    ttft = found["ttft p50"]
    said = [word in ("better", "worse") for word in words.values()]
    truth = scenario.shift
    return {
        "any": any(said),
        "ttft": words["ttft p50"] in ("better", "worse"),
        "same": words["ttft p50"] == "same",
        "covered": ttft.low is not None and ttft.low <= truth <= ttft.high,
        "rank_holm": holm(found),
        "naive": naive(base[0], new[0]),
        "welch": welch([x for _, x in sides["A"]], [x for _, x in sides["B"]]),
        "spread": float(np.std(np.log([v["ttft p50"] for v in base]), ddof=1)) ** 2,
        "range": float(np.ptp(np.log([v["ttft p50"] for v in base]))),
    }


def holm(found) -> bool:
    """Exact rank tests of all rows with Holm's correction: any below 0.05?"""
    p = [delta.p_rank for delta in found.values() if delta.p_rank is not None]
    return min(p) * len(p) < ALPHA


def naive(base, new) -> bool:
    """One run a side; a TTFT or end-to-end percentile 5 % apart is news."""
    names = [f"{metric} {point}" for metric in ("ttft", "e2e") for point in ("p50", "p90", "p99")]
    return any(abs(new[name] / base[name] - 1) > 0.05 for name in names)


def welch(base, new) -> bool:
    """Welch's t test on the logarithms of all requests, as if each were a replicate."""
    from scipy.stats import ttest_ind

    return bool(ttest_ind(np.log(np.concatenate(base)), np.log(np.concatenate(new)), equal_var=False).pvalue < ALPHA)


def report(pairs: int, seed: int, workers: int) -> None:
    print(f"{'scenario':<38}{'pairs':>6}{'spread':>8}{'range':>7}{'any':>7}{'ttft':>7}{'same':>7}{'cover':>7}"
          f"{'rank+Holm':>11}{'naive':>7}{'Welch':>7}{'s':>6}")  # fmt: skip
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for scenario in SCENARIOS:
            began, count = time.monotonic(), max(20, round(pairs * scenario.share))
            found = list(pool.map(one, [scenario] * count, range(seed, seed + count), chunksize=5))
            mean = {key: float(np.mean([item[key] for item in found])) for key in found[0]}
            print(f"{scenario.name:<38}{count:>6}{math.sqrt(mean['spread']):>8.2%}{mean['range']:>7.1%}"
                  + "".join(f"{mean[key]:>7.1%}" for key in ("any", "ttft", "same", "covered"))
                  + f"{mean['rank_holm']:>11.1%}{mean['naive']:>7.1%}{mean['welch']:>7.1%}"
                  + f"{time.monotonic() - began:>6.0f}", flush=True)  # fmt: skip
    print("any: some row better or worse. ttft: TTFT p50 is. cover: its 95 % interval holds the truth. "
          "naive: one run a side, 5 %. Welch: on requests.")  # fmt: skip


# --------------------------------------------------------------------------- scale


def make_run(root: Path, rows: int, factor: float, chunks: int, seed: int) -> Path:
    """A run directory of so many rows, written without going through rows of Python objects."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hicache_bench.store.rundir import RunDir
    from hicache_bench.store.schema import ATTEMPT_SCHEMA, write_options

    rng, part = np.random.default_rng(seed), 100_000
    run, start = RunDir.create(root, "scale"), 10**15
    end = start + rows * 50_000 + 60 * 10**9
    run.write_json("run.json", {"status": "complete", "name": "scale", "plan_digest": "x", "loop": "open",
                                "origin": "simulated", "start_state": "cold", "seed": 0, "warnings": [],
                                "measure_start_ns": start, "measure_end_ns": end,
                                "started_wall_ns": time.time_ns()})  # fmt: skip
    (run.path / "requests").mkdir()
    for number, first in enumerate(range(0, rows, part)):
        n = min(part, rows - first)
        index = np.arange(first, first + n)
        prompt = rng.integers(200, 4000, n)
        device, host = (rng.random((2, n)) * prompt / 3).astype(np.int64)
        scheduled = start + index * 50_000
        sent = scheduled + rng.integers(1_000, 90_000, n)
        ttft = ((20 + 0.02 * (prompt - device - host)) * rng.lognormal(0, 0.2, n) * factor * MS).astype(np.int64)
        gap = (12 * MS * rng.lognormal(0, 0.2, (n, chunks))).astype(np.int64)
        gap[:, 0] = 0
        stamps = (sent + ttft)[:, None] + np.cumsum(gap, axis=1)
        offsets = pa.array(np.arange(0, n * chunks + 1, chunks, dtype=np.int32))
        columns = {
            "session": index // 4, "turn": index % 4, "attempt": np.zeros(n, np.int64), "scheduled_ns": scheduled,
            "sent_ns": sent, "first_token_ns": stamps[:, 0], "first_content_ns": stamps[:, 0],
            "last_token_ns": stamps[:, -1], "done_ns": stamps[:, -1] + 1000, "prompt_tokens": prompt,
            "output_tokens": np.full(n, chunks), "cached_tokens": device + host, "device_tokens": device,
            "host_tokens": host, "storage_tokens": np.zeros(n, np.int64),
        }  # fmt: skip
        words = {"stream": "s", "kind": "unique", "label": "", "phase": "measure", "api": "generate", "clock": "loop",
                 "outcome": "ok", "token_source": "server"}  # fmt: skip
        arrays = []
        for item in ATTEMPT_SCHEMA:
            if item.name in columns:
                arrays.append(pa.array(columns[item.name]))
            elif item.name in words:
                arrays.append(pa.array([words[item.name]] * n).dictionary_encode())
            elif item.name == "chunk_ns":
                arrays.append(pa.ListArray.from_arrays(offsets, pa.array(stamps.ravel())))
            elif item.name == "chunk_tokens":
                arrays.append(pa.ListArray.from_arrays(offsets, pa.array(np.ones(n * chunks, np.int32))))
            else:
                arrays.append(pa.nulls(n, item.type))
        table = pa.Table.from_arrays([a.cast(f.type) for a, f in zip(arrays, ATTEMPT_SCHEMA, strict=True)],
                                     schema=ATTEMPT_SCHEMA)  # fmt: skip
        pq.write_table(table, run.path / "requests" / f"part-{number:05d}.parquet", **write_options(table.schema))
    return run.path


def scale(rows: int, chunks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = [make_run(Path(folder), rows, factor, chunks, seed) for seed, factor in enumerate((1.0, 1.05))]
        size = sum(path.stat().st_size for run in runs for path in run.rglob("*") if path.is_file())
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "hicache_bench", "compare", *map(str, runs), "--metric", "ttft*"],
                              check=True, capture_output=True, text=True)  # fmt: skip
        spent = time.monotonic() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(done.stdout)
        print(f"two runs of {rows:,} rows, {chunks} chunks each ({size / 2**30:.2f} GiB): {spent:.1f} s "
              f"({used.ru_utime + used.ru_stime:.1f} s of CPU), {used.ru_maxrss / 2**20:.2f} GiB")  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=1000, help="simulated pairs of sets of the first scenario")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--scale", type=int, help="rows a run; measures time and memory instead")
    options.add_argument("--chunks", type=int, default=8, help="chunks a row with --scale")
    given = options.parse_args()
    if given.scale:
        scale(given.scale, given.chunks)
    else:
        report(given.pairs, given.seed, given.workers)


if __name__ == "__main__":
    main()
