"""One bounded administrative HTTP call: whole answer or a typed error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from hicache_bench.errors import ServerError
from hicache_bench.scrub import header_secrets, scrub_text
from hicache_bench.sglang.auth import ADMIN_KEY_ENV, API_KEY_ENV
from hicache_bench.sglang.failure import explain

MAX_BODY_BYTES = 256 * 2**20
_EXCERPT_CHARS = 300
_SEARCHED_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: where from, status, body. `secrets` are what the request told the server in confidence."""

    url: str
    status: int
    body: bytes
    content_type: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def excerpt(self) -> str:
        """The first few hundred characters on one line, for messages; a key that the server repeats is hidden."""
        line = scrub_text(" ".join(self.text[:_SEARCHED_CHARS].split()), self.secrets)
        return line[:_EXCERPT_CHARS] + ("…" if len(line) > _EXCERPT_CHARS else "") or "(empty body)"

    def json(self) -> Any:
        """The decoded body; raises `ServerError` when it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError, ValueError):
            raise ServerError(f"{self.url} answered something that is not JSON: {self.excerpt}",
                              self.status) from None


async def call(session: aiohttp.ClientSession, method: str, url: str, *, headers: Mapping[str, str],
               timeout_s: float, json: Any = None, params: Mapping[str, str] | None = None,
               max_bytes: int = MAX_BODY_BYTES) -> Answer:
    """Send one request and read the whole answer, whatever its status.

    Raises `ServerError` with status None when no complete answer came within `timeout_s` seconds or it is
    longer than `max_bytes`.
    """
    body = None if json is None else msgspec.json.encode(json)
    sent = {} if body is None else {"Content-Type": "application/json"}
    try:
        async with session.request(method, url, data=body, params=params, allow_redirects=False,
                                   headers=[*headers.items(), *sent.items()],
                                   timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            data = await _read_bounded(response, url, max_bytes)
            return Answer(url, response.status, data, response.headers.get("Content-Type", ""),
                          header_secrets(headers.items()))
    except (asyncio.TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        # On Python 3.10 asyncio's timeout is no OSError.
        raise ServerError(explain(error, url, timeout_s)) from None


async def _read_bounded(response: aiohttp.ClientResponse, url: str, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > max_bytes:
            raise ServerError(f"{url} sent more than {max_bytes} bytes; given up", response.status)
    return bytes(body)


def refusal(answer: Answer) -> ServerError:
    """The error for an answer with an unexpected status, with advice where there is some."""
    advice = _ADVICE.get(answer.status, "")
    return ServerError(f"{answer.url} answered {answer.status}: {answer.excerpt}{advice}", answer.status)


_KEY_ADVICE = (f" (the server wants a key: set {API_KEY_ENV}, and {ADMIN_KEY_ENV} for a server started with "
               "--admin-api-key)")
_ADVICE = {
    401: _KEY_ADVICE,
    403: _KEY_ADVICE,
    404: " (no such route here: a router needs --admin-url pointing at an engine)",
    503: " (the server is starting or unhealthy)",
}
