"""Records what a real SGLang server answers to random request histories: the golden answers of the cache simulator.

    python -m benchmarks.record_golden --start START --models DIR [--only NAME] [--out DIR]

START is a program `START PORT FLAGS...` that becomes a server on 127.0.0.1:PORT; it reads MAX_TOKENS, PAGE, CHUNK,
MODEL, LOAD and SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR from the environment. DIR holds the model folders `swa128`,
`mamba` and `mla`. One file a configuration, format in tests/cachesim/golden/README.md; files that exist are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.cachesim.histories import Act, Ask, Shape, history, token_ids

OUT = Path(__file__).parents[1] / "tests" / "cachesim" / "golden"
KEY = "golden"
START_S = 300.0
ANSWER_S = 60.0
SETTLE_S = 20.0
POLL_S = 0.03
LATE_LOOKS = 40

ANSWER = ("prompt_tokens", "completion_tokens", "cached_tokens", "device", "host", "storage")
COUNTERS = {
    "evicted_tokens_total": "evicted", "hicache_backup_tokens_total": "backup", "load_back_tokens_total": "load_back",
    "backuped_tokens_total": "backuped", "prefetched_tokens_total": "prefetched",
    "storage_prefetch_hit_tokens_total": "l3_hit", "hicache_dropped_tokens_total": "dropped",
    "storage_prefetch_unfulfilled_tokens_total": "unfulfilled", "storage_prefetch_deferred_tokens_total": "deferred",
}
"""Metric of SGLang (without `sglang:`) → name in the file; `/reason` or `/pool` follows where the metric has one."""
RESOLVED = (
    "max_total_num_tokens", "max_req_input_len", "page_size", "chunked_prefill_size", "max_running_requests",
    "swa_full_tokens_ratio", "radix_eviction_policy", "radix_eviction_policy_config", "schedule_policy",
    "disable_overlap_schedule", "enable_hierarchical_cache", "hicache_ratio", "hicache_write_policy",
    "hicache_io_backend", "hicache_mem_layout", "hicache_storage_backend", "hicache_storage_prefetch_policy",
    "hicache_storage_backend_extra_config", "max_mamba_cache_size", "mamba_radix_cache_strategy",
    "mamba_track_interval", "mamba_full_memory_ratio",
)
SIZES = ("max_total_num_tokens_swa", "hicache_host_total_tokens", "hicache_host_mamba_total_states")
LEVELS = ("hicache_host_used_tokens", "hicache_host_mamba_used_states", "kv_available_tokens", "kv_evictable_tokens",
          "kv_used_tokens", "swa_available_tokens", "swa_evictable_tokens", "swa_used_tokens")
SAMPLE = re.compile(r"^sglang:(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

HICACHE = ("--enable-hierarchical-cache", "--hicache-io-backend", "direct", "--hicache-mem-layout", "page_first_direct")


@dataclass(frozen=True)
class Config:
    """One way to start the server, and the histories it is asked. `prefetch` None means no L3, `ratio` None no
    HiCache at all; `longest` bounds ordinary prompts (None: a little under half the pool). With `replay` the first
    history is played twice: what differs then is no fact but a race."""

    name: str
    page: int
    pool: int
    ratio: float | None = 2.0
    write: str = "write_through"
    prefetch: str | None = "wait_complete"
    chunk: int = 8192
    model: str = ""
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    longest: int | None = None
    near_pool: bool = True
    histories: int = 2
    ops: int = 66
    replay: bool = False
    restart: bool = False
    priorities: bool = False
    group: int = 1

    def shape(self) -> Shape:
        longest = self.longest or self.pool * 9 // (20 * self.group)
        return Shape(self.page, self.pool, longest, self.ops, self.prefetch is not None,
                     self.near_pool and self.group == 1, self.restart, self.priorities, self.group)

    def arguments(self) -> list[str]:
        given = [*self.flags, "--admin-api-key", KEY]
        if self.ratio is not None:
            given += [*HICACHE, "--hicache-ratio", str(self.ratio), "--hicache-write-policy", self.write]
        if self.prefetch is not None:
            given += ["--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", self.prefetch]
        return given

    def environment(self) -> dict[str, str]:
        return {"MAX_TOKENS": str(self.pool), "PAGE": str(self.page), "CHUNK": str(self.chunk), **self.env}


MAMBA = ("--mamba-radix-cache-strategy", "extra_buffer", "--max-mamba-cache-size", "64")
CONFIGS = (
    Config("p16_through", 16, 2048, replay=True),
    Config("p64_back", 64, 4096, write="write_back", replay=True),
    Config("p16_selective", 16, 2048, write="write_through_selective"),
    Config("p16_no_l3", 16, 2048, prefetch=None),
    Config("p1_through", 1, 2048),
    Config("p128_through", 128, 8192),
    Config("p16_ratio_half", 16, 2048, ratio=0.5),
    Config("p16_ratio_4_chunk_256", 16, 2048, ratio=4.0, chunk=256),
    Config("p16_best_effort", 16, 2048, prefetch="best_effort", replay=True),
    Config("p64_timeout", 64, 4096, prefetch="timeout"),
    Config("mamba", 128, 4096, model="mamba", flags=MAMBA, env={"SGL_MAMBA": "1", "LOAD": "dummy"}),
    Config("swa", 128, 4096, model="swa128", flags=("--swa-full-tokens-ratio", "0.5"), longest=1200, near_pool=False),
    Config("mla", 64, 4096, model="mla", env={"SGL_MLA": "1", "LOAD": "dummy"}),
    Config("p16_four_at_once", 16, 2048, group=4, ops=80, longest=460),
    Config("p16_restart", 16, 2048, restart=True),
    Config("p16_lfu", 16, 2048, prefetch=None, flags=("--radix-eviction-policy", "lfu")),
    Config("p16_slru", 16, 2048, prefetch=None, flags=("--radix-eviction-policy", "slru")),
    Config("p16_priority", 16, 2048, prefetch=None, flags=("--radix-eviction-policy", "priority"), priorities=True),
    Config("p16_back_four_at_once", 16, 4096, write="write_back", prefetch=None, group=4, ops=80),
    Config("p1_back_no_l3", 1, 2048, write="write_back", prefetch=None),
    Config("p128_back_chunk_512", 128, 4096, write="write_back", chunk=512),
    Config("p64_selective_ratio_1", 64, 4096, ratio=1.0, write="write_through_selective", prefetch="timeout"),
    Config("p16_back_ratio_half", 16, 2048, ratio=0.5, write="write_back"),
    Config("p16_no_hicache", 16, 2048, ratio=None, prefetch=None),
    Config("swa_tight", 128, 4096, model="swa128", flags=("--swa-full-tokens-ratio", "0.3"), prefetch=None,
           longest=700, near_pool=False),
)

Counters = dict[str, int]


class Failed(Exception):
    """The server did not do what a recording needs; the configuration is not written."""


class Server:
    """One server process of one configuration, in a process group of its own; its L3 folder outlives a restart."""

    def __init__(self, config: Config, start: Path, models: Path, work: Path) -> None:
        self.config = config
        self.command = start
        self.log = work / f"{config.name}.log"
        self.storage = work / f"{config.name}.l3"
        shutil.rmtree(self.storage, ignore_errors=True)
        self.storage.mkdir(parents=True)
        self.env = os.environ | config.environment() | {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self.storage)}
        if config.model:
            self.env["MODEL"] = str(models / config.model)
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def up(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([str(self.command), str(port), *self.config.arguments()], env=self.env,
                                            stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"server ended with {self.process.returncode}, see {self.log}")
            try:
                self.call("GET", "/server_info")
                return
            except OSError:
                time.sleep(1)
        raise Failed(f"no answer from the server after {START_S:.0f} s, see {self.log}")

    def down(self) -> None:
        """Kills the server's own process group (asked politely, one process takes the others for crashed)."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return str(answer.read().decode())

    def samples(self) -> Iterator[tuple[str, str, float]]:
        for name, labels, value in SAMPLE.findall(self.call("GET", "/metrics")):
            yield name, labels, float(value)

    def counters(self) -> Counters:
        found: Counters = {}
        for name, labels, value in self.samples():
            if name in COUNTERS:
                kinds = [kind for kind in re.findall(r'(?:pool|reason)="(\w+)"', labels) if kind != "kv"]
                key = "/".join([COUNTERS[name], *sorted(kinds)])
                found[key] = found.get(key, 0) + int(value)
        return {key: value for key, value in found.items() if value}

    def gauges(self, names: Sequence[str]) -> dict[str, int]:
        return {name: int(value) for name, _, value in self.samples() if name in names}

    def settled(self, before: Counters) -> tuple[Counters, bool]:
        """The counters once they stand still: for one more look when L3 has caught up with L2 (the difference of the
        two is what it was before), for LATE_LOOKS when it has not: one L3 write of a small page size moves nothing
        for seconds. False when they never did."""
        deadline = time.monotonic() + SETTLE_S
        last, still = self.counters(), 0
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            now = self.counters()
            still = still + 1 if now == last else 0
            last = now
            if still >= (1 if self.config.prefetch is None or _behind(now) == _behind(before) else LATE_LOOKS):
                return now, True
        return last, False

    def empty(self) -> None:
        """Flush, clear, and look whether the L3 folder is really empty."""
        self.act("flush")
        self.act("clear")
        if any(self.storage.iterdir()):
            raise Failed(f"{self.storage} is not empty after a clear")

    def act(self, do: str) -> None:
        if do == "flush":
            self.call("POST", "/flush_cache?timeout=30", {})
        elif do == "clear" and self.config.prefetch is not None:
            self.call("POST", "/hicache/storage-backend/clear", {})
        elif do == "restart":
            self.down()
            self.up()

    def ask(self, ask: Ask, outputs: Mapping[int, Sequence[int]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": token_ids(ask.prompt, outputs),
            "sampling_params": {"max_new_tokens": ask.max_new, "temperature": 0, "ignore_eos": True},
        }
        optional = {"extra_key": ask.extra_key, "cache_salt": ask.salt, "priority": ask.priority}
        body |= {name: value for name, value in optional.items() if value is not None}
        answer: dict[str, Any] = json.loads(self.call("POST", "/generate", body))
        if answer["meta_info"]["completion_tokens"] != ask.max_new:
            raise Failed(f"{ask.max_new} tokens wanted: {answer}")
        return answer


def _behind(counters: Counters) -> int:
    return counters.get("backup", 0) - counters.get("backuped", 0)


def header(server: Server) -> dict[str, Any]:
    info = json.loads(server.call("GET", "/server_info"))
    resolved = {name: info.get(name) for name in RESOLVED}
    resolved |= server.gauges(SIZES)
    usage = info["internal_states"][0].get("memory_usage", {})
    resolved |= {name: usage[name] for name in ("token_capacity", "token_capacity_swa") if name in usage}
    config = server.config
    return {"format": 1, "config": config.name, "sglang": info["version"], "flags": config.arguments(),
            "env": config.environment(), "model": config.model or "plain", "at_once": config.group,
            "resolved": resolved, "answer": ANSWER}


def answer_row(op: int, ask: Ask, answer: Mapping[str, Any]) -> dict[str, Any]:
    meta = answer["meta_info"]
    details = meta["cached_tokens_details"] or {}
    row: dict[str, Any] = {"op": op, "prompt": ask.prompt, "max_new": ask.max_new, "extra_key": ask.extra_key,
                           "salt": ask.salt, "priority": ask.priority, "group": ask.group}
    row = {name: value for name, value in row.items() if value is not None}
    known = [meta[name] for name in ANSWER[:3]] + [details.get(name) for name in ANSWER[3:]]
    return row | {"output": answer["output_ids"], "answer": known}


def ask_together(server: Server, first: int, asks: Sequence[Ask], outputs: dict[int, Sequence[int]]
                 ) -> list[dict[str, Any]]:
    """The rows of requests sent at the same time, or of one; `order` is the order in which the server got them."""
    with ThreadPoolExecutor(len(asks)) as pool:
        answers = list(pool.map(lambda ask: server.ask(ask, outputs), asks))
    rows = [answer_row(first + i, ask, answer) for i, (ask, answer) in enumerate(zip(asks, answers, strict=True))]
    outputs |= {row["op"]: row["output"] for row in rows}
    if len(asks) > 1:
        received = [answer["meta_info"]["request_received_ts"] for answer in answers]
        for row, instant in zip(rows, received, strict=True):
            row["order"] = sorted(received).index(instant)
    return rows


def play(server: Server, seed: int, shape: Shape) -> list[dict[str, Any]]:
    """Every row of one history, from an empty cache; ends with the counters before and after it."""
    server.empty()
    start = before = server.counters()
    rows: list[dict[str, Any]] = []
    outputs: dict[int, Sequence[int]] = {}
    for _, run in groupby(enumerate(history(seed, shape)), key=_group):
        ops = list(run)
        first, one = ops[0]
        if isinstance(one, Act):
            server.act(one.do)
            new: list[dict[str, Any]] = [{"op": first, "do": one.do}]
            before = server.counters() if one.do == "restart" else before
        else:
            new = ask_together(server, first, [ask for _, ask in ops if isinstance(ask, Ask)], outputs)
        after, steady = server.settled(before)
        new[-1]["moved"] = {name: after[name] - before.get(name, 0) for name in after
                            if after[name] != before.get(name, 0)}
        if not steady:
            new[-1]["settled"] = False
        before = after
        rows += new
    end = {"end": seed, "before": start, "after": before, "levels": server.gauges(LEVELS)}
    return [{"history": seed, "shape": asdict(shape)}, *rows, end]


def _group(numbered: tuple[int, Ask | Act]) -> tuple[bool, int]:
    op, one = numbered
    return (False, op) if isinstance(one, Act) or one.group is None else (True, one.group)


def differences(rows: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]) -> list[Any]:
    """[op, answer the second time, moved the second time] of every operation that was not answered alike."""
    return [[one["op"], two.get("answer"), two.get("moved")] for one, two in zip(rows, again, strict=True)
            if "op" in one and (one.get("answer"), one.get("moved")) != (two.get("answer"), two.get("moved"))]


def record(server: Server) -> list[dict[str, Any]]:
    """All rows of a configuration. The header comes last in time: some gauges wait for the first request."""
    config, shape = server.config, server.config.shape()
    rows: list[dict[str, Any]] = []
    for number in range(config.histories):
        seed = 100 * CONFIGS.index(config) + number
        played = play(server, seed, shape)
        if number == 0 and config.replay:
            played[-1]["replay_differs"] = differences(played, play(server, seed, shape))
        rows += played
    return [header(server), *rows]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    draft.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--start", type=Path, required=True, help="program that becomes a server: START PORT FLAGS...")
    parser.add_argument("--models", type=Path, required=True, help="folder of the hybrid models swa128, mamba, mla")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the golden files")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "hicache-golden",
                        help="folder for logs and L3 data")
    parser.add_argument("--only", action="append", choices=[config.name for config in CONFIGS], help="just this one")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `finally` below ends the server
    failed = 0
    for config in CONFIGS:
        path = args.out / f"{config.name}.jsonl"
        if path.exists() or (args.only and config.name not in args.only):
            continue
        begun = time.monotonic()
        server = Server(config, args.start, args.models, args.work)
        try:
            server.up()
            write(path, record(server))
            print(f"{config.name}: {time.monotonic() - begun:.0f} s, {path.stat().st_size} bytes", flush=True)
        except (Failed, OSError, KeyError, ValueError) as reason:
            failed += 1
            text = reason.read().decode() if isinstance(reason, urllib.error.HTTPError) else ""
            print(f"{config.name}: not recorded: {type(reason).__name__}: {reason} {text}", file=sys.stderr, flush=True)
        finally:
            server.down()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
