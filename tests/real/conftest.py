"""A real SGLang with three tiers: one that runs already, or one started from a script.

HICACHE_BENCH_SGLANG_URL names a running server; HICACHE_BENCH_SGLANG a script that is called with a port and
SGLang's arguments and serves in the foreground on 127.0.0.1.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

START_S = 300
ARGUMENTS = [
    "--enable-hierarchical-cache",
    "--hicache-ratio=2",
    "--hicache-write-policy=write_through",
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=page_first_direct",
    "--hicache-storage-backend=file",
    "--hicache-storage-prefetch-policy=wait_complete",
]


@dataclass(frozen=True)
class RealServer:
    url: str
    admin_key: str


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    if url := os.environ.get("HICACHE_BENCH_SGLANG_URL"):
        yield RealServer(url, os.environ.get("HICACHE_BENCH_ADMIN_KEY", ""))
        return
    script = os.environ.get("HICACHE_BENCH_SGLANG")
    if not script:
        pytest.skip("no real SGLang: set HICACHE_BENCH_SGLANG_URL or HICACHE_BENCH_SGLANG (see README)")
    if not Path(script).exists():
        pytest.skip(f"no real SGLang: HICACHE_BENCH_SGLANG names {script}, which does not exist")
    yield from _started(script, tmp_path_factory.mktemp("sglang"))


def _started(script: str, folder: Path) -> Iterator[RealServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = secrets.token_hex(8)
    environment = {**os.environ, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder / "l3"), "MAX_TOKENS": "4096"}
    (folder / "l3").mkdir()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([script, str(port), *ARGUMENTS, "--admin-api-key", key], stdout=log, stderr=log,
                                   env=environment, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(url, process, folder / "server.log")
            yield RealServer(url, key)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=10) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(1)
    pytest.fail(f"the server was not healthy within {START_S} s")
