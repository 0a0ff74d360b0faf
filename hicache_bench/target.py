"""Which server is measured and how it is reached."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from hicache_bench.errors import UsageError
from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.auth import Headers, Keys, request_headers
from hicache_bench.sglang.scraper import Source, parse_source
from hicache_bench.sglang.urls import join
from hicache_bench.workload.english import WORDS
from hicache_bench.workload.tokens import TokenSpace, load_tokenizer

ENGINE = "server"
"""Name of the metrics source that is the measured server itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the way to it. `admin_url` is the engine behind a router (PD); None: the same."""

    url: str
    admin_url: str | None = None
    keys: Keys = field(default_factory=Keys)
    headers: Headers = ()
    ca_file: Path | None = None
    insecure: bool = False
    proxies_from_env: bool = False
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

    def transport(self) -> AiohttpTransport:
        return AiohttpTransport(
            self.url,
            request_headers(self.keys, self.headers),
            tls=self.tls(),
            proxies_from_env=self.proxies_from_env,
        )

    def sources(self) -> list[Source]:
        """The metrics pages to poll: the engine's own, then whatever else was named."""
        own = Source(ENGINE, join(self.admin_url or self.url, "/metrics"), dict(self.headers))
        return [own, *(parse_source(text, f"m{i}") for i, text in enumerate(self.metrics_urls, 1))]


async def english_space(target: Target, admin: Admin, nonce: str) -> TokenSpace:
    """Natural English in this server's tokens: by a local tokenizer file, else the server's /tokenize."""
    if target.tokenizer is not None:
        encode: Callable[[Sequence[str]], list[list[int]]] = load_tokenizer(target.tokenizer)
        return TokenSpace.english(encode(WORDS), nonce)
    return TokenSpace.english(await admin.tokenize(WORDS), nonce)
