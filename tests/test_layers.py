"""Imports go down only (ARCHITECTURE.md); Locust and gevent stay in `locust_user`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hicache_bench

ROOT = Path(hicache_bench.__file__).parent

LAYERS = {
    "errors": 0, "clock": 0, "units": 1, "records": 1, "scrub": 1,
    "pacing": 2, "stats": 2, "wire": 2, "workload": 3, "cachesim": 3,
    "store": 4, "sglang": 4, "load": 4, "profiles": 4,
    "recording": 5, "target": 5,
    "phases": 6, "preflight": 6, "manifest": 6, "analysis": 6, "simserver": 6,
    "bench": 7, "simulate": 7, "verify": 8, "cli": 9, "__main__": 10, "locust_user": 10,
}
"""Package or top module → layer. Equal layers do not import each other."""

GREEN = ("locust", "gevent", "geventhttpclient", "flask")
"""They patch or belong to a process that is patched; our other processes are asyncio or plain."""

NOT_GREEN = {"__init__", "channel", "companion", "folding", "job", "live", "page", "settings"}
"""Modules of `locust_user` that run in its child processes."""

MODULES = sorted(ROOT.rglob("*.py"))


def unit_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> list[tuple[str, int]]:
    """Every module of ours that a file imports, lazy imports included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.module or "", node.lineno))
        elif isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
    return found


def test_every_unit_has_a_layer():
    units = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert units == set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    mine = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if mine == "__init__":
        return
    for module, line in imports(path):
        if mine != "locust_user" or path.stem in NOT_GREEN:
            assert module.split(".")[0] not in GREEN, f"{path}:{line}: Locust patches the process on import"
        if not module.startswith("hicache_bench."):
            continue
        theirs = unit_of(module)
        if theirs != mine:
            assert LAYERS[theirs] < LAYERS[mine], f"{path.name}:{line}: {mine} (layer {LAYERS[mine]}) imports {theirs}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_store_uses_pyarrow_and_modules_stay_small(path):
    unit = path.relative_to(ROOT).parts[0]
    if unit != "store":
        assert not any(module.split(".")[0] == "pyarrow" for module, _ in imports(path))
    assert len(path.read_text().splitlines()) <= 400


def test_base_layer_is_standard_library_only():
    allowed = {"numpy"}  # records: arrival schedules are arrays
    for name in ("errors", "units", "clock", "records"):
        for module, line in imports(ROOT / f"{name}.py"):
            top = module.split(".")[0]
            assert top in {"hicache_bench", *allowed} or top in __import__("sys").stdlib_module_names, (name, line)
