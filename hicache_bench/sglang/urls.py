"""One way to read the address of a server, used by every endpoint of every command."""

from __future__ import annotations

import ipaddress
import re

from hicache_bench.errors import UsageError

_FORMS = "write it like http://host:30000, host:30000, https://host/prefix or http://[::1]:30000"
_HOST = re.compile(r"[A-Za-z0-9._~-]+")
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+(?:%25[A-Za-z0-9._~-]+)?)\](?::(.*))?")


def normalize_base(text: str, port: int | None = None) -> str:
    """The base URL meant by `text`: scheme, host, port, path prefix; no trailing slash, no `/v1`.

    A missing scheme means http. `port` is used where the text has none, so that `--host ::1 --port 8000`
    works. A user name or password in the text, another scheme, a query or a fragment raise `UsageError`;
    its message never repeats a password. Source of the cases: vllm #28679, sglang #28598.
    """
    text = text.strip()
    if not text:
        raise UsageError(f"the server address is empty; {_FORMS}")
    if "@" in text:
        raise UsageError(f"the server address must not contain a user name or password; {_FORMS}; keys come "
                         "from HICACHE_BENCH_API_KEY and HICACHE_BENCH_ADMIN_KEY")
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "http", text
    scheme = scheme.lower()
    if scheme not in ("http", "https"):
        raise UsageError(f"server address {text!r} has the scheme {scheme!r}; allowed: http, https")
    if any(char in rest for char in "?#\\") or any(char <= " " or char == "\x7f" for char in rest):
        raise UsageError(f"server address {text!r} contains a query, fragment, blank or control character; "
                         f"{_FORMS}")
    authority, slash, path = rest.partition("/")
    host, given_port = _split_authority(authority, text)
    effective = given_port if given_port is not None else port
    if effective is not None and not 1 <= effective <= 65535:
        raise UsageError(f"server address {text!r} has port {effective}; allowed: 1 to 65535")
    suffix = f":{effective}" if effective is not None else ""
    return f"{scheme}://{host}{suffix}{_clean_path(slash + path)}"


def join(base: str, path: str) -> str:
    """`base` and `path` with exactly one slash between them."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def _clean_path(path: str) -> str:
    path = re.sub(r"/+", "/", path).rstrip("/")
    return path[: -len("/v1")] if path == "/v1" or path.endswith("/v1") else path


def _split_authority(authority: str, text: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        match = _BRACKETED.fullmatch(authority)
        if match is None or not _is_ipv6(match.group(1).partition("%")[0]):
            raise UsageError(f"server address {text!r} has no valid IPv6 address in brackets; {_FORMS}")
        return f"[{match.group(1)}]", _parse_port(match.group(2), text)
    if authority.count(":") > 1:
        return _bare_ipv6(authority, text), None
    host, colon, port = authority.partition(":")
    if not _HOST.fullmatch(host):
        raise UsageError(f"server address {text!r} has no valid host name; {_FORMS}")
    return host, _parse_port(port if colon else None, text)


def _bare_ipv6(address: str, text: str) -> str:
    head, _, tail = address.rpartition(":")
    if _is_ipv6(head) and tail.isdecimal() and len(tail) > 3:
        # "::1:8000" is a valid address, but whoever writes it nearly always means a port
        raise UsageError(f"server address {text!r} can be read in two ways; "
                         f"write [{head}]:{tail} or [{address}]")
    if not _is_ipv6(address):
        raise UsageError(f"server address {text!r} has more than one colon but is no IPv6 address; {_FORMS}")
    return f"[{address}]"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _parse_port(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 5:
        raise UsageError(f"server address {where!r} has port {text!r}; allowed: 1 to 65535")
    return int(text)
