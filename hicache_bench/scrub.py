"""Secrets never reach a file, a row or the terminal: keys, tokens and passwords become `***`.

Three ways to find one: the name it stands under, the form of the text around it (a header, an option, a member
of JSON text, a Bearer token), and its value where that is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MASK = "***"

SHORTEST_REPLACED = 4
"""A known secret below so many characters is hidden only where it is a whole string: "a" is in every word."""

_SECRET = re.compile(
    r"(api|admin|access|private|secret|auth|account|subscription|watermark)[-_ ]?key(id)?s?$|"
    r"secret|passw(or)?d|passphrase|authori[sz]ation|^bearer$|credential|cookie|"
    r"(^|access|auth|bearer|api|hf|hub|huggingface|refresh|session|id|security|admin|github)[-_ ]?token$"
)
_WHERE_NOT_WHAT = re.compile(r"[-_ ](file|path|env|dir)$")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@\s]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+(?!(?:tokens?|auth\w{0,12})(?:[\s.,;:!?]|$))[^\s'\",;\\)}\]]+")
_SCHEME = re.compile(r"(?i)^(bearer|basic|token)\s+(?=\S)")
_HEADER = re.compile(r"^\s*([A-Za-z0-9_-]+)\s*:\s*(?!//)(.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z0-9_.-]+)=(?!['\"])([^\s&;,'\"]+)")
_OPTION = re.compile(r"""(--[\w-]+)(\s+|=)("[^"]*"|'[^']*'|[^\s"'-][^\s"']*)""")
_MEMBER = re.compile(r"""(\\?["'])([\w-]+)(\\?["']\s*:\s*)\\?(["'])((?:[^"'\\]|\\[^"'])*)\\?\4""")


def well_formed(text: str) -> str:
    """The text with `?` for what UTF-8 cannot carry (lone surrogates: bytes of a command line that are no UTF-8,
    half escapes in JSON), so that it can be written to a file or sent."""
    return text.encode("utf-8", "replace").decode()


def is_secret(key: str) -> bool:
    """Whether a value under this name must be hidden: `api_key`, `X-Api-Key`, `hf_token`, `password`...

    Names of places (`api_key_file`) and of counts (`cached_tokens`, `eos_token`) are not secrets.
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().strip("-_. ")
    return bool(_SECRET.search(snake)) and not _WHERE_NOT_WHAT.search(snake)


def scrub(obj: Any, known: Iterable[str] = ()) -> Any:
    """A copy of built-in data (dict, list, str...) without secrets; `known` are values hidden wherever they occur.

    In a list, the item after a secret option (`--api-key`) is hidden too, as in argv.
    """
    return _scrub(obj, _longest_first(known))


def scrub_text(text: str, known: Iterable[str] = ()) -> str:
    """One text without secrets: for messages, which may repeat what a server said."""
    return _scrub_text(text, _longest_first(known))


def byte_forms(known: Iterable[str]) -> tuple[bytes, ...]:
    """Each secret as it may stand in the bytes of an answer: as it is, and escaped as in JSON; long ones first."""
    forms = {form for secret in known for form in (secret.encode(), msgspec.json.encode(secret)[1:-1])}
    return tuple(sorted((form for form in forms if len(form) >= SHORTEST_REPLACED), key=len, reverse=True))


def mask_bytes(data: bytes, forms: Iterable[bytes]) -> bytes:
    """`data` with every one of the `byte_forms` replaced."""
    for form in forms:
        if form in data:
            data = data.replace(form, MASK.encode())
    return data


def secret_values(obj: Any) -> set[str]:
    """The values in JSON data that stand under a secret's name, in command lines and JSON text, too.

    A server repeats its key in other places (its launch command), which only the value tells.
    """
    found: set[str] = set()
    _collect(obj, found)
    return found - {"", MASK}


def header_secrets(headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The values that request headers keep secret: keys, tokens, cookies; of `Bearer KEY` the key alone."""
    return tuple(_SCHEME.sub("", value) for name, value in headers if value and is_secret(name))


def _longest_first(known: Iterable[str]) -> list[str]:
    return sorted({secret for secret in known if secret}, key=len, reverse=True)


def _scrub(obj: Any, known: list[str]) -> Any:
    if isinstance(obj, Mapping):
        return {key: MASK if _hides(key, value) else _scrub(value, known) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return _scrub_list(list(obj), known)
    return _scrub_text(obj, known) if isinstance(obj, str) else obj


def _hides(key: Any, value: Any) -> bool:
    countable = value is None or isinstance(value, bool | int | float)
    return isinstance(key, str) and not countable and value not in ("", [], {}) and is_secret(key)


def _scrub_list(items: list[Any], known: list[str]) -> list[Any]:
    clean: list[Any] = []
    for before, item in zip([None, *items], items, strict=False):
        is_value = isinstance(before, str) and before.startswith("-") and "=" not in before and is_secret(before)
        clean.append(MASK if is_value and isinstance(item, str) else _scrub(item, known))
    return clean


def _scrub_text(text: str, known: list[str]) -> str:
    if text in known:
        return MASK
    for secret in known:
        if len(secret) >= SHORTEST_REPLACED:
            text = text.replace(secret, MASK)
    if (inner := _json(text)) is not None:
        clean = _scrub(inner, known)
        return text if clean == inner else msgspec.json.encode(clean).decode()
    header = _HEADER.match(text)
    if header and is_secret(header.group(1)):
        return f"{header.group(1)}: {MASK}"
    text = _USERINFO.sub(rf"\1{MASK}@", text)
    text = _OPTION.sub(lambda m: f"{m[1]}{m[2]}{MASK}" if is_secret(m[1]) else m[0], text)
    text = _MEMBER.sub(lambda m: f'{m[1]}{m[2]}{m[3]}"{MASK}"' if is_secret(m[2]) else m[0], text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    return _ASSIGNED.sub(lambda m: f"{m[1]}={MASK}" if is_secret(m[1]) else m[0], text)


def _json(text: str) -> Any:
    """The data of a text that is a JSON object or array as a whole, else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _collect(obj: Any, found: set[str]) -> None:
    if isinstance(obj, Mapping):
        for name, item in obj.items():
            if not is_secret(str(name)):
                _collect(item, found)
            else:
                found.update(part for part in (item if isinstance(item, list) else [item]) if isinstance(part, str))
    elif isinstance(obj, list):
        for item in obj:
            _collect(item, found)
    elif isinstance(obj, str):
        found.update(m[3].strip("\"'") for m in _OPTION.finditer(obj) if is_secret(m[1]))
        if (inner := _json(obj)) is not None:
            _collect(inner, found)
