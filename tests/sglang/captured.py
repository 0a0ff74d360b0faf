"""Whole captured answers of a real SGLang 0.5.23, as steps of the scripted server."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from tests.scripted import Seen, Step, head, json_answer

FOLDER = Path(__file__).parent.parent / "data" / "captures" / "A_overlap_write_through_layer_first"
EXTRA = FOLDER.parent / "extra"


def raw(name: str, folder: Path = FOLDER) -> bytes:
    return (folder / f"{name}.http").read_bytes()


def body(name: str, folder: Path = FOLDER) -> bytes:
    top, _, rest = raw(name, folder).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in top.lower():
        return rest
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def obj(name: str, folder: Path = FOLDER):
    return json.loads(body(name, folder))


NOT_FOUND = json_answer({"detail": "Not Found"}, 404)

ROUTES = {
    "/server_info": "server_info", "/model_info": "model_info", "/v1/models": "v1_models",
    "/hicache/storage-backend": "hicache_storage_status", "/metrics": "metrics", "/health": "health",
    "/tokenize": "tokenize", "/flush_cache": "flush_cache", "/v1/loads": "v1_loads",
    "/hicache/storage-backend/clear": "hicache_clear_v2",
}


def real_server(seen: Seen) -> list[Step]:
    """A script that replays the captured bytes of each route."""
    name = ROUTES.get(urlsplit(seen.path).path)
    return NOT_FOUND if name is None else [raw(name)]


def text_answer(text: str, status: int = 200, kind: str = "text/plain") -> list[Step]:
    data = text.encode()
    return [head(status, kind, len(data)) + data]
