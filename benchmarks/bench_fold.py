"""What reading an answer costs: µs a chunk to fold a 64-token stream, and µs to read only its output.

    python benchmarks/bench_fold.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from hicache_bench.records import Exchange, WireRequest
from hicache_bench.wire.fold import fold, last_output

N_TOKENS = 64
TIERS = {"device": 496, "host": 0, "storage": 0, "storage_backend": "HiCacheFile"}


def native(incremental: bool) -> tuple[WireRequest, list[Any]]:
    words, ids = [f" word{i}" for i in range(N_TOKENS)], list(range(1000, 1000 + N_TOKENS))
    events = []
    for i in range(N_TOKENS):
        part = slice(i, i + 1) if incremental else slice(0, i + 1)
        meta = {"id": "0" * 32, "finish_reason": {"type": "length"} if i == N_TOKENS - 1 else None,
                "prompt_tokens": 507, "weight_version": "default", "num_retractions": 0, "queue_time": 0.01,
                "reasoning_tokens": 0, "completion_tokens": i + 1, "cached_tokens": 496,
                "cached_tokens_details": TIERS, "dp_rank": None}
        events.append({"text": "".join(words[part]), "output_ids": ids[part], "meta_info": meta})
    return WireRequest("/generate", b"", "generate", True, incremental), events


def chat() -> tuple[WireRequest, list[Any]]:
    head = {"id": "0" * 32, "object": "chat.completion.chunk", "created": 0, "model": "m"}
    events: list[Any] = [
        {**head, "choices": [{"index": 0, "delta": {"content": f" word{i}"}, "finish_reason": None}]}
        for i in range(N_TOKENS)
    ]
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    events.append({**head, "choices": [], "usage": {"prompt_tokens": 507, "completion_tokens": N_TOKENS}})
    return WireRequest("/v1/chat/completions", b"", "chat", True), events


def exchange(events: list[Any]) -> Exchange:
    raw = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    return Exchange(status=200, content_type="text/event-stream", reads=list(enumerate(raw)))


def best_us(call: Callable[[], object], rounds: int = 7, repeats: int = 100) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter_ns() - start) / repeats / 1000)
    return best


def main() -> None:
    print(f"{N_TOKENS}-token stream     fold µs/chunk   fold µs   last_output µs")
    for name, (request, events) in (("native", native(False)), ("native incremental", native(True)), ("chat", chat())):
        log = exchange(events)
        folded = fold(request, log)
        assert (folded.outcome, folded.output_tokens) == ("ok", N_TOKENS)
        whole = best_us(lambda request=request, log=log: fold(request, log))
        last = best_us(lambda request=request, log=log: last_output(request, log))
        print(f"{name:20}{whole / N_TOKENS:15.2f}{whole:10.0f}{last:17.1f}")


if __name__ == "__main__":
    main()
