"""Public fault reports of other load generators, replayed over a socket: scripted bytes at scripted times, through
the transport and the folding, to the row. (D16, D17, D18, D21 and D22 are in tests/load, D25 in tests/store.)"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest

from hicache_bench.analysis.metrics import BY_NAME, samples, value
from hicache_bench.analysis.rows import rows_of
from hicache_bench.load.aio import AiohttpTransport
from hicache_bench.load.requests import RequestBuilder, RequestOptions
from hicache_bench.recording import complete
from hicache_bench.records import Attempt, Exchange, Prompt, Segment, WireRequest
from hicache_bench.sglang.urls import join, normalize_base
from hicache_bench.store.schema import rows_to_table
from hicache_bench.wire.fold import fold
from hicache_bench.workload.tokens import TokenSpace
from tests.scripted import DONE, END, ScriptedServer, Step, chunk, event, head, json_answer, native

MS = 1_000_000


def chat(delta=None, *, finish=None, **more):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice], **more})


def stream(*parts: bytes | float) -> list[Step]:
    """A 200 event stream; bytes are one HTTP chunk each, floats are pauses."""
    return [head(), *(chunk(p) if isinstance(p, bytes) else p for p in parts), chunk(DONE), END]


async def ask(steps, api: str = "chat", *, incremental: bool = False, planned: int | None = None,
              ignore_eos: bool = False, url_of=lambda url: url) -> Attempt:
    request = WireRequest("/x", b"{}", api, True, incremental)
    row = Attempt(0, 0, 0, "s", "unique", "", "measure", api, True, planned_output_tokens=planned,
                  ignore_eos=ignore_eos)
    async with ScriptedServer(lambda seen: steps) as server:
        transport = AiohttpTransport(url_of(server.url), {})
        await transport.open()
        exchange = Exchange()
        await transport.send(request, exchange, 20_000 * MS)
        await transport.close()
    row.scheduled_ns = exchange.sent_ns
    ask.folded = fold(request, exchange, keep_output=True)
    return complete(row, request, exchange)


def metric(name: str, *rows: Attempt):
    found = BY_NAME[name]
    view = rows_of(rows_to_table(rows))
    if found.scope == "run":
        return value(found, view)
    given = samples(found, view)
    return given[given == given].tolist()


SPLIT_TEXT = "ab温🍵z"


@pytest.mark.parametrize("cut", range(len(SPLIT_TEXT.encode()) + 1))
async def test_d01_multibyte_character_cut_between_reads(cut):
    whole = b"data: " + json.dumps(native(SPLIT_TEXT, 1, finish="stop"), ensure_ascii=False).encode() + b"\n\n"
    at = whole.index(SPLIT_TEXT.encode()) + cut
    row = await ask([head(), chunk(whole[:at]), 0.002, chunk(whole[at:]), chunk(DONE), END], "generate")
    assert row.outcome == "ok"
    assert ask.folded.text == SPLIT_TEXT


async def test_d02_many_events_in_one_read():
    events = b"".join(event(native("a" * n, n, finish="length" if n == 5 else None)) for n in range(1, 6))
    row = await ask([head(), chunk(events + DONE), END], "generate")
    gaps = metric("itl", row)
    assert (row.outcome, row.output_tokens, len(gaps)) == ("ok", 5, 4)
    assert all(0 <= gap < MS for gap in gaps)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("colon", ["data: ", "data:"])
@pytest.mark.parametrize("split", [False, True])
async def test_d03_line_ends_and_optional_space(end, colon, split):
    body = "".join(f"{colon}{json.dumps(native('w' * n, n, finish='length' if n == 4 else None))}{end}{end}"
                   for n in range(1, 5)) + f"{colon}[DONE]{end}{end}"
    raw = body.encode()
    chunks = [chunk(raw[i:i + 1]) for i in range(len(raw))] if split else [chunk(raw)]
    row = await ask([head(), b"".join(chunks), END], "generate")
    assert (row.outcome, row.output_tokens, len(row.chunk_ns), row.prompt_tokens) == ("ok", 4, 4, 8)


@pytest.mark.parametrize("size", [200_000, 700_000, 5_000_000])
async def test_d04_long_data_line(size):
    row = await ask(stream(event(native("x" * size, 1, finish="stop"))), "generate")
    assert (row.outcome, row.output_tokens) == ("ok", 1)


USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


@pytest.mark.parametrize("last", [
    [event({"choices": [], "usage": USAGE})],
    [event({"usage": USAGE})],
    [event({"choices": None, "usage": USAGE})],
])
async def test_d05_usage_chunk_is_no_token(last):
    words = [chat({"content": w}) for w in ("a", "b", "c")]
    row = await ask(stream(chat({"role": "assistant", "content": ""}), *words, chat(finish="stop"), *last))
    assert (row.outcome, row.output_tokens, row.token_source, row.prompt_tokens) == ("ok", 3, "server", 9)


async def test_d06_no_usage_never_becomes_the_requested_length():
    parts: list[bytes | float] = []
    for _ in range(12):
        parts += [chat({"content": "w "}), 0.05]
    row = await ask(stream(*parts, chat(finish="stop")), planned=512)
    assert (row.output_tokens, row.token_source) == (12, "estimated")
    assert metric("tpot", row)[0] == pytest.approx(50 * MS, rel=0.3)


async def test_d07_cumulative_and_incremental_give_one_record():
    texts = ["ha", "haha", "hahaha"]
    whole = [native(text, n, finish="stop" if n == 3 else None) for n, text in enumerate(texts, 1)]
    cumulative = await ask(stream(*map(event, whole)), "generate")
    first = ask.folded.text
    delta = [{**e, "text": "ha", "output_ids": [i]} for i, e in enumerate(whole)]
    incremental = await ask(stream(*map(event, delta)), "generate", incremental=True)
    assert first == ask.folded.text == "hahaha"
    assert cumulative.output_tokens == incremental.output_tokens == 3
    assert cumulative.output_digest == incremental.output_digest


async def test_d08_several_tokens_in_one_chunk():
    parts: list[bytes | float] = [0.1, event(native("a", 1))]
    for n in (5, 9, 13):
        parts += [0.08, event(native("a" * n, n, finish="length" if n == 13 else None))]
    row = await ask(stream(*parts), "generate")
    assert (row.output_tokens, len(metric("chunk_gap", row)), len(metric("itl", row))) == (13, 3, 12)
    assert statistics.median(metric("itl", row)) == pytest.approx(20 * MS, rel=0.3)
    assert statistics.median(metric("chunk_gap", row)) == pytest.approx(80 * MS, rel=0.3)


async def test_d09_first_interval_is_not_in_the_itl():
    parts: list[bytes | float] = [0.5]
    for n in range(1, 11):
        parts += [event(native("a" * n, n, finish="length" if n == 10 else None)), 0.01]
    row = await ask(stream(*parts), "generate")
    gaps = metric("itl", row)
    assert len(gaps) == 9
    assert max(gaps) < 250 * MS
    single = await ask(stream(event(native("a", 1, finish="length"))), "generate")
    assert metric("itl", single) == metric("tpot", single) == []


async def test_d10_answer_without_a_token_has_no_ttft():
    empty = await ask(stream(chat({"role": "assistant", "content": ""}), chat(finish="stop")))
    full = await ask(stream(chat({"role": "assistant", "content": ""}), 0.08, chat({"content": "x"}),
                            chat(finish="stop")))
    assert (empty.outcome, empty.first_token_ns) == ("empty", None)
    ttft = metric("ttft_service", *([empty] * 6), *([full] * 4))
    assert len(ttft) == 4
    assert min(ttft) > 70 * MS


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_d11_reasoning_counts_for_ttft_and_content_for_ttfo(field):
    row = await ask(stream(chat({"role": "assistant", "content": ""}), 0.05, chat({field: "hm"}), 0.01,
                           chat({field: " so"}), 0.34, chat({"content": "4"}), chat(finish="stop")))
    assert metric("ttfo", row)[0] - metric("ttft", row)[0] > 300 * MS
    assert len(metric("itl", row)) == 2


@pytest.mark.parametrize("error", [
    event({"error": {"message": "boom", "code": 500}}), event({"error": "boom"}),
    b'event: error\ndata: {"message": "boom"}\n\n',
])
@pytest.mark.parametrize("tokens", [0, 3])
async def test_d12_error_inside_a_200_stream(error, tokens):
    row = await ask(stream(*(chat({"content": "w"}) for _ in range(tokens)), error))
    assert row.outcome == "server_error"
    assert "boom" in row.error
    assert metric("error_rate", row) == 1.0
    assert metric("ttft", row) == []


@pytest.mark.parametrize(("steps", "ignore_eos", "outcome", "short"), [
    ([head(), *(chunk(chat({"content": "w"})) for _ in range(10)), END], False, "truncated", 0),
    (stream(*(chat({"content": "w"}) for _ in range(10)), chat(finish="stop")), True, "ok", 1),
    (stream(*(chat({"content": "w"}) for _ in range(10)), chat(finish="stop")), False, "ok", 0),
    ([head(), chunk(chat({"content": "w"})), b"20\r\ndata: {", "reset"], False, "disconnect", 0),
])
async def test_d13_early_ends(steps, ignore_eos, outcome, short):
    row = await ask(steps, planned=1024, ignore_eos=ignore_eos)
    assert row.outcome == outcome
    assert metric("short_answers", row) == short


async def test_d14_every_request_fails():
    row = await ask(json_answer({"detail": "Not Found"}, 404))
    assert (row.outcome, row.status, row.error) == ("http", 404, "Not Found")
    assert metric("ttft", row, row) == []
    assert metric("error_rate", row, row) == 1.0


async def test_d15_nothing_divides_by_zero():
    row = await ask(stream(event(native("abc", 3, finish="length"))), "generate")
    instants = ("scheduled_ns", "sent_ns", "headers_ns", "first_token_ns", "first_content_ns", "last_token_ns",
                "done_ns")
    frozen = replace(row, **dict.fromkeys(instants, 5))
    frozen.chunk_ns = [5]
    for name in BY_NAME:
        metric(name, frozen)
    assert metric("requests_per_s", frozen) is None
    assert metric("tpot", frozen) == [0.0]


async def test_d20_ids_give_exact_lengths_and_the_servers_count_is_kept():
    builder = RequestBuilder(TokenSpace.random_ids(10, 90, "n"), RequestOptions())
    request = builder.build(builder.context(Prompt((Segment("k", 100),)), None), 1, "r", None)
    assert len(json.loads(request.body)["input_ids"]) == 100
    row = await ask(stream(event(native("x", 1, finish="length", prompt=97))), "generate")
    assert row.prompt_tokens == 97


@pytest.mark.parametrize("shape", [" {} ", "{}/", "{}/v1/", "{}//"])
async def test_d23_one_url_function_for_all(shape):
    row = await ask(stream(event(native("x", 1, finish="length"))), "generate",
                    url_of=lambda url: normalize_base(shape.format(url)))
    assert row.outcome == "ok"
    assert join(normalize_base("[::1]:8000"), "/generate") == "http://[::1]:8000/generate"


async def test_d24_missing_tier_details_are_not_zero():
    answers = [(512, {"device": 512, "host": 0}), (512, None), (0, None),
               (512, {"device": 256, "host": 128, "storage": 128})]
    rows = [await ask(stream(event(native("x", 1, finish="length", prompt=600, cached=cached, details=details))),
                      "generate") for cached, details in answers]
    assert [row.device_tokens for row in rows] == [512, None, 0, 256]
    assert [row.storage_tokens for row in rows] == [None, None, None, 128]
    assert metric("tier_coverage", *rows) == 0.75
    assert metric("unattributed", *rows) == 512
