"""Clients in turn against the fake server, on different cores; CPU time, rates and errors against its truth.

    python compare.py --cell coalesced --rounds 3 --peer 'rust=PEER --base-url {url} --num-prompts {n} ...'

A client is a command with {port} {url} {n} {conc} {rate} in it; those of `BUILT_IN` are named by
--client. CPU time of a whole process tree is taken from its rusage at two sizes, so that start-up cancels
out: (CPU(n) - CPU(n/5)) / (n - n/5). The clients run in turn, round by round, and ratios are taken within a
round; on a shared machine only those and CPU time are worth reading.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
CELLS = {
    # ttft_us, itl_us, coalesce, concurrency, rate, requests
    "coalesced": (0, 0, 1, 32, 0, 5000),
    "tokenwise": (0, 0, 0, 32, 0, 3000),
    "paced256": (50_000, 10_000, 0, 256, 0, 2000),
    "paced64": (50_000, 10_000, 0, 64, 0, 600),
    "open200": (20_000, 2_000, 0, 64, 200, 2000),
    "open1000": (5_000, 0, 1, 64, 1000, 5000),
}
TOKENS = 64
OURS = f"{sys.executable} {HERE / 'ours.py'} --port {{port}} -c {{conc}} -n {{n}} --rate {{rate}}"
BUILT_IN = {
    "fast": OURS + " --lane fast",
    "fast-shy": OURS + " --lane fast --recorder-nice 10",
    "fast-memory": OURS + " --lane fast --sink memory",
    "fast-loopstamps": OURS + " --lane fast-loopstamps",
    "aiohttp": OURS + " --lane aiohttp",
    "limit": "{limit} {port} {conc} {n}",
}


def get(port: int, path: str) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.loads(answer.read())


def build(into: Path) -> tuple[Path, Path]:
    for name, libraries in (("server", ["-lm"]), ("limit", [])):
        subprocess.run(["cc", "-O2", "-o", into / name, HERE / f"{name}.c", *libraries], check=True)
    return into / "server", into / "limit"


def run(command: str, values: dict, core: int, cell: tuple, timeout_s: float) -> dict:
    """One client run: its own JSON line, its rusage and the server's truth."""
    ttft_us, itl_us, coalesce = cell[:3]
    get(values["port"], f"/set?ttft_us={ttft_us}&itl_us={itl_us}&tokens={TOKENS}&coalesce={coalesce}")
    argv = shlex.split(command.format(**values))
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True,
                                   preexec_fn=lambda: os.sched_setaffinity(0, [core]))
        deadline = time.monotonic() + timeout_s
        while (done := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(done[1])
        out.seek(0)
        lines = [line for line in out.read().decode("utf-8", "replace").splitlines() if line.startswith("{")]
    use = done[2]
    own = json.loads(lines[-1]) if lines else {}
    return {"cpu_us": (use.ru_utime + use.ru_stime) * 1e6, "rss_mb": use.ru_maxrss / 1024, "rc": process.returncode,
            "own": own, "truth": get(values["port"], "/truth")}


def measure(command: str, values: dict, core: int, cell: tuple, timeout_s: float) -> dict:
    small = max(1, values["n"] // 5)
    less = run(command, values | {"n": small}, core, cell, timeout_s)
    more = run(command, values, core, cell, timeout_s)
    own, truth = more["own"], more["truth"]
    served = truth["n"] - less["truth"]["n"]
    all_us = (more["cpu_us"] - less["cpu_us"]) / max(1, served)
    span = truth["last_s"] - truth["first_s"]
    found = {
        "rc": more["rc"], "n": truth["n"], "all_us": all_us, "chunk_us": all_us / TOKENS, "rss_mb": more["rss_mb"],
        "run_us": own.get("client_cpu_us"),
        "run_chunk_us": own["client_cpu_us"] / TOKENS if own.get("client_cpu_us") else None,
        "rps": truth["n"] / span if span > 0 else None, "arr_rate": truth["rate"], "arr_cv": truth["cv"],
        "late_p99_ms": own.get("late_p99_ms"), "kernel": own.get("kernel"),
    }
    for name, ours, theirs in (("ttft_p50", "ttft_p50_ms", "ttft_p50_us"), ("ttft_p99", "ttft_p99_ms", "ttft_p99_us"),
                               ("itl", "itl_mean_ms", "itl_mean_us"), ("itl_p50", "itl_p50_ms", "itl_p50_us"),
                               ("itl_p99", "itl_p99_ms", "itl_p99_us")):
        found[f"{name}_err_ms"] = own[ours] - truth[theirs] / 1000 if own.get(ours) is not None else None
    return found


def show(results: dict[str, list[dict]]) -> None:
    names = list(next(iter(results.values()))[0])
    width = max(map(len, results))
    sys.stdout.write(f"{'':{width}} " + " ".join(f"{name:>15}" for name in names) + "\n")
    for label, rounds in results.items():
        cells = []
        for name in names:
            values = [r[name] for r in rounds if r[name] is not None]
            cells.append(f"{statistics.median(values):15.3f}" if values else f"{'-':>15}")
        sys.stdout.write(f"{label:{width}} {' '.join(cells)}\n")
    first = next(iter(results))
    sys.stdout.write(f"ratio to {first}, median (min-max) of the rounds\n")
    for label, rounds in results.items():
        for name in ("run_us", "all_us"):
            pairs = [(mine[name], its["all_us"]) for mine, its in zip(rounds, results[first], strict=True)
                     if mine[name] is not None and its["all_us"] > 0]
            if pairs:
                ratios = [mine / its for mine, its in pairs]
                sys.stdout.write(f"  {label:{width}} {name:7} {statistics.median(ratios):7.3f} "
                                 f"({min(ratios):.3f}-{max(ratios):.3f})\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", choices=CELLS, default="coalesced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", action="append", choices=BUILT_IN, default=[])
    parser.add_argument("--peer", action="append", default=[], metavar="LABEL=COMMAND",
                        help="the first is the ratios' base")
    parser.add_argument("--port", type=int, default=8177)
    parser.add_argument("-n", type=int, help="requests of the longer run")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="below 0 (root): less noise from others, short runs only")
    parser.add_argument("--timeout", type=float, default=120)
    args = parser.parse_args()
    if args.nice:
        os.nice(args.nice)
    cell = CELLS[args.cell]
    clients = dict(peer.split("=", 1) for peer in args.peer)
    clients |= {name: BUILT_IN[name] for name in args.client or ["fast", "aiohttp", "limit"]}
    if cell[4]:
        clients.pop("limit", None)  # closed loop only
    with tempfile.TemporaryDirectory() as where:
        server_path, limit_path = build(Path(where))
        server = subprocess.Popen(["taskset", "-c", str(args.server_core), server_path, str(args.port)])
        try:
            time.sleep(0.3)
            values = {"port": args.port, "url": f"http://127.0.0.1:{args.port}", "conc": cell[3], "rate": cell[4],
                      "n": args.n or cell[5], "limit": limit_path}
            results: dict[str, list[dict]] = {label: [] for label in clients}
            for _ in range(args.rounds):
                for label, command in clients.items():
                    results[label].append(measure(command, values, args.client_core, cell, args.timeout))
                    sys.stdout.write(json.dumps({"client": label, **results[label][-1]}) + "\n")
                    sys.stdout.flush()
            show(results)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
