"""Runs the command line as a user does: a process of its own, its exit code and both its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

from tests.scripted import Script, ScriptedServer

LOAD = "concurrency = 2\nrequests = 4"

STREAM = """
[[stream]]
name = "p"
kind = "shared_prefix"
groups = 1
prefix_tokens = 320
suffix_tokens = 40
output_tokens = 3
"""


def workload(folder, load: str = LOAD, more: str = "", stream: str = STREAM, name: str = "tiny"):
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{more}\n[load]\n{load}\n[settle]\nquiet = "50ms"\ndeadline = "500ms"\n'
                    f'[drain]\ndeadline = "2s"\n{stream}')
    return path


@dataclass
class Done:
    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HICACHE_", "http_proxy"))}
    return {**kept, **more}


def start(*args: object, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "hicache_bench", *map(str, args)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**env))


def finish(process: subprocess.Popen[str], timeout: float = 60) -> Done:
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert "Traceback" not in out + err, err
    assert "fault of hicache-bench" not in out + err, err
    return Done(process.returncode, out, err)


def hcb(*args: object, **env: str) -> Done:
    return finish(start(*args, **env))


def only_run(results):
    (found,) = [path for path in results.iterdir() if (path / "run.json").is_file()]
    return found


def strict_json(text: str):
    def refuse(name: str):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@contextlib.contextmanager
def scripted(script: Script):
    """A ScriptedServer on a loop in a thread, so that the test can wait for a process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ScriptedServer(script)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
