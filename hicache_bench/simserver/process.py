"""The simulated server in a process of its own, so that it shares no event loop with the load."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from types import TracebackType

import msgspec

from hicache_bench.errors import MeasureError
from hicache_bench.simserver.config import SimConfig

_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 5.0


@dataclass(slots=True)
class ServerProcess:
    """A child process that serves; close it, or use it as a context manager. The URLs of engines are those behind
    a pair's router, None for a single server."""

    url: str
    pid: int
    _process: subprocess.Popen[bytes]
    prefill_url: str | None = None
    decode_url: str | None = None

    def close(self) -> None:
        """End the child: its standard input closes, and if that does not help it is killed."""
        _end(self._process)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def spawn_server(config: SimConfig, port: int = 0, *, pd: bool = False) -> ServerProcess:
    """Start `python -m hicache_bench.simserver` and wait until it listens; raises `MeasureError` if it does not.
    `pd`: a disaggregated pair behind a router on `port`.

    The settings, keys included, go through standard input, so no key stands in a process list. The child
    ends at the end of its standard input: when this process dies, however it dies, the kernel closes the pipe.
    """
    command = [sys.executable, "-m", "hicache_bench.simserver", "--port", str(port), "--settings-from-stdin",
               *(["--pd"] if pd else [])]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                   start_new_session=True)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(config) + b"\n")
                process.stdin.flush()
            lines = _first_lines(process, 3 if pd else 1)
        except BaseException:
            _end(process)
            raise
        if not lines[0].startswith("listening on http://") or len(lines) != (3 if pd else 1):
            _end(process)
            errors.seek(0)
            reason = errors.read().decode("utf-8", "replace").strip().splitlines()
            raise MeasureError("the simulated server did not start: "
                               + (reason[-1] if reason else f"it said {lines[0]!r}"))
    url, *engines = [line.split()[-1] for line in lines]
    return ServerProcess(url, process.pid, process, *engines)


def _first_lines(process: subprocess.Popen[bytes], wanted: int) -> list[str]:
    """So many lines of its standard output, or what it said before its end or ours of patience; never none."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + _START_TIMEOUT_S
    data = b""
    while data.count(b"\n") < wanted and (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            part = os.read(descriptor, 4096)
            if not part:
                break
            data += part
    return data.decode("utf-8", "replace").strip().split("\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
