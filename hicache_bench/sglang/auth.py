"""Keys and headers. A key never appears in a repr, a message or a stored file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from multidict import CIMultiDict

from hicache_bench.errors import UsageError

API_KEY_ENV = "HICACHE_BENCH_API_KEY"
ADMIN_KEY_ENV = "HICACHE_BENCH_ADMIN_KEY"

Headers = tuple[tuple[str, str], ...]
"""Header lines in the order given; a name may occur twice."""

_TOKEN_CHARS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "content-encoding"})


@dataclass(frozen=True, slots=True)
class Keys:
    """The key for ordinary routes and the one for administrative routes (None: send no key)."""

    api: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not be written anywhere."""
        return tuple(key for key in (self.api, self.admin) if key)


def load_keys(environ: Mapping[str, str], api_key_file: str | Path | None = None,
              admin_key_file: str | Path | None = None) -> Keys:
    """Keys from a file where one is named, else from the environment; blank means none.

    OPENAI_API_KEY is not read: a key of another service must not reach this server. Raises `UsageError`
    for an unreadable file or a key that cannot be a header value. Source: vllm #33412.
    """
    return Keys(_load_key(environ, API_KEY_ENV, api_key_file),
                _load_key(environ, ADMIN_KEY_ENV, admin_key_file))


def headers_for(keys: Keys, admin: bool) -> dict[str, str]:
    """The `Authorization` header of a route, or none; an admin route takes the admin key if there is one."""
    key = (keys.admin or keys.api) if admin else keys.api
    return {"Authorization": f"Bearer {key}"} if key else {}


def request_headers(keys: Keys, custom: Headers = (), *, admin: bool = False) -> CIMultiDict[str]:
    """`headers_for` and the user's own header lines; an `Authorization` of the user's own replaces ours."""
    merged: CIMultiDict[str] = CIMultiDict(custom)
    if "Authorization" not in merged:
        merged.update(headers_for(keys, admin))
    return merged


def parse_header(text: str) -> tuple[str, str]:
    """`"Name: value"` → `("Name", "value")`; raises `UsageError` (without the value) for anything else."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not set(name) <= _TOKEN_CHARS:
        raise UsageError("a header is written like 'Name: value' and its name has no blanks; "
                         f"got {name[:40]!r} before the colon" if colon else
                         "a header is written like 'Name: value'; the given one has no colon")
    if name.lower() in _FRAMING:
        raise UsageError(f"header {name} belongs to the framing of each request and cannot be set")
    _check_value(value, f"header {name}")
    return name, value


def parse_headers(texts: Iterable[str]) -> Headers:
    """Every `Name: value` in order; a name given twice stays twice."""
    return tuple(parse_header(text) for text in texts)


def _load_key(environ: Mapping[str, str], variable: str, file: str | Path | None) -> str | None:
    if file is None:
        where, text = variable, environ.get(variable, "")
    else:
        where = str(file)
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise UsageError(f"cannot read the key file {where}: {reason}") from None
    key = text.strip()
    _check_value(key, f"the key in {where}")
    return key or None


def _check_value(value: str, what: str) -> None:
    if any((char < " " and char != "\t") or char >= "\x7f" for char in value):
        raise UsageError(f"{what} contains a line break, control character or non-ASCII character; "
                         "allowed: printable ASCII on one line")
