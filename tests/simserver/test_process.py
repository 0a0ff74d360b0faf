import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from hicache_bench.errors import MeasureError
from hicache_bench.simserver.__main__ import command
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.embedded import embedded
from hicache_bench.simserver.process import spawn_server

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, key: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with _OPENER.open(request, timeout=20) as answer:
        return answer.status, answer.read().decode()


def gone(pid: int) -> bool:
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if "zombie" in Path(f"/proc/{pid}/status").read_text():
            return True
        time.sleep(0.01)
    return False


def test_a_child_serves_with_its_settings_and_ends():
    config = SimConfig(page_size=32, api_key="k1", served_model_name="ünusual")
    with spawn_server(config) as server:
        assert fetch(f"{server.url}/health")[0] == 200
        status, info = fetch(f"{server.url}/server_info", "k1")
        assert status == 200
        assert '"page_size":32' in info
        assert "ünusual" in info
        assert "k1" not in Path(f"/proc/{server.pid}/cmdline").read_text()
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(MeasureError, match="cannot listen"):
            spawn_server(config, port)
    assert gone(server.pid)


def test_the_child_dies_with_its_parent():
    code = ("import os, sys; from hicache_bench.simserver.process import spawn_server;"
            "from hicache_bench.simserver.config import SimConfig;"
            "print(spawn_server(SimConfig()).pid, flush=True); sys.stdin.read(1); os._exit(9)")
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert gone(pid)


async def test_the_embedded_server():
    async with embedded() as url:
        assert fetch(f"{url}/health")[0] == 200


def test_the_command_line():
    bad = CliRunner().invoke(command, ["--page-size", "0"])
    assert bad.exit_code == 2
    assert "0 is out of range; allowed: 1 to 65,536" in bad.output
    assert "--max-total-tokens" in CliRunner().invoke(command, ["--help"]).output
    with subprocess.Popen([sys.executable, "-m", "hicache_bench.simserver", "--port", "0", "--page-size", "16",
                           "--hicache-storage-backend", "none"], stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[-1]
        assert '"page_size":16' in fetch(f"{url}/server_info")[1]
        server.terminate()
        assert server.wait(20) == 0
