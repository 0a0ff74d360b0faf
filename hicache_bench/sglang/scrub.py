"""Take keys and passwords out of what a server says about itself, before it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

HIDDEN = "<hidden>"

_WORDS = (r"api[_-]?key|password|passwd|secret|credential|access[_-]?key|private[_-]?key|auth[_-]?token"
          r"|watermark[_-]?key")
_NAME = re.compile(_WORDS, re.IGNORECASE)
_ARGUMENT = re.compile(rf"""(--[\w-]*(?:{_WORDS})[\w-]*(?:\s+|=))("[^"]*"|'[^']*'|[^\s"']+)""", re.IGNORECASE)
_JSON_MEMBER = re.compile(
    rf"""(\\?["'][\w-]*(?:{_WORDS})[\w-]*\\?["']\s*:\s*)\\?(["'])(?:[^"'\\]|\\[^"'])*\\?\2""", re.IGNORECASE)
_SHORTEST_REPLACED = 4


def scrub(value: Any, known: Iterable[str] = ()) -> Any:
    """A copy of JSON data without secrets.

    Hidden are: values under a name that speaks of a key or password, such arguments inside command lines,
    such members of JSON text inside strings, and every occurrence anywhere of a secret value so found or
    given in `known` (values under four characters only where they are a whole string).
    """
    found = {secret for secret in known if secret}
    _collect(value, found)
    return _clean(value, sorted(found, key=len, reverse=True))


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if _NAME.search(str(name)) and isinstance(item, str) and item != HIDDEN:
                found.add(item)
            elif _NAME.search(str(name)) and isinstance(item, list):
                found.update(part for part in item if isinstance(part, str) and part)
            else:
                _collect(item, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)
    elif isinstance(value, str):
        for match in _ARGUMENT.finditer(value):
            found.add(match.group(2).strip("\"'"))
        if (parsed := _json_object(value)) is not None:
            _collect(parsed, found)
    found.discard("")


def _clean(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: HIDDEN if _NAME.search(str(name)) and isinstance(item, (str, list)) and item
                else _clean(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, secrets) for item in value]
    return _clean_text(value, secrets) if isinstance(value, str) else value


def _clean_text(text: str, secrets: list[str]) -> str:
    if text in secrets:
        return HIDDEN
    text = _ARGUMENT.sub(rf"\g<1>{HIDDEN}", text)
    text = _JSON_MEMBER.sub(rf'\g<1>"{HIDDEN}"', text)
    for secret in secrets:
        if len(secret) >= _SHORTEST_REPLACED:
            text = text.replace(secret, HIDDEN)
    return text


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
