"""Run directories of several sessions, for the tests of the judge."""

import numpy as np

from tests.analysis.build import META, MS, T0, attempt, run_dir

SPEC = {"name": "w", "seed": 0, "load": {"concurrency": 2}, "stream": [{"name": "s", "kind": "unique", "share": 1.0}]}


def attempts(seed=0, sessions=24, turns=2, ttft=1.0, gap=1.0, hit=0.5, host=0.2, fail=0):
    """Requests of one plan (equal sizes for every seed) on a server with its own noise."""
    plan, rng = np.random.default_rng(7), np.random.default_rng(seed)
    found = []
    for session in range(sessions):
        for turn in range(turns):
            prompt = int(plan.integers(400, 1200))
            cached = int(prompt * hit) // 8 * 8
            from_host = int(prompt * host * plan.random()) // 8 * 8
            start = session * 40 + turn * 18 + rng.uniform(0, 0.5)
            first = start + (5 + 0.02 * (prompt - cached) + 0.005 * from_host) * ttft * rng.lognormal(0, 0.05)
            chunks = [(first + 3 * gap * i * rng.lognormal(0, 0.02), 1) for i in range(4)]
            row = attempt(start, start, sorted(chunks), prompt_tokens=prompt, cached_tokens=cached,
                          device_tokens=cached - from_host, host_tokens=from_host, storage_tokens=0)  # fmt: skip
            row.session, row.turn = session, turn
            if session * turns + turn < fail:
                row.outcome, row.error = "http", "no"
            found.append(row)
    return found


def simple_run(root, seed=0, at=0, rows=None, spec=SPEC, **change):
    """One complete run that began `at` seconds after the first."""
    keys = ("sessions", "turns", "ttft", "gap", "hit", "host", "fail")
    how = {key: change.pop(key) for key in keys if key in change}
    flags = change.pop("flags", None)
    meta = {"started_wall_ns": (1_000 + at) * 10**9, "measure_start_ns": T0, "measure_end_ns": T0 + 1_200 * MS} | change
    run = run_dir(root, *(attempts(seed, **how) if rows is None else rows), flags=flags, **META | meta)
    if spec is not None:
        run.write_json("plan.json", {"spec": spec})
    return run


def make_set(root, n=4, seed=0, at=0, step=2, **change):
    """n runs in the folder `root`, `step` seconds apart."""
    return [simple_run(root, seed + i, at + i * step, **change) for i in range(n)]
