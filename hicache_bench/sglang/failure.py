"""Why no answer came, in words that say what to do: one function for everything a socket or aiohttp raises."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_GONE = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)


def explain(error: BaseException, url: str, timeout_s: float | None = None) -> str:
    """One line about a call to `url` that failed: refused, name not found, no way there, timeout, TLS, not HTTP.

    `timeout_s` is the time the call had. Never empty; names the address, not the library.
    """
    where = _origin(url)
    for kinds, words in _WORDS:
        if isinstance(error, kinds) and (said := words(error, where, url)):
            return said
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        within = "" if timeout_s is None else f" within {timeout_s:g} s"
        return f"no answer from {url}{within}; is the server busy or stuck, or a firewall in the way?"
    return f"no answer from {url}: {_short(error)}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _certificate(error: BaseException, where: str, _url: str) -> str:
    inner = getattr(error, "certificate_error", error)
    reason = getattr(inner, "verify_message", "") or _short(inner)
    return (f"the certificate of {where} is not accepted ({reason}); name its CA with --ca-file, or use --insecure "
            "to skip the check")


def _tls(error: BaseException, where: str, _url: str) -> str:
    inner = getattr(error, "os_error", error)
    reason = (getattr(inner, "reason", None) or _short(inner)).replace("_", " ").lower()
    return f"no TLS connection to {where} ({reason}); does the server speak plain http? Then write http://"


def _slow(_error: BaseException, where: str, _url: str) -> str:
    return f"no connection to {where} in time; is the address right, or a firewall in the way?"


def _closed(_error: BaseException, where: str, _url: str) -> str:
    return f"{where} closed the connection without an answer; is it SGLang, and is it http or https?"


def _cut_short(_error: BaseException, _where: str, url: str) -> str:
    return f"the connection was lost in the middle of the answer from {url}"


def _no_http(_error: BaseException, where: str, _url: str) -> str:
    return f"what listens at {where} does not speak HTTP; is that SGLang's port?"


def _socket(error: BaseException, where: str, url: str) -> str:
    inner = getattr(error, "os_error", error)
    numbers = {getattr(inner, "errno", None), *map(int, _ERRNO.findall(str(inner)))}
    if isinstance(inner, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"host name {urlsplit(url).hostname} not found; is the address {where} right?"
    if errno.ECONNREFUSED in numbers or "Connect call failed" in str(inner):
        return f"connection refused at {where}; is SGLang running there?"
    if numbers & {*_UNREACHABLE}:
        return f"no network route to {where}; is the address right?"
    if errno.ETIMEDOUT in numbers:
        return _slow(error, where, url)
    if numbers & {*_GONE}:
        return f"the connection to {where} was reset; is it SGLang, and is it http or https?"
    if numbers & {errno.EMFILE, errno.ENFILE}:
        return f"no connection to {where}: this client ran out of file descriptors; raise `ulimit -n`"
    return ""


_WORDS: tuple[tuple[tuple[type[BaseException], ...], Callable[[BaseException, str, str], str]], ...] = (
    ((aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError), _certificate),
    ((aiohttp.ClientConnectorSSLError, ssl.SSLError), _tls),
    ((aiohttp.ConnectionTimeoutError,), _slow),
    ((aiohttp.ServerDisconnectedError,), _closed),
    ((aiohttp.ClientPayloadError,), _cut_short),
    ((aiohttp.ClientResponseError,), _no_http),
    ((aiohttp.ClientConnectorError, OSError), _socket),
)
"""Kinds of error, the special ones first, and what to say."""


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()).replace(" ssl:default", "")
    return text[:200] or type(error).__name__
