"""Administrative calls to one SGLang server: flush, clear, tokenize, health.

Behind a router only /generate and /flush_cache exist, so there are two base URLs: `base_url` takes load and
flush, `admin_url` (an engine) takes everything else. Routes: srt/entrypoints/http_server.py of 0.5.23.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from multidict import CIMultiDict

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import ServerError
from hicache_bench.scrub import header_secrets
from hicache_bench.sglang.auth import Headers, Keys, request_headers
from hicache_bench.sglang.httpcall import Answer, call, refusal
from hicache_bench.sglang.urls import join

# The first is the route of 0.5.23; the others are names of older releases and documents.
_CLEAR_ROUTES = ("/hicache/storage-backend/clear", "/clear_hicache_storage_backend", "/clear_hicache_storage")
_TOKENIZE_ROUTES = ("/tokenize", "/v1/tokenize")
_ABSENT = (404, 405)
_BUSY_TEXTS = ("flush cache failed", "timed out waiting", "already in progress")

_CALL_TIMEOUT_S = 30.0
_TOKENIZE_TIMEOUT_S = 300.0
_TOKENIZE_TEXTS = 512
_TOKENIZE_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class FlushResult:
    """A flush that the server confirmed: device and host tiers are empty, storage is untouched."""

    url: str
    attempts: int
    waited_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class ClearResult:
    """A storage clear that the server accepted. SGLang says 200 even when the backend's clear failed or no
    storage is attached, so only a probe proves it."""

    url: str
    message: str


class Admin:
    """Administrative client of one server; `session` stays the caller's."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, admin_url: str | None = None,
                 keys: Keys | None = None, headers: Headers = ()) -> None:
        self.session = session
        self.base_url = base_url
        self.admin_url = admin_url or base_url
        self.keys = keys or Keys()
        self._headers = headers

    def headers(self, *, admin: bool = False) -> CIMultiDict[str]:
        """The header lines this client sends to an ordinary or administrative route."""
        return request_headers(self.keys, self._headers, admin=admin)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not be written anywhere: both keys, and secrets among the user's own headers."""
        return (*self.keys.secrets, *header_secrets(self._headers))

    async def flush(self, timeout_s: float = 30.0) -> FlushResult:
        """Empty device and host tier, waiting up to `timeout_s` seconds until the server is idle.

        SGLang answers 400 while anything is in flight, storage backups included, so a busy answer is
        retried until the deadline. Raises `ServerError` (status 400 when it stayed busy).
        """
        started = time.monotonic()
        bases = _distinct(self.base_url, self.admin_url)
        attempts, index, pause = 0, 0, 0.05
        while True:
            left = max(timeout_s - (time.monotonic() - started), 0.0)
            attempts += 1
            answer = await call(self.session, "POST", join(bases[index], "/flush_cache"),
                                params={"timeout": f"{left:.3f}"}, headers=self.headers(admin=True),
                                timeout_s=left + _CALL_TIMEOUT_S)
            if answer.status == 200:
                waited_ns = round((time.monotonic() - started) * NS_PER_S)
                return FlushResult(answer.url, attempts, waited_ns, answer.excerpt)
            if answer.status in _ABSENT and index + 1 < len(bases):
                index += 1
                continue
            if not _is_busy(answer):
                raise refusal(answer)
            left = timeout_s - (time.monotonic() - started)
            if left <= 0:
                raise ServerError(f"{answer.url}: the server was not idle within {timeout_s:g} s "
                                  f"({attempts} attempts; last answer: {answer.excerpt})", answer.status)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, 1.0)

    async def clear_storage(self) -> ClearResult:
        """Ask for an empty storage tier, by the current route's name, then by the older ones."""
        answer = await self._first_present("POST", _CLEAR_ROUTES, admin=True)
        if answer.status != 200:
            raise refusal(answer)
        return ClearResult(answer.url, answer.excerpt)

    async def storage_status(self) -> dict[str, Any] | None:
        """The attached storage backend and policies (GET /hicache/storage-backend); None when the server has
        no such route or gives no status without an admin key of its own."""
        answer = await self._get("/hicache/storage-backend", admin=True)
        if answer.status in _ABSENT or (answer.status == 400 and "admin" in answer.text.lower()):
            return None
        return _json_object(answer)

    async def tokenize(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[list[int]]:
        """Token ids of each text, in order, by the server's own tokenizer (batched calls)."""
        tokens: list[list[int]] = []
        for batch in _batches(texts):
            answer = await self._first_present(
                "POST", _TOKENIZE_ROUTES, timeout_s=_TOKENIZE_TIMEOUT_S,
                json={"prompt": batch, "add_special_tokens": add_special_tokens})
            tokens += _token_lists(_json_object(answer), len(batch), answer)
        return tokens

    async def health(self, timeout_s: float = _CALL_TIMEOUT_S) -> bool:
        """Whether every base URL answers 200 to /health. Raises `ServerError` when one does not answer."""
        for base in _distinct(self.base_url, self.admin_url):
            answer = await call(self.session, "GET", join(base, "/health"), headers=self.headers(),
                                timeout_s=timeout_s)
            if answer.status != 200:
                return False
        return True

    async def wait_ready(self, deadline_s: float) -> None:
        """Return as soon as the server is healthy; raise `ServerError` after `deadline_s` seconds."""
        started = time.monotonic()
        reason = "it answered unhealthy"
        while (left := deadline_s - (time.monotonic() - started)) > 0:
            try:
                if await self.health(min(left, _CALL_TIMEOUT_S)):
                    return
                reason = "it answered unhealthy"
            except ServerError as error:
                reason = str(error)
            await asyncio.sleep(min(0.25, max(left, 0)))
        raise ServerError(f"server {self.base_url} was not ready within {deadline_s:g} s: {reason}")

    async def loads(self) -> dict[str, Any] | None:
        """GET /v1/loads of the engine; None when it has no such route."""
        return await self.get_object("/v1/loads")

    async def get_object(self, *paths: str) -> dict[str, Any] | None:
        """The JSON object at the first of `paths` that the engine knows; None when it knows none."""
        for path in paths:
            answer = await self._get(path)
            if answer.status not in _ABSENT:
                return _json_object(answer)
        return None

    async def _get(self, path: str, *, admin: bool = False) -> Answer:
        return await call(self.session, "GET", join(self.admin_url, path), timeout_s=_CALL_TIMEOUT_S,
                          headers=self.headers(admin=admin))

    async def _first_present(self, method: str, paths: Sequence[str], *, admin: bool = False,
                             json: Any = None, timeout_s: float = _CALL_TIMEOUT_S) -> Answer:
        for path in paths:
            answer = await call(self.session, method, join(self.admin_url, path), json=json,
                                timeout_s=timeout_s, headers=self.headers(admin=admin))
            if answer.status not in _ABSENT:
                return answer
        raise ServerError(f"{self.admin_url} has none of the routes {' '.join(paths)} "
                          "(behind a router, point --admin-url at an engine)", 404)


def _distinct(first: str, second: str) -> tuple[str, ...]:
    return (first,) if first == second else (first, second)


def _is_busy(answer: Answer) -> bool:
    text = answer.text.lower()
    return answer.status in (400, 503) and any(sign in text for sign in _BUSY_TEXTS)


def _json_object(answer: Answer) -> dict[str, Any]:
    if answer.status != 200:
        raise refusal(answer)
    value = answer.json()
    if not isinstance(value, dict):
        raise ServerError(f"{answer.url} answered no JSON object: {answer.excerpt}", answer.status)
    return value


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) >= _TOKENIZE_TEXTS or chars + len(text) > _TOKENIZE_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch


def _token_lists(reply: Mapping[str, Any], expected: int, answer: Answer) -> list[list[int]]:
    tokens = reply.get("tokens")
    if isinstance(tokens, list) and expected == 1 and all(isinstance(token, int) for token in tokens):
        tokens = [tokens]
    if not isinstance(tokens, list) or len(tokens) != expected or not all(
            isinstance(ids, list) and all(isinstance(token, int) for token in ids) for ids in tokens):
        raise ServerError(f"{answer.url} answered no list of {expected} token lists: {answer.excerpt}",
                          answer.status)
    return tokens
