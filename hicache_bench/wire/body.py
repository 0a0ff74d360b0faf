"""Request bodies: the prompt, the user's extra fields and the JSON encoding, common to every API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hicache_bench.errors import UsageError

TokenIds = Sequence[int] | NDArray[Any]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def one_prompt(input_ids: TokenIds | None, text: str | None) -> list[int] | Sequence[int] | str:
    """The prompt as token ids or as text; raises `UsageError` unless exactly one is given."""
    if (input_ids is None) == (text is None):
        given = "both" if text is not None else "neither"
        raise UsageError(f"a request needs either input_ids or text, got {given}")
    if isinstance(input_ids, np.ndarray):
        return list(input_ids.tolist())
    return input_ids if input_ids is not None else text or ""


def check_count(name: str, tokens: int) -> None:
    """Raises `UsageError` below 0; 0 is legal (prefill only)."""
    if tokens < 0:
        raise UsageError(f"{name} is {tokens}; it must be 0 (prefill only) or more")


def merge(
    body: dict[str, Any], extra_body: Mapping[str, Any] | None, owned: frozenset[str], nested: str
) -> None:
    """Put `extra_body` into `body`, its mapping under `nested` key by key.

    Raises `UsageError` for a key in `owned`: those decide what is measured and how the answer is read.
    """
    for key, value in (extra_body or {}).items():
        if key in owned:
            raise UsageError(f"extra_body may not set {key!r}; it is set by the workload")
        if key == nested:
            if not isinstance(value, Mapping):
                raise UsageError(f"extra_body.{key} is {value!r}; it must be a table")
            body[key] = {**body.get(key, {}), **value}
        else:
            body[key] = value


def encode(body: Mapping[str, Any]) -> bytes:
    """The JSON bytes of a body; raises `UsageError` when a value has no JSON form."""
    try:
        return _encoder.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"the request body can not be written as JSON: {error}") from None
