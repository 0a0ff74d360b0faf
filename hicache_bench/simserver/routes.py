"""The other routes: tokenizer, cache control, information; and who may call which."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from hicache_bench.simserver import info
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.generate import ENGINE, json_response
from hicache_bench.simserver.metrics import metrics_page
from hicache_bench.simserver.requests import Rejected, chat_text
from hicache_bench.simserver.tokenizer import decode, encode

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OPEN = ("/health", "/ready", "/metrics")
_ADMIN = ("/flush_cache", "/hicache/")
_FLUSHED = ("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting "
            "requests, the operation will not be performed.)\n")
_NO_ADMIN_KEY = {"error": "This endpoint requires admin API key, but this server was started without one."}


def allowed(config: SimConfig, path: str, authorization: str | None) -> bool:
    """SGLang's rules (srt/utils/auth.py): health and metrics open, admin routes want the admin key where
    there is one, everything else the API key where there is one."""
    if path.startswith(_OPEN):
        return True
    wanted = config.api_key
    if path.startswith(_ADMIN) and config.admin_api_key:
        wanted = config.admin_api_key
    if not wanted:
        return True
    scheme, _, key = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(key.encode(), wanted.encode())


@web.middleware
async def authorize(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """401 for a missing or wrong key; 404 in SGLang's words."""
    if not allowed(request.app[ENGINE].config, request.path, request.headers.get("Authorization")):
        return json_response({"error": "Unauthorized"}, 401)
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return json_response({"detail": "Not Found"}, 404)
    except web.HTTPMethodNotAllowed:
        return json_response({"detail": "Method Not Allowed"}, 405)
    except web.HTTPRequestEntityTooLarge:
        return json_response({"detail": "body too large"}, 413)


async def flush_cache(request: web.Request) -> web.Response:
    """GET or POST /flush_cache?timeout=S: only when idle, waiting up to S seconds for it."""
    engine = request.app[ENGINE]
    try:
        timeout_s = float(request.query.get("timeout", "0"))
    except ValueError:
        timeout_s = -1.0
    if not timeout_s >= 0:
        return json_response({"detail": "timeout must be a number of seconds, 0 or more"}, 422)
    if not await engine.flush(timeout_s):
        return web.Response(text="Timed out waiting for idle state.\n" if timeout_s else "Flush cache failed.\n",
                            status=400)
    return web.Response(text=_FLUSHED)


async def clear_storage(request: web.Request) -> web.Response:
    """POST /hicache/storage-backend/clear: 200 whenever HiCache is on, storage or not, as SGLang does."""
    engine = request.app[ENGINE]
    if not engine.config.enable_hierarchical_cache:
        return web.Response(text="Failed to clear hierarchical cache storage backend.\n", status=400)
    engine.clear_storage()
    return web.Response(text="Hierarchical cache storage backend cleared.\n")


async def abort_request(request: web.Request) -> web.Response:
    """POST /abort_request {"rid": …} or {"abort_all": true}: 200 whatever it found, as SGLang answers."""
    try:
        body = await _object(request)
    except Rejected as error:
        return json_response({"error": {"message": str(error)}}, 400)
    rid = body.get("rid")
    request.app[ENGINE].abort(rid if isinstance(rid, str) else "", everything=body.get("abort_all") is True)
    return web.Response()


async def storage_status(request: web.Request) -> web.Response:
    """GET /hicache/storage-backend: only where an admin key is configured."""
    config = request.app[ENGINE].config
    if not config.admin_api_key:
        return json_response(_NO_ADMIN_KEY, 400)
    return json_response(info.storage_status(config))


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize {"prompt": text or list} or {"messages": […]}."""
    config = request.app[ENGINE].config
    try:
        body = await _object(request)
        prompt = body.get("prompt")
        if prompt is None:
            prompt = chat_text(body.get("messages"))
        if isinstance(prompt, str):
            ids = encode(prompt)
            return json_response({"tokens": ids, "count": len(ids), "max_model_len": config.context_length})
        if not isinstance(prompt, list) or not all(isinstance(text, str) for text in prompt):
            raise Rejected("prompt must be a string or a list of strings")
    except Rejected as error:
        return json_response({"object": "error", "message": str(error), "type": "BadRequestError",
                              "param": None, "code": 400}, 400)
    lists = [encode(text) for text in prompt]
    return json_response({"tokens": lists, "count": [len(ids) for ids in lists],
                          "max_model_len": config.context_length})


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize {"tokens": ids or list of ids}."""
    try:
        tokens = (await _object(request)).get("tokens")
        if isinstance(tokens, list) and tokens and all(isinstance(ids, list) for ids in tokens):
            return json_response({"text": [decode(_checked(ids)) for ids in tokens]})
        return json_response({"text": decode(_checked(tokens))})
    except Rejected as error:
        return json_response({"object": "error", "message": str(error), "type": "BadRequestError",
                              "param": None, "code": 400}, 400)


async def health(request: web.Request) -> web.Response:
    """GET /health, /health_generate, /ready: empty 200."""
    return web.Response()


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics, where switched on."""
    engine = request.app[ENGINE]
    if not engine.config.enable_metrics:
        return json_response({"detail": "Not Found"}, 404)
    return web.Response(body=metrics_page(engine.config, engine).encode(),
                        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def server_info(request: web.Request) -> web.Response:
    """GET /server_info."""
    engine = request.app[ENGINE]
    return json_response(info.server_info(engine.config, engine))


async def model_info(request: web.Request) -> web.Response:
    """GET /model_info."""
    return json_response(info.model_info(request.app[ENGINE].config))


async def models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    engine = request.app[ENGINE]
    return json_response(info.models(engine.config, engine))


async def loads(request: web.Request) -> web.Response:
    """GET /v1/loads."""
    engine = request.app[ENGINE]
    return json_response(info.loads(engine.config, engine))


def _checked(tokens: Any) -> list[int]:
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < 2**32 for token in tokens):
        raise Rejected("tokens must be a list of ids or a list of such lists")
    return tokens


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Rejected("the body must be a JSON object")
    return body
