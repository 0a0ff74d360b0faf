"""Every capture of the real server folds to its known values; any bytes in any split fold to something."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_bench.records import OUTCOMES, Exchange, Folded, WireRequest
from hicache_bench.wire.fold import fold, last_output
from tests.wire import captured as c

A = "A_overlap_write_through_layer_first"
B = "B_write_back_page_first_direct_timeout"
F = "F_page1"
FILE = "HiCacheFile"
# (cached, device, host, storage, backend) of the five requests of the scenario.
WHOLE = {
    "generate_1_cold": (0, 0, 0, None, None),
    "generate_2_warm_device": (496, 496, 0, 0, FILE),
    "generate_3_after_eviction_to_host": (496, 0, 496, 0, FILE),
    "generate_4_after_flush_from_storage": (496, 0, 0, 496, FILE),
    "generate_5_warm_device_again": (496, 496, 0, 0, FILE),
}
# With page size 1 the flush was refused (storage writes in flight), so request 4 still hit the device.
PAGE1 = {
    **WHOLE,
    "generate_2_warm_device": (506, 506, 0, 0, FILE),
    "generate_3_after_eviction_to_host": (506, 11, 495, 0, FILE),
    "generate_4_after_flush_from_storage": (506, 506, 0, 0, FILE),
    "generate_5_warm_device_again": (506, 506, 0, 0, FILE),
}


def tiers(folded: Folded) -> tuple[Any, ...]:
    return (folded.cached_tokens, folded.device_tokens, folded.host_tokens, folded.storage_tokens,
            folded.storage_backend)


def known(name: str, **options: Any) -> Folded:
    request, exchange = c.captured(name)
    return fold(request, exchange, **options)


@pytest.mark.parametrize(("folder", "expected"), [(A, WHOLE), (B, WHOLE), (F, PAGE1)])
def test_scenario_tiers(folder: str, expected: dict[str, tuple[Any, ...]]):
    for name, figures in expected.items():
        folded = known(f"{folder}/{name}.http", keep_output=True)
        assert (folded.outcome, folded.error, tiers(folded)) == ("ok", None, figures), name
        assert (folded.prompt_tokens, folded.output_tokens, folded.token_source) == (507, 8, "server")
        assert folded.output_ids == [1811, 3355, 3522, 3108, 2133, 3948, 2667, 1267]
        assert folded.output_digest == known(f"{A}/generate_stream_sse.http").output_digest
        assert folded.finish_reason == "length"
        assert (folded.first_token_ns, folded.last_token_ns, folded.chunk_ns) == (None, None, [])


def test_server_figures():
    folded = known(f"{A}/generate_4_after_flush_from_storage.http")
    assert folded.request_id == "488b2ba8034b4935940e0e1b526bcaa4"
    assert folded.server_e2e_s == pytest.approx(0.11682857)
    assert folded.server_ttft_s == pytest.approx(0.05185879603)
    assert folded.server_queue_s == pytest.approx(0.012208864)
    assert folded.prefetch_wait_s == pytest.approx(0.008179688)
    assert (folded.retractions, folded.dp_rank) == (0, None)
    assert folded.extra == {"storage_staging_wait": 0.0, "reasoning_tokens": 0}


def test_native_stream():
    folded = known(f"{A}/generate_stream_sse.http", keep_output=True)
    assert folded.outcome == "ok"
    assert folded.chunk_ns == [10 * c.MS * i for i in range(1, 9)]
    assert folded.chunk_tokens == [1] * 8
    assert folded.first_token_ns == folded.first_content_ns == 10 * c.MS
    assert folded.last_token_ns == 80 * c.MS
    assert folded.text == "lankstore modulesAY kwargs prepend                 loat"
    assert tiers(folded) == (496, 496, 0, 0, FILE)
    assert folded.server_e2e_s == pytest.approx(0.114091625)
    assert known(f"{A}/generate_stream_sse.http").text is None


@pytest.mark.parametrize(("name", "prompt", "output", "chunks", "figures"), [
    ("completions_1", 507, 8, [], (496, None, None, None, None)),
    ("completions_stream_1", 507, 8, [1] * 8, (496, None, None, None, None)),
    ("chat_1", 531, 8, [], (0, 0, 0, None, None)),
    ("chat_2", 531, 8, [], (528, None, None, None, None)),
    ("chat_stream_1", 531, 8, [1] * 8, (528, None, None, None, None)),
    ("chat_stream_continuous_usage", 531, 4, [1] * 4, (528, None, None, None, None)),
])
def test_openai_answers(name: str, prompt: int, output: int, chunks: list[int], figures: tuple[Any, ...]):
    folded = known(f"{A}/{name}.http")
    assert (folded.outcome, folded.finish_reason) == ("ok", "length")
    assert (folded.prompt_tokens, folded.output_tokens, folded.token_source) == (prompt, output, "server")
    assert folded.chunk_tokens == chunks
    assert tiers(folded) == figures
    assert folded.request_id


def test_chat_role_chunk_is_no_token():
    folded = known(f"{A}/chat_stream_1.http")
    assert folded.first_token_ns == folded.first_content_ns == folded.chunk_ns[0] == 20 * c.MS


def test_chat_without_usage_is_an_estimate():
    folded = known(f"{A}/chat_stream_no_usage.http")
    assert (folded.output_tokens, folded.token_source, folded.chunk_tokens) == (4, "estimated", [1] * 4)
    assert (folded.prompt_tokens, *tiers(folded)) == (None,) * 6


@pytest.mark.parametrize(("name", "figures", "chunks"), [
    ("chat_sglext_1", (0, 0, 0, None, None), []),
    ("chat_sglext_2", (528, 528, 0, 0, FILE), []),
    ("chat_sglext_stream_1", (528, 528, 0, 0, FILE), [1, 2]),
    ("chat_sglext_stream_2", (528, 528, 0, 0, FILE), [1, 1, 1]),
    ("completions_sglext_1", (0, 0, 0, None, None), []),
    ("completions_sglext_2", (512, 512, 0, 0, FILE), []),
    ("completions_sglext_stream_1", (512, 512, 0, 0, FILE), [1, 1, 1]),
    ("completions_sglext_stream_2", (512, 512, 0, 0, FILE), [1, 1, 1]),
])
def test_sglext_gives_the_tiers(name: str, figures: tuple[Any, ...], chunks: list[int]):
    folded = known(f"extra/{name}.http")
    assert (folded.outcome, folded.output_tokens, tiers(folded)) == ("ok", 3, figures)
    assert folded.chunk_tokens == chunks


def test_after_a_restart_storage_serves_then_device_then_host():
    for name, figures in (("generate_after_server_restart_same_l3", (496, 0, 0, 496, FILE)),
                          ("generate_after_server_restart_same_l3_2", (496, 496, 0, 0, FILE)),
                          ("again_host", (496, 0, 496, 0, FILE))):
        _, exchange = c.captured(f"extra/{name}.json")
        assert tiers(fold(c.GENERATE, exchange)) == figures


@pytest.mark.parametrize(("name", "outcome", "message"), [
    (f"{A}/generate_error_too_long", "http", "The input (9000 tokens) is longer than"),
    ("extra/chat_error_too_long", "http", "The input (13185 tokens) is longer than"),
    ("extra/generate_error_bigger_than_pool", "http", "Input length (2045 tokens) exceeds"),
    ("extra/generate_stream_error", "server_error", "The input (9000 tokens) is longer than"),
    (f"{A}/generate_batch", "protocol", "bad_answer: 2 answers to one prompt"),
])
def test_captured_errors(name: str, outcome: str, message: str):
    folded = known(f"{name}.http")
    assert folded.outcome == outcome
    assert (folded.error or "").startswith(message)
    assert (folded.output_tokens, folded.first_token_ns, folded.output_digest) == (None, None, None)


def test_every_capture_folds():
    names = c.answer_names()
    assert len(names) > 40
    for name in names:
        expected = {"ok"} if "error" not in name and "batch" not in name else {"http", "server_error", "protocol"}
        assert known(name).outcome in expected, name


STREAMS = (f"{A}/generate_stream_sse.http", "extra/completions_sglext_stream_1.http",
           "extra/chat_sglext_stream_1.http")


@pytest.mark.parametrize("name", STREAMS)
def test_every_split_position_gives_the_same(name: str):
    request, exchange = c.captured(name)
    whole = fold(request, c.resplit(exchange, []), keep_output=True)
    assert whole.outcome == "ok"
    for cut in range(1, len(c.joined(exchange))):
        assert fold(request, c.resplit(exchange, [cut]), keep_output=True) == whole, cut


@pytest.mark.parametrize("name", STREAMS)
def test_every_early_end_is_truncated_or_told_by_the_transport(name: str):
    request, exchange = c.captured(name)
    raw = c.joined(exchange)
    finished = raw.index(b'"length"')
    for end in range(0, len(raw), 7):
        cut = c.stream(raw[:end])
        outcome = fold(request, cut).outcome
        assert outcome == ("truncated" if end <= finished else outcome)
        assert outcome in ("truncated", "ok")
        cut.failure = ("disconnect", "reset by peer")
        lost = fold(request, cut)
        assert (lost.outcome, lost.error) == ("disconnect", "reset by peer")
    assert lost.output_tokens


def test_last_output_reads_what_fold_reads():
    for name in c.answer_names():
        request, exchange = c.captured(name)
        folded = fold(request, exchange, keep_output=True)
        assert last_output(request, exchange) == (folded.output_ids, folded.text or ""), name


def test_last_output_of_part_of_a_stream():
    request, exchange = c.captured(f"{A}/generate_stream_sse.http")
    exchange.reads = [(0, c.joined(exchange)[:1300])]
    assert last_output(request, exchange) == ([1811, 3355], "lankstore")
    assert last_output(request, Exchange(status=200, content_type=c.SSE)) == (None, "")
    crlf = c.stream(c.event(c.native("a", 1)).replace(b"\n", b"\r\n"))
    assert last_output(c.GENERATE, crlf) == (None, "a")
    failed = c.stream(c.event(c.native("a", 1)), b"event: error\n" + c.event({"text": "boom"}), c.DONE)
    assert last_output(c.GENERATE, failed) == (None, "a")
    parts = c.stream(c.event({"text": "a", "output_ids": [1]}), c.event({"text": "b", "output_ids": [2]}))
    assert last_output(c.INCREMENTAL, parts) == ([1, 2], "ab")


# ---------------------------------------------------------------- rules beside the captures


def test_a_single_item_list_is_one_answer():
    answer = [{"text": "a", "output_ids": [4], "meta_info": {"completion_tokens": 1, "cached_tokens": 0}}]
    folded = fold(c.GENERATE, c.body(answer), keep_output=True)
    assert (folded.outcome, folded.text, folded.output_ids, folded.cached_tokens) == ("ok", "a", [4], 0)


@pytest.mark.parametrize("request_", [c.GENERATE, dataclasses.replace(c.GENERATE, streamed=False)])
def test_content_type_decides_how_it_is_read(request_: WireRequest):
    answer = c.native("a", 1, c.STOP)
    events = c.event(answer) + c.DONE
    for exchange in (c.body(answer), c.stream(events), c.body(answer, kind=""), c.body(events, kind=""),
                     c.body(events, kind="text/plain"), c.body(answer, kind="application/json;charset=utf-8")):
        folded = fold(request_, exchange)
        assert (folded.outcome, folded.output_tokens) == ("ok", 1)


@pytest.mark.parametrize(("raw", "kind", "code"), [
    (b"", "application/json", "bad_json:"),
    (b"{", "application/json", "bad_json:"),
    (b"5", "application/json", "bad_answer:"),
    (b"[]", "application/json", "bad_answer:"),
    (b"{}", "application/json", "bad_answer:"),
    (b"<html>", "text/html", "bad_content_type: text/html:"),
    (b"data: {\n\n", c.SSE, "bad_json:"),
    (b"data: 5\n\n", c.SSE, "bad_event:"),
])
def test_no_answer_is_protocol_with_a_code(raw: bytes, kind: str, code: str):
    for request in (c.GENERATE, c.COMPLETIONS, c.CHAT):
        folded = fold(request, c.body(raw, kind=kind))
        assert folded.outcome == "protocol"
        assert (folded.error or "").startswith(code)


def test_nothing_received_and_redirects():
    assert (fold(c.CHAT, Exchange()).error or "").startswith("no_answer:")
    assert (fold(c.CHAT, Exchange(status=302)).error or "").startswith("redirect: status 302")
    assert fold(c.CHAT, Exchange(failure=("connect", "refused"))).outcome == "connect"


@pytest.mark.parametrize(("raw", "message"), [
    ({"error": "boom"}, "boom"), ({"error": {"message": "boom"}}, "boom"),
    ({"object": "error", "message": "boom"}, "boom"), ({"detail": "Not Found"}, "Not Found"),
    ({"message": "boom"}, "boom"), (b"Internal Server Error\n", "Internal Server Error"),
    (b"", "HTTP 500 without a message"), (b"\xff\xfe", "\ufffd\ufffd")])
def test_http_errors_carry_the_message_of_the_server(raw: Any, message: str):
    folded = fold(c.GENERATE, c.body(raw, status=500))
    assert (folded.outcome, folded.error) == ("http", message)


def test_ill_typed_figures_are_absent_and_the_outcome_stays():
    meta = {"prompt_tokens": "9", "completion_tokens": -3, "cached_tokens": 4.0, "cached_tokens_details": [1],
            "dp_rank": True, "e2e_latency": "x", "first_token_latency": -1, "queue_time": None, "id": 7,
            "num_retractions": {}, "finish_reason": 5}
    raw = c.event({"text": "a", "output_ids": ["x"], "meta_info": meta}) + c.DONE
    nan = raw.replace(b'"x"', b"NaN")
    for exchange in (c.stream(raw), c.stream(nan)):
        folded = fold(c.GENERATE, exchange, keep_output=True)
        assert (folded.outcome, folded.text, folded.output_ids) == ("ok", "a", None)
        figures = dataclasses.asdict(folded)
        for name in ("prompt_tokens", "cached_tokens", "device_tokens", "dp_rank", "server_e2e_s", "server_ttft_s",
                     "server_queue_s", "request_id", "retractions", "finish_reason", "extra"):
            assert figures[name] is None, name


def test_ids_alone_count_as_server_figures():
    """skip_tokenizer_init: no text at all."""
    events = [{"output_ids": [5], "meta_info": {}}, {"output_ids": [5, 6, 7], "meta_info": {"finish_reason": c.STOP}}]
    folded = fold(c.GENERATE, c.stream((1, events[0]), (2, events[1]), c.DONE))
    assert (folded.output_tokens, folded.token_source, folded.chunk_tokens) == (3, "server", [1, 2])
    assert (folded.first_token_ns, folded.first_content_ns) == (1 * c.MS, None)


def test_first_token_without_text_is_no_content():
    """Half a character: a token, but nothing to show yet."""
    folded = fold(c.GENERATE, c.stream((10, c.native("", 1)), (20, c.native("温", 2, c.STOP)), c.DONE))
    assert (folded.first_token_ns, folded.first_content_ns) == (10 * c.MS, 20 * c.MS)
    assert folded.chunk_tokens == [1, 1]


def test_an_end_token_without_text_is_an_answer_without_ttft():
    """Only usage tells of it: nothing in the stream shows when it came."""
    folded = fold(c.CHAT, c.stream((1, c.ROLE), (2, c.delta("stop")), (3, c.usage(9, 1)), c.DONE))
    assert (folded.outcome, folded.output_tokens, folded.token_source) == ("ok", 1, "server")
    assert (folded.first_token_ns, folded.chunk_ns) == (None, [])


def test_abort_is_a_server_error_with_its_tokens():
    abort = {"type": "abort", "message": "out of memory", "status_code": 503}
    folded = fold(c.GENERATE, c.stream((1, c.native("a", 1)), (2, c.native("a", 1, abort)), c.DONE))
    assert (folded.outcome, folded.error, folded.output_tokens) == ("server_error", "out of memory", 1)
    assert folded.finish_reason == "abort"
    whole = fold(c.GENERATE, c.body(c.native("", 0, abort)))
    assert (whole.outcome, whole.error) == ("server_error", "out of memory")
    chat = fold(c.CHAT, c.stream((1, c.ROLE), (2, c.delta("abort")), c.DONE))
    assert chat.outcome == "server_error"


def test_tiers_without_a_report_give_the_sum():
    split = {"device": 5, "host": 6, "storage": 7, "storage_backend": "none"}
    for where in ({"choices": [], "sglext": {"cached_tokens_details": split}},
                  {"choices": [{"index": 0, "delta": {}, "sglext": {"cached_tokens_details": split}}]}):
        folded = fold(c.CHAT, c.stream(c.event(c.delta(content="a")), c.event(where), c.event(c.delta("stop")), c.DONE))
        assert tiers(folded) == (18, 5, 6, 7, "none")


def test_nothing_after_done_is_read():
    folded = fold(c.GENERATE, c.stream((1, c.native("a", 1, c.STOP)), (2, c.DONE), (3, b"data: nonsense\n\n")))
    assert (folded.outcome, folded.output_tokens) == ("ok", 1)


# ---------------------------------------------------------------- any bytes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "text", "output_ids", "meta_info", "choices", "delta", "message", "content", "usage", "sglext", "error",
        "detail", "object", "finish_reason", "type", "completion_tokens", "cached_tokens", "cached_tokens_details",
        "prompt_tokens_details", "device", "storage", "storage_X", "id", "tool_calls", "function", "reasoning",
        "prompt_tokens", "e2e_latency", "dp_rank", "x"]), inner, max_size=4),
    max_leaves=12)
ANSWER = st.builds(
    lambda text, ids, meta: {"text": text, "output_ids": ids, "meta_info": meta}, st.text(max_size=4) | JSON,
    st.lists(st.integers(0, 9), max_size=4) | JSON,
    st.dictionaries(st.sampled_from(["completion_tokens", "cached_tokens", "finish_reason", "x"]), JSON, max_size=4))
CHUNK = st.builds(
    lambda content, reason, used: {
        "choices": [{"delta": {"content": content}, "finish_reason": reason}], "usage": used},
    st.text(max_size=4) | JSON, st.none() | st.just("stop") | JSON,
    st.none() | st.builds(lambda n: {"completion_tokens": n}, st.integers(0, 20)) | JSON)
ITEM = ANSWER | CHUNK | JSON
EVENT = st.one_of(
    st.builds(lambda item: b"data: " + json.dumps(item).encode() + b"\n\n", ITEM),
    st.builds(lambda item: b"data:" + json.dumps(item, ensure_ascii=False).encode("utf-8", "replace") + b"\r\n\r\n",
              ITEM),
    st.sampled_from([b"data: [DONE]\n\n", b"event: error\n", b": ping\n\n", b"\n", b"\r", b"data: {"]),
    st.binary(max_size=12))
API = st.sampled_from([c.GENERATE, c.INCREMENTAL, c.COMPLETIONS, c.CHAT])
KIND = st.sampled_from([c.SSE, "application/json", "", "text/html"])
STATUS = st.sampled_from([200, 200, 200, 204, 302, 400, 500, None])


@settings(max_examples=400, deadline=None)
@given(API, KIND, STATUS, st.lists(EVENT, max_size=8) | st.builds(lambda item: [json.dumps(item).encode()], ITEM),
       st.lists(st.integers(0, 400), max_size=8), st.sampled_from([2**20, 40]))
def test_any_bytes_fold_the_same_in_any_split(
    request: WireRequest, kind: str, status: int | None, pieces: list[bytes], cuts: list[int], limit: int
):
    exchange = Exchange(status=status, content_type=kind, reads=[(7, b"".join(pieces))])
    whole = fold(request, exchange, keep_output=True, max_event_bytes=limit)
    split = fold(request, c.resplit(exchange, cuts), keep_output=True, max_event_bytes=limit)
    assert split == whole
    assert whole.outcome in OUTCOMES
    assert (whole.error is None) == (whole.outcome == "ok")
    assert len(whole.chunk_ns) == len(whole.chunk_tokens)
    assert all(tokens > 0 for tokens in whole.chunk_tokens)
    assert (whole.output_tokens is None) == (whole.token_source is None)
    for text in (whole.text, whole.error, whole.request_id, whole.finish_reason, whole.storage_backend):
        assert text is None or text.encode("utf-8") is not None
    json.dumps(whole.extra, allow_nan=False).encode()
    last_output(request, exchange)


@settings(deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=8), st.booleans())
def test_cumulative_and_incremental_streams_say_the_same(pieces: list[str], with_counts: bool):
    sums = ["".join(pieces[: i + 1]) for i in range(len(pieces))]
    numbers = [i + 1 if with_counts else None for i in range(len(pieces))]
    reasons = [None] * (len(pieces) - 1) + [c.STOP]

    def folded(request: WireRequest, texts: list[str]) -> Folded:
        items = [c.native(*item) for item in zip(texts, numbers, reasons, strict=True)]
        return fold(request, c.stream(*((i, item) for i, item in enumerate(items)), c.DONE), keep_output=True)

    assert folded(c.GENERATE, sums) == folded(c.INCREMENTAL, pieces)
