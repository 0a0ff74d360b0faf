"""Which server is measured and how it is reached."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp

from hicache_bench.errors import UsageError
from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.fast import FastTransport, suits
from hicache_bench.load.transport import Transport
from hicache_bench.records import Exchange, WireRequest
from hicache_bench.scrub import byte_forms, header_secrets, mask_bytes, scrub_text
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.auth import Headers, Keys, request_headers
from hicache_bench.sglang.scraper import Source, parse_source
from hicache_bench.sglang.urls import join
from hicache_bench.workload.english import WORDS
from hicache_bench.workload.tokens import TokenSpace, load_tokenizer

ENGINE = "server"
"""Name of the metrics source that is the measured server itself."""

SEARCHED_READS = 4
"""So many reads at the end of a good answer are searched for secrets."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the way to it. `admin_url` is the engine behind a router (PD); None: the same. `careful` asks
    for the aiohttp transport."""

    url: str
    admin_url: str | None = None
    keys: Keys = field(default_factory=Keys)
    headers: Headers = ()
    ca_file: Path | None = None
    insecure: bool = False
    proxies_from_env: bool = False
    careful: bool = False
    metrics_urls: tuple[str, ...] = ()
    metrics_interval_ns: int = 5_000_000_000
    tokenizer: Path | None = None
    model: str | None = None

    def tls(self) -> ssl.SSLContext | bool:
        """The certificate check: the system's, a CA file's, or none (`--insecure`)."""
        if self.insecure:
            return False
        if self.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"cannot read the CA file {self.ca_file}: {error}") from None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Admin]:
        """An administrative client with a session of its own (never the measured connections)."""
        connector = aiohttp.TCPConnector(ssl=self.tls())
        async with aiohttp.ClientSession(connector=connector, trust_env=self.proxies_from_env) as session:
            yield Admin(session, self.url, self.admin_url, self.keys, self.headers)

    def check(self) -> None:
        """Whatever can be found wrong without a server, before one is asked. Raises UsageError."""
        self.tls()
        names = [source.name for source in self.sources()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"--metrics-url: {' '.join(twice)} names two pages; every page needs a name of its own "
                             f"({ENGINE!r} is the measured server's)")
        if self.tokenizer is not None:
            try:
                self.tokenizer.open("rb").close()
            except OSError as error:
                raise UsageError(f"cannot read the tokenizer file {self.tokenizer}: {error.strerror}") from None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must reach nothing but the server: keys, and secrets among the user's own headers."""
        return tuple(dict.fromkeys((*self.keys.secrets, *header_secrets(self.headers))))

    def transport(self, connections: int = 0) -> Transport:
        """What sends the measured requests, not open yet; the fast one opens `connections` ahead of the load."""
        headers = request_headers(self.keys, self.headers)
        plain: Transport
        if self.transport_name == "fast":
            plain = FastTransport(self.url, headers, tls=self.tls(), connections=connections)
        else:
            plain = AiohttpTransport(self.url, headers, tls=self.tls(), proxies_from_env=self.proxies_from_env)
        return DiscreetTransport(plain, self.secrets) if self.secrets else plain

    @property
    def transport_name(self) -> Literal["fast", "aiohttp"]:
        """`fast`, except through a proxy, for an address it does not take, or when asked otherwise."""
        careful = self.careful or not suits(self.url, proxies_from_env=self.proxies_from_env)
        return "aiohttp" if careful else "fast"

    def sources(self) -> list[Source]:
        """The metrics pages to poll: the engine's own, then whatever else was named."""
        own = Source(ENGINE, join(self.admin_url or self.url, "/metrics"), dict(self.headers))
        return [own, *(parse_source(text, f"m{i}") for i, text in enumerate(self.metrics_urls, 1))]


class DiscreetTransport:
    """Takes secrets out of what a server says before it is recorded: some repeat the request's headers.

    Error bodies are searched whole, answers only in their last reads, where an error in a stream stands. That
    happens after the last stamp. Only used when there is a secret to hide.
    """

    def __init__(self, inner: Transport, secrets: Sequence[str]) -> None:
        self._inner = inner
        self._texts = tuple(secrets)
        self._forms = byte_forms(secrets)

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def send(self, request: WireRequest, exchange: Exchange, timeout_ns: int | None) -> None:
        """See `Transport.send`."""
        try:
            await self._inner.send(request, exchange, timeout_ns)
        finally:
            self._hide(exchange)

    def _hide(self, exchange: Exchange) -> None:
        reads = exchange.reads
        if reads and exchange.status is not None and exchange.status >= 400:
            # One piece, since a read may end in the middle of a key; errors have no token instants.
            reads[:] = [(reads[-1][0], mask_bytes(b"".join(data for _, data in reads), self._forms))]
        else:
            reads[-SEARCHED_READS:] = [(at_ns, mask_bytes(data, self._forms))
                                       for at_ns, data in reads[-SEARCHED_READS:]]
        if exchange.failure is not None:
            exchange.failure = (exchange.failure[0], scrub_text(exchange.failure[1], self._texts))


async def english_space(target: Target, admin: Admin, nonce: str) -> TokenSpace:
    """Natural English in this server's tokens: by a local tokenizer file, else the server's /tokenize."""
    if target.tokenizer is not None:
        encode: Callable[[Sequence[str]], list[list[int]]] = load_tokenizer(target.tokenizer)
        return TokenSpace.english(encode(WORDS), nonce)
    return TokenSpace.english(await admin.tokenize(WORDS), nonce)
