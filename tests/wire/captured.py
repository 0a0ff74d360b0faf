"""The captured answers of a real SGLang 0.5.23 (tests/data/captures) as exchanges, and scripted ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from hicache_bench.records import Exchange, WireRequest

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
MS = 1_000_000
SSE = "text/event-stream; charset=utf-8"

GENERATE = WireRequest("/generate", b"{}", "generate", True)
INCREMENTAL = WireRequest("/generate", b"{}", "generate", True, True)
COMPLETIONS = WireRequest("/v1/completions", b"{}", "completions", True)
CHAT = WireRequest("/v1/chat/completions", b"{}", "chat", True)


def captured(name: str) -> tuple[WireRequest, Exchange]:
    """The request kind and the exchange of a capture; one read a chunk, 10 ms apart."""
    api = next(r for key, r in (("generate", GENERATE), ("completions", COMPLETIONS), ("", CHAT))
               if key in Path(name).name)
    raw = (CAPTURES / name).read_bytes()
    if name.endswith(".json"):
        return GENERATE, Exchange(status=200, content_type="application/json", reads=[(0, raw)])
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    chunks = list(_dechunk(body)) if headers.get("transfer-encoding") == "chunked" else [body]
    assert chunks, name
    reads = [(10 * MS * (i + 1), chunk) for i, chunk in enumerate(chunks)]
    return api, Exchange(status=int(status.split()[1]), content_type=headers["content-type"], reads=reads)


def answer_names() -> list[str]:
    """The captures that answer an inference request (others in the folder belong to other tests)."""
    kinds = ("generate_", "chat_", "completions_", "again_", "unknown_")
    return sorted(str(path.relative_to(CAPTURES)) for path in CAPTURES.rglob("*.*") if path.name.startswith(kinds))


def _dechunk(body: bytes) -> Iterable[bytes]:
    while body:
        size, _, body = body.partition(b"\r\n")
        if (n := int(size, 16)) == 0:
            return
        assert body[n : n + 2] == b"\r\n"
        yield body[:n]
        body = body[n + 2 :]


def event(item: Any, end: str = "\n\n") -> bytes:
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return f"data: {text}{end}".encode()


DONE = event("[DONE]")


def stream(*reads: tuple[float, Any] | bytes, status: int = 200, kind: str = SSE) -> Exchange:
    """An exchange of `(milliseconds, event or bytes)` reads; bare bytes come at 0."""
    log = []
    for read in reads:
        at, item = (0, read) if isinstance(read, bytes) else read
        log.append((round(at * MS), item if isinstance(item, bytes) else event(item)))
    return Exchange(status=status, content_type=kind, reads=log)


def body(item: Any, status: int = 200, kind: str = "application/json") -> Exchange:
    raw = item if isinstance(item, bytes) else json.dumps(item).encode()
    return Exchange(status=status, content_type=kind, reads=[(0, raw)])


def native(text: str, n: int | None, reason: Any = None, **meta: Any) -> dict[str, Any]:
    """A native event with `n` completion tokens (None: key absent)."""
    said = {} if n is None else {"completion_tokens": n}
    return {"text": text, "meta_info": {"id": "r", "finish_reason": reason, "prompt_tokens": 9, **said, **meta}}


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


ROLE = delta(role="assistant", content="")
STOP = {"type": "stop"}


def joined(exchange: Exchange) -> bytes:
    return b"".join(data for _, data in exchange.reads)


def resplit(exchange: Exchange, cuts: Iterable[int], stamp: int = 7) -> Exchange:
    """The same bytes cut at other places, every read with the same stamp."""
    raw = joined(exchange)
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(raw)}), len(raw)]
    reads = [(stamp, raw[a:b]) for a, b in pairwise(edges)]
    return Exchange(status=exchange.status, content_type=exchange.content_type, reads=reads)
