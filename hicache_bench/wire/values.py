"""Single values out of answers nobody vouches for: absent or ill-typed is None, never an exception."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

# Counts end up in 32-bit columns; no answer has more tokens than that.
MAX_COUNT = 2**31 - 1
MAX_ERROR_CHARS = 500
MAX_EXTRA_KEYS = 32
MAX_EXTRA_CHARS = 128

_ANSWER_KEYS = {"choices", "text", "output_ids", "meta_info"}

_decode = msgspec.json.Decoder().decode


class BadJson(ValueError):
    """The bytes are no JSON document."""


class Tiers(NamedTuple):
    """Cached prompt tokens by tier; None where the server did not say."""

    device: int | None = None
    host: int | None = None
    storage: int | None = None
    backend: str | None = None


def decode_json(data: bytes) -> Any:
    """The decoded document; raises `BadJson`.

    Strict JSON first; then what Python servers write beyond it (NaN, Infinity, lone surrogates), with the
    surrogates replaced so that every string can be stored as UTF-8.
    """
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        loose = json.loads(data.decode("utf-8"))
        return json.loads(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error) or type(error).__name__) from None


def count(value: Any) -> int | None:
    """A whole number from 0 to `MAX_COUNT`, else None."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def seconds(value: Any) -> float | None:
    """A finite duration of at least 0 s, else None."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        return None
    # An integer beyond the range of a double compares fine but does not convert.
    return float(value) if value < 1e300 else None


def text_or_none(value: Any, max_chars: int = MAX_ERROR_CHARS) -> str | None:
    """A non-empty string, cut to `max_chars`, else None."""
    return value[:max_chars] if isinstance(value, str) and value else None


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids (`count` each), else None; a list of anything else is no output at all."""
    if not isinstance(value, list) or any(count(item) is None for item in value):
        return None
    return value


def small_scalars(values: Mapping[Any, Any], known: frozenset[str]) -> dict[str, Any]:
    """The short, finite scalars under keys not in `known`, at most `MAX_EXTRA_KEYS` of them."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if key in known or len(key) > MAX_EXTRA_CHARS or len(kept) >= MAX_EXTRA_KEYS:
            continue
        if _is_small(value):
            kept[key] = value
    return kept


def _is_small(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= MAX_EXTRA_CHARS
    return isinstance(value, int) and abs(value) < 2**63


def read_tiers(details: Any, cached: int | None) -> Tiers:
    """The tier split of `cached` tokens from a `cached_tokens_details` value.

    SGLang sends null when nothing was cached (output_streamer.py `get_cached_tokens_details`), so with
    `cached` 0 device and host are known to be 0; whether there is a storage tier stays unknown. Null with
    cached tokens means that the split got lost (sgl-project/sglang#26590). Early versions named the storage
    key after the backend class: `storage_<Class>`.
    """
    if not isinstance(details, dict):
        return Tiers(device=0, host=0) if cached == 0 else Tiers()
    storage = count(details.get("storage"))
    backend = text_or_none(details.get("storage_backend"), MAX_EXTRA_CHARS)
    if storage is None:
        named = {key: number for key, value in details.items()
                 if key.startswith("storage") and (number := count(value)) is not None}
        if named:
            storage = count(sum(named.values()))
            backend = backend or text_or_none(next(iter(named)).removeprefix("storage").lstrip("_"))
    return Tiers(count(details.get("device")), count(details.get("host")), storage, backend)


def sum_of_tiers(tiers: Tiers) -> int | None:
    """All cached tokens of a split, or None when no tier is known."""
    known = [tokens for tokens in (tiers.device, tiers.host, tiers.storage) if tokens is not None]
    return count(sum(known)) if known else None


def error_message(answer: Any) -> str | None:
    """The server's message when a decoded answer is an error, else None.

    Shapes: `{"error": str}`, `{"error": {"message"}}`, `{"object": "error", "message"}`, `{"detail"}`
    (http_server.py, FastAPI), each also as the single item of a list.
    """
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        return None
    found = answer.get("error")
    if not found and answer.get("object") == "error":
        found = answer.get("message") or "error"
    elif not found and "detail" in answer and not _ANSWER_KEYS & answer.keys():
        found = answer["detail"]
    if not found:
        return None
    if isinstance(found, dict):
        found = found.get("message") or found
    if isinstance(found, str):
        return found[:MAX_ERROR_CHARS]
    try:
        return json.dumps(found)[:MAX_ERROR_CHARS]
    except RecursionError:
        return "error"
