"""The answering routes: /generate, /v1/completions, /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from hicache_bench.simserver.engine import Engine, Generation, Job
from hicache_bench.simserver.native import error_response, native_item, stream_error, whole_text
from hicache_bench.simserver.openai import Shape
from hicache_bench.simserver.requests import Rejected, chat_jobs, completion_jobs, native_jobs, wants_stream
from hicache_bench.simserver.tokenizer import decode

ENGINE: web.AppKey[Engine] = web.AppKey("engine", Engine)

_Step = tuple[int, Generation, int, int]
"""(job index, generation, tokens so far, tokens already sent)."""
_DONE = b"data: [DONE]\n\n"
_FAULT_EVENT = 1
"""The event of a stream before which it stalls or is cut."""


async def generate(request: web.Request) -> web.StreamResponse:
    """POST /generate: an object for one prompt, a list for a batch, events for `stream`."""
    engine = request.app[ENGINE]
    if engine.faults.error_500():
        return json_response({"error": {"message": "injected fault"}}, 500)
    body: Any = None
    try:
        body = await _body(request)
        jobs, batch = native_jobs(engine.config, body)
    except Rejected as error:
        if isinstance(body, dict) and wants_stream(body) and not error.schema:
            return await _send_events(request, _only(stream_error(str(error))))
        reply = error_response(str(error), "Bad Request") if error.schema else {"error": {"message": str(error)}}
        return json_response(reply, 400)
    if wants_stream(body):
        return await _send_events(request, _native_events(engine, jobs, batch))
    generations = await _complete(engine, jobs)
    items = [native_item(engine.config, generation, len(generation.output_ids), 0, whole_text(generation),
                         last=True) for generation in generations]
    return json_response(items if batch else items[0])


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    return await _openai(request, completion_jobs, chat=False)


async def chat(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await _openai(request, chat_jobs, chat=True)


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON answer with SGLang's content type."""
    return web.Response(body=msgspec.json.encode(value), status=status,
                        headers={"Content-Type": "application/json"})


async def _openai(request: web.Request, read_jobs: Callable[..., list[Job]], *,
                  chat: bool) -> web.StreamResponse:
    engine = request.app[ENGINE]
    if engine.faults.error_500():
        return json_response(error_response("injected fault", "InternalServerError") | {"code": 500}, 500)
    try:
        body = await _body(request)
        jobs = read_jobs(engine.config, body)
    except Rejected as error:
        return json_response(error_response(str(error), "BadRequestError"), 400)
    shape = Shape(engine.config, body, jobs[0].rid, chat=chat)
    if wants_stream(body):
        return await _send_events(request, _openai_events(engine, jobs, shape))
    return json_response(shape.answer(await _complete(engine, jobs)))


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError):
        raise Rejected("the body is not JSON", schema=True) from None
    if not isinstance(body, dict):
        raise Rejected("the body must be a JSON object", schema=True)
    return body


async def _complete(engine: Engine, jobs: Sequence[Job]) -> list[Generation]:
    async def one(job: Job) -> Generation:
        async with engine.answer(job) as generation:
            async for _ in generation.progress(max(1, len(generation.output_ids))):
                pass
            return generation

    if len(jobs) == 1:
        return [await one(jobs[0])]
    return list(await asyncio.gather(*map(one, jobs)))


async def _native_events(engine: Engine, jobs: Sequence[Job], batch: bool) -> AsyncGenerator[Any, None]:
    config = engine.config
    texts = [""] * len(jobs)
    async with aclosing(_steps(engine, jobs)) as steps:
        async for index, generation, done, sent in steps:
            new = decode(generation.output_ids[sent:done])
            texts[index] = new if config.incremental_streaming_output else texts[index] + new
            item = native_item(config, generation, done, sent, texts[index],
                               last=done == len(generation.output_ids))
            yield item | {"index": index} if batch else item


async def _openai_events(engine: Engine, jobs: Sequence[Job], shape: Shape) -> AsyncGenerator[Any, None]:
    generations: dict[int, Generation] = {}
    async with aclosing(_steps(engine, jobs)) as steps:
        async for index, generation, done, sent in steps:
            if index not in generations:
                generations[index] = generation
                if shape.chat:
                    yield shape.role_chunk(index)
            last = done == len(generation.output_ids)
            text = decode(generation.output_ids[sent:done])
            if text or not shape.chat:
                yield shape.text_chunk(index, text, generation, done, last=last)
            if last and shape.chat:
                yield shape.finish_chunk(index)
    for chunk in shape.closing_chunks([generations[index] for index in sorted(generations)]):
        yield chunk


async def _steps(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[_Step, None]:
    """Progress of all jobs as it happens, several at the same time merged through a queue."""
    if len(jobs) == 1:
        async with engine.answer(jobs[0]) as generation:
            sent = 0
            async for done in generation.progress(engine.config.stream_interval):
                yield 0, generation, done, sent
                sent = done
        return
    queue: asyncio.Queue[_Step | None] = asyncio.Queue()

    async def run(index: int, job: Job) -> None:
        async with aclosing(_steps(engine, [job])) as steps:
            async for _, generation, done, sent in steps:
                queue.put_nowait((index, generation, done, sent))
        queue.put_nowait(None)

    tasks = [asyncio.create_task(run(index, job)) for index, job in enumerate(jobs)]
    try:
        left = len(tasks)
        while left:
            step = await queue.get()
            if step is None:
                left -= 1
            else:
                yield step
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _counted(items: AsyncGenerator[Any, None]) -> AsyncGenerator[tuple[int, Any], None]:
    number = 0
    async for item in items:
        yield number, item
        number += 1


async def _only(item: Any) -> AsyncGenerator[Any, None]:
    yield item


async def _send_events(request: web.Request, items: AsyncGenerator[Any, None]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    encoder = msgspec.json.Encoder()
    faults = request.app[ENGINE].faults
    stall_s, cut = faults.stall_s(), faults.cut()
    try:
        async with aclosing(items) as events:
            async for number, item in _counted(events):
                if number == _FAULT_EVENT and stall_s:
                    await asyncio.sleep(stall_s)
                if number == _FAULT_EVENT and cut and request.transport is not None:
                    request.transport.close()  # no end of the chunked body: the client must notice
                    break
                await response.write(b"data: " + encoder.encode(item) + b"\n\n")
        await response.write(_DONE)
        await response.write_eof()
    except ConnectionError:
        pass  # the client has gone; the engine has taken note of the abort
    return response
