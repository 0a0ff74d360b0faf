"""The simulated server as an aiohttp application, on the loopback interface unless told otherwise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

from aiohttp import web

from hicache_bench.errors import MeasureError
from hicache_bench.simserver import generate, routes
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Engine

HOST = "127.0.0.1"
SERVER_HEADER = "hicache-bench simulated"
_MAX_BODY_BYTES = 256 * 2**20
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Running:
    """A server in this process: its URL and engine; close it, or use it as an async context manager."""

    url: str
    engine: Engine
    _runner: web.AppRunner

    async def close(self) -> None:
        """Stop listening and drop open connections."""
        await self._runner.cleanup()
        await self.engine.close()

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()


async def start(config: SimConfig, port: int = 0, host: str = HOST) -> Running:
    """Listen on `host` (`port` 0: any free one). Raises `MeasureError` when that cannot be."""
    engine = Engine(config)
    runner, url = await listen(make_app(engine), host, port)
    return Running(url, engine, runner)


async def listen(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Serve an application; clean the runner up to stop. Raises `MeasureError` for a taken port or unknown host."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=4096)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise MeasureError(f"the simulated server cannot listen on {host}:{port}: {error.strerror}") from None
    shown = f"[{host}]" if ":" in host else host
    return runner, f"http://{shown}:{runner.addresses[0][1]}"


def make_app(engine: Engine) -> web.Application:
    """All routes, every answer marked as simulated."""
    app = bare_app(engine)
    add_answering_routes(app)
    add_engine_routes(app, routes.server_info, routes.model_info)
    return app


def bare_app(engine: Engine) -> web.Application:
    """No route yet; keys are checked, and every answer is marked as simulated."""
    app = web.Application(middlewares=[routes.authorize], client_max_size=_MAX_BODY_BYTES)
    app[generate.ENGINE] = engine
    app.on_response_prepare.append(_mark)
    return app


def add_answering_routes(app: web.Application) -> None:
    """What generates."""
    app.add_routes([
        web.post("/generate", generate.generate), web.put("/generate", generate.generate),
        web.post("/v1/completions", generate.completions),
        web.post("/v1/chat/completions", generate.chat),
    ])


def add_engine_routes(app: web.Application, server_info: _Handler, model_info: _Handler) -> None:
    """Everything else that an engine has."""
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, server_info)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, model_info)
    for path in ("/health", "/health_generate", "/ready"):
        app.router.add_get(path, routes.health)
    for path in ("/tokenize", "/v1/tokenize"):
        app.router.add_post(path, routes.tokenize)
    for path in ("/detokenize", "/v1/detokenize"):
        app.router.add_post(path, routes.detokenize)
    app.add_routes([
        web.get("/flush_cache", routes.flush_cache), web.post("/flush_cache", routes.flush_cache),
        web.get("/hicache/storage-backend", routes.storage_status),
        web.post("/hicache/storage-backend/clear", routes.clear_storage),
        web.post("/abort_request", routes.abort_request),
        web.get("/v1/models", routes.models), web.get("/v1/loads", routes.loads),
        web.get("/metrics", routes.metrics),
    ])


async def _mark(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER_HEADER
