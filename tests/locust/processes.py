"""Locust in processes of its own: importing it patches the whole process, so no test imports it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_bench.store.reader import read_attempts

ROOT = Path(__file__).parents[2]

INSTALLED = importlib.util.find_spec("locust") is not None

QUICK = """
[reset]
device_host = false
storage = false
[settle]
deadline = "1s"
quiet = "100ms"
"""

CLOSED = f"""
name = "closed"
[load]
concurrency = 4
requests = 40
{QUICK}
[[stream]]
name = "prefix"
kind = "shared_prefix"
share = 1
groups = 2
prefix_tokens = 256
suffix_tokens = 16
output_tokens = 4
[[stream]]
name = "chat"
kind = "multi_turn"
share = 1
turns = 3
first_tokens = 64
turn_tokens = 16
output_tokens = 4
history = "live"
"""

STAGED = f"""
name = "staged"
[load]
limit = 2
[[load.stages]]
duration = "1s"
rate = 10
to = 40
{QUICK}
[[stream]]
name = "fresh"
kind = "unique"
share = 1
prompt_tokens = 64
output_tokens = 40
"""

LONG = CLOSED.replace("requests = 40", 'duration = "60s"').replace("output_tokens = 4", "output_tokens = 60")
"""Slow enough that the plan lasts its whole minute on any machine."""


@dataclass(frozen=True)
class Ended:
    """What one `locust` left behind."""

    code: int
    output: str
    folder: Path

    @property
    def run(self) -> Path:
        (run,) = (self.folder / "results").iterdir()
        return run

    @property
    def meta(self) -> dict[str, Any]:
        return json.loads((self.run / "run.json").read_text())

    def rows(self, phase: str = "measure") -> list[dict[str, Any]]:
        return read_attempts(self.run, phase=phase).to_pylist()


def start(folder: Path, url: str, workload: str, *args: str, file: str = "prefix_reuse") -> subprocess.Popen[bytes]:
    """A `locust` in a session of its own, so that Ctrl-C and the end reach it and its workers only."""
    (folder / "w.toml").write_text(workload)
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / f"locustfiles/{file}.py"), "--host", url,
               "--workload", str(folder / "w.toml"), "--results", str(folder / "results"), *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                start_new_session=True, preexec_fn=hear_interrupts)


def hear_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit it: Ctrl-C must reach this one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(process: subprocess.Popen[bytes], folder: Path, timeout_s: float = 100) -> Ended:
    """Wait for it; whatever is left of its session is killed."""
    try:
        process.wait(timeout_s)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return Ended(process.returncode, (folder / "log").read_text(errors="replace"), folder)


def locust(folder: Path, url: str, workload: str, *args: str, file: str = "prefix_reuse") -> Ended:
    """A headless `locust` to its end."""
    return ended(start(folder, url, workload, "--headless", "--only-summary", *args, file=file), folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def two_workers(port: int | None = None) -> tuple[str, ...]:
    """Options for a master and two workers on a port of their own."""
    number = str(port or free_port())
    return ("--processes", "2", "--master-bind-host", "127.0.0.1", "--master-bind-port", number, "--master-port",
            number)


def until(what: Any, timeout_s: float = 60) -> Any:
    """The first true value of `what()`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def measuring(folder: Path) -> dict[str, Any] | None:
    """run.json once the measured phase has begun."""
    for path in folder.glob("results/*/events.jsonl"):
        if "measure_start" in path.read_text():
            return json.loads((path.parent / "run.json").read_text())
    return None


def stored(folder: Path) -> int:
    """Measured rows on disk."""
    return sum(read_attempts(run, phase="measure").num_rows for run in (folder / "results").iterdir())


def entries(output: str) -> dict[str, int]:
    """Locust's summary: entry → number of values."""
    found = re.findall(r"^hicache\s+(\S.*?)\s{2,}(\d+)\s+\d+\(", output, re.MULTILINE)
    return {name: int(count) for name, count in found}
