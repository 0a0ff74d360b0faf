"""The command line without a process of its own, for what ends before anything is started."""

from __future__ import annotations

import pytest

from hicache_bench.cli.main import main


@pytest.fixture
def call(capsys, monkeypatch):
    for name in ("HICACHE_TEST_URL", "HICACHE_TEST_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "fault of hicache-bench" not in err
        return ended.value.code, out, err

    return run
