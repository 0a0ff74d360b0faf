"""Starts SGLang's Rust client without importing SGLang: python rust_peer.py PATH/_bench*.so ARGS...

Its one-line result file is turned into the figures `compare.py` reads.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

spec = importlib.util.spec_from_file_location("_bench", sys.argv[1])
assert spec is not None
assert spec.loader is not None
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
with tempfile.TemporaryDirectory() as where:
    out = Path(where) / "out.jsonl"
    bench.run_argv(["sglang-bench", *sys.argv[2:], "--output-file", str(out), "--disable-tqdm"])
    told = json.loads(out.read_text().splitlines()[-1])
sys.stdout.write("\n" + json.dumps({
    "ttft_p50_ms": told.get("median_ttft_ms"), "ttft_p99_ms": told.get("p99_ttft_ms"),
    "itl_mean_ms": told.get("mean_itl_ms"), "outcomes": {"ok": told.get("completed")},
}) + "\n")
