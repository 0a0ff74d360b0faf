"""Secrets never reach a file: keys, tokens and passwords in settings, headers, argv and URLs become `***`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MASK = "***"

_SECRET = re.compile(
    r"(api|admin|access|private|secret|auth|account|subscription)[-_ ]?key(id)?s?$|secret|passw(or)?d|passphrase|"
    r"authori[sz]ation|^bearer$|credential|cookie|"
    r"(^|access|auth|bearer|api|hf|hub|huggingface|refresh|session|id|security|admin|github)[-_ ]?token$"
)
_WHERE_NOT_WHAT = re.compile(r"[-_ ](file|path|env|dir)$")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@\s]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+")
_HEADER = re.compile(r"^\s*([A-Za-z0-9_-]+)\s*:\s*(?!//)(.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z0-9_.-]+)=([^\s&;,'\"]+)")


def is_secret(key: str) -> bool:
    """Whether a value under this name must be hidden: `api_key`, `X-Api-Key`, `hf_token`, `password`...

    Names of places (`api_key_file`) and of counts (`cached_tokens`, `eos_token`) are not secrets.
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().strip("-_. ")
    return bool(_SECRET.search(snake)) and not _WHERE_NOT_WHAT.search(snake)


def scrub(obj: Any) -> Any:
    """A copy of built-in data (dict, list, str...) without secrets.

    In a list, the item after a secret option (`--api-key`) is hidden too, as in argv.
    """
    if isinstance(obj, Mapping):
        return {key: MASK if _hides(key, value) else scrub(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return _scrub_list(list(obj))
    return _scrub_text(obj) if isinstance(obj, str) else obj


def _hides(key: Any, value: Any) -> bool:
    countable = value is None or isinstance(value, bool | int | float)
    return isinstance(key, str) and not countable and value not in ("", [], {}) and is_secret(key)


def _scrub_list(items: list[Any]) -> list[Any]:
    clean: list[Any] = []
    for before, item in zip([None, *items], items, strict=False):
        is_value = isinstance(before, str) and before.startswith("-") and "=" not in before and is_secret(before)
        clean.append(MASK if is_value and isinstance(item, str) else scrub(item))
    return clean


def _scrub_text(text: str) -> str:
    if text.lstrip()[:1] in ("{", "["):
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            pass
        else:
            clean = scrub(inner)
            return text if clean == inner else msgspec.json.encode(clean).decode()
    header = _HEADER.match(text)
    if header and is_secret(header.group(1)):
        return f"{header.group(1)}: {MASK}"
    text = _USERINFO.sub(rf"\1{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    return _ASSIGNED.sub(lambda m: f"{m.group(1)}={MASK}" if is_secret(m.group(1)) else m.group(0), text)
