"""From the raw log of one request to what its answer says: pure, and without exceptions on any bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hicache_bench.records import Exchange, Folded, Outcome, WireRequest
from hicache_bench.scrub import scrub_text
from hicache_bench.wire import generate, openai
from hicache_bench.wire.answer import Answer
from hicache_bench.wire.sse import MAX_EVENT_BYTES, LineTooLong, SseEvent, SseParser, parse_block
from hicache_bench.wire.values import MAX_ERROR_CHARS, BadJson, decode_json, error_message, token_ids

Verdict = tuple[Outcome, str | None]

_READERS: dict[str, Callable[[Answer, dict[str, Any], int | None, bool], None]] = {
    "generate": generate.read,
    "completions": openai.read,
    "chat": openai.read,
}
_FILLERS: dict[str, Callable[[Answer, Folded], None]] = {
    "generate": generate.fill,
    "completions": openai.fill,
    "chat": openai.fill,
}
_DONE = b"[DONE]"


class _NoAnswer(Exception):
    """Bytes that are no answer of this API; the message starts with a short code."""


def fold(
    request: WireRequest,
    exchange: Exchange,
    *,
    keep_output: bool = False,
    max_event_bytes: int = MAX_EVENT_BYTES,
) -> Folded:
    """What the bytes of one answer say.

    Every event completed by a read carries the stamp of that read (all of them, ai-dynamo/aiperf#368). Bytes
    that are no answer give outcome `protocol` and an `error` that starts with a short code: `bad_json:`,
    `bad_event:`, `bad_answer:`, `bad_content_type:`, `line_too_long:`, `redirect:`, `no_answer:`. A failure
    the transport saw wins over all of that; tokens that came before are kept. Text and output ids are kept
    only with `keep_output`.
    """
    answer = Answer()
    streamed = False
    if exchange.status is not None and exchange.status >= 400:
        verdict: Verdict = ("http", _http_message(exchange))
    elif exchange.status is not None and exchange.status >= 300:
        verdict = ("protocol", f"redirect: status {exchange.status}; give the address it leads to")
    elif not exchange.reads and exchange.status is None:
        verdict = ("protocol", "no_answer: nothing was received")
    else:
        streamed = _is_stream(request, exchange)
        if streamed:
            verdict = _read_stream(request, exchange, answer, max_event_bytes)
        else:
            verdict = _read_body(request, exchange, answer)
    return _folded(request, answer, exchange.failure or verdict, streamed, keep_output)


def last_output(request: WireRequest, exchange: Exchange) -> tuple[list[int] | None, str]:
    """(output ids, text) of an answer, for the next turn of a live conversation; (None, "") without any.

    Ids come from the native API only. A native stream of cumulative events is read from its end, so only the
    last event is decoded.
    """
    cumulative = request.api == "generate" and not request.incremental
    if cumulative and (exchange.status or 200) < 300 and _is_stream(request, exchange):
        body = _body(exchange)
        if b"\r" not in body:
            return _last_event_output(body)
    folded = fold(request, exchange, keep_output=True)
    return folded.output_ids, folded.text or ""


def _last_event_output(body: bytes) -> tuple[list[int] | None, str]:
    end = body.rfind(b"\n\n")
    while end >= 0:
        start = body.rfind(b"\n\n", 0, end)
        event = parse_block(body[start + 2 if start >= 0 else 0 : end])
        end = start
        if event is None or event.event == "error" or event.data.strip() == _DONE:
            continue
        try:
            item = decode_json(event.data)
        except BadJson:
            continue
        if isinstance(item, list) and len(item) == 1:
            item = item[0]
        if not isinstance(item, dict):
            continue
        text, ids = item.get("text"), item.get("output_ids")
        if isinstance(text, str) or isinstance(ids, list):
            return token_ids(ids), text if isinstance(text, str) else ""
    return None, ""


def _body(exchange: Exchange) -> bytes:
    return b"".join(data for _, data in exchange.reads)


def _is_stream(request: WireRequest, exchange: Exchange) -> bool:
    """By content type, not by what was asked: servers answer early errors and old routes the other way."""
    kind = exchange.content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return True
    if kind == "application/json":
        return False
    start = _body(exchange).lstrip()
    if start.startswith((b"data:", b"event:", b":")):
        return True
    return request.streamed and not kind and not start.startswith((b"{", b"["))


def _read_stream(request: WireRequest, exchange: Exchange, answer: Answer, limit: int) -> Verdict:
    read = _READERS[request.api]
    done = False
    try:
        for stamp, event in _events(exchange, limit):
            if event.data.strip() == _DONE:
                done = True
                break
            _read_event(read, answer, event, stamp, request.incremental)
    except LineTooLong as error:
        return "protocol", f"line_too_long: {error}"
    except _NoAnswer as error:
        return "protocol", str(error)
    if answer.error is not None:
        return "server_error", answer.error
    if not done and not answer.finished:
        return "truncated", f"the stream ended without [DONE] or finish reason after {answer.answers} events"
    return _complete(answer)


def _events(exchange: Exchange, limit: int) -> Iterator[tuple[int, SseEvent]]:
    parser = SseParser(limit)
    for stamp, data in exchange.reads:
        try:
            events = parser.feed(data)
        except LineTooLong as error:
            for event in error.events:
                yield stamp, event
            raise
        for event in events:
            yield stamp, event


def _read_event(
    read: Callable[[Answer, dict[str, Any], int | None, bool], None],
    answer: Answer, event: SseEvent, stamp: int, incremental: bool,
) -> None:
    data, name = event
    if not data.strip():
        return
    try:
        item = decode_json(data)
    except BadJson:
        if name != "error":
            raise _NoAnswer(f"bad_json: {_shown(data)}") from None
        item = {"error": _shown(data)}
    if isinstance(item, list) and len(item) == 1:
        item = item[0]
    message = error_message(item)
    if message is None and name == "error":
        message = error_message({"error": item}) or "error event"
    if message is not None:
        answer.error = answer.error or message
    elif isinstance(item, dict):
        read(answer, item, stamp, incremental)
    else:
        raise _NoAnswer(f"bad_event: {_shown(data)}")


def _read_body(request: WireRequest, exchange: Exchange, answer: Answer) -> Verdict:
    body = _body(exchange)
    try:
        item = decode_json(body)
    except BadJson:
        kind = exchange.content_type
        code = "bad_json" if not kind or "json" in kind.lower() else f"bad_content_type: {_cut(kind, 60)}"
        return "protocol", f"{code}: {_shown(body) or 'empty body'}"
    if isinstance(item, list) and len(item) == 1:
        # A list of one prompt is answered by a list of one answer (io_struct.py `_determine_batch_size`).
        item = item[0]
    if (message := error_message(item)) is not None:
        return "server_error", message
    if isinstance(item, dict):
        _READERS[request.api](answer, item, None, False)
    if not answer.answers:
        what = f"{len(item)} answers to one prompt" if isinstance(item, list) else _shown(body)
        return "protocol", f"bad_answer: {what}"
    if answer.error is not None:
        return "server_error", answer.error
    return _complete(answer)


def _complete(answer: Answer) -> Verdict:
    return ("ok", None) if answer.seen or answer.said else ("empty", "the answer holds no token")


def _folded(
    request: WireRequest, answer: Answer, verdict: Verdict, streamed: bool, keep_output: bool
) -> Folded:
    outcome, error = verdict
    # A server may repeat the request's headers in its complaint.
    error = None if error is None else scrub_text(error)
    folded = Folded(outcome, error, answer.first_token_ns, answer.first_content_ns)
    folded.chunk_ns, folded.chunk_tokens = answer.chunk_ns, answer.chunk_tokens
    folded.last_token_ns = answer.chunk_ns[-1] if answer.chunk_ns else None
    folded.finish_reason = answer.finish_reason
    if not answer.answers and not answer.figures:
        return folded
    answer.output_ids = token_ids(answer.output_ids)
    answer.text = answer.text or "".join(answer.parts)
    folded.output_tokens, folded.token_source = answer.total(streamed)
    folded.output_digest = answer.digest()
    _FILLERS[request.api](answer, folded)
    if keep_output:
        folded.text, folded.output_ids = answer.text, answer.output_ids
    return folded


def _http_message(exchange: Exchange) -> str:
    body = _body(exchange)
    try:
        found = decode_json(body)
    except BadJson:
        found = None
    message = error_message(found)
    if message is None and isinstance(found, dict) and isinstance(found.get("message"), str):
        message = _cut(found["message"], MAX_ERROR_CHARS)
    return message or _shown(body) or f"HTTP {exchange.status} without a message"


def _shown(data: bytes) -> str:
    """The start of some bytes as text for a message."""
    return _cut(data[: 4 * MAX_ERROR_CHARS].decode("utf-8", "replace").strip(), MAX_ERROR_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
