"""Public fault reports about load generators, each as a case on the wire."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from hicache_bench.records import Folded
from hicache_bench.wire.fold import fold
from tests.wire import captured as c

MS = c.MS


def gaps_ms(folded: Folded) -> list[float]:
    return [(b - a) / MS for a, b in pairwise(folded.chunk_ns)]


def test_d01_character_split_between_reads():
    """vllm-project/vllm#38717"""
    raw = c.event(c.native("ab温🍵z", 1, c.STOP)) + c.DONE
    for cut in range(1, len(raw)):
        folded = fold(c.GENERATE, c.resplit(c.stream(raw), [cut]), keep_output=True)
        assert (folded.outcome, folded.text) == ("ok", "ab温🍵z")
    assert fold(c.GENERATE, c.resplit(c.stream(raw), range(len(raw))), keep_output=True).text == "ab温🍵z"


def test_d02_several_events_in_one_read():
    """ai-dynamo/aiperf#368"""
    raw = b"".join(c.event(c.delta(content=x)) for x in "abcde") + c.DONE
    folded = fold(c.CHAT, c.stream((30, raw)))
    assert folded.outcome == "ok"
    assert folded.chunk_ns == [30 * MS] * 5
    assert gaps_ms(folded) == [0, 0, 0, 0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("field", ["data: ", "data:"])
@pytest.mark.parametrize("bytewise", [False, True])
def test_d03_line_ends_and_optional_space(end: str, field: str, bytewise: bool):
    """kubernetes-sigs/inference-perf#781"""
    items = [c.delta(content=x) for x in "abcd"] + [c.delta("stop"), c.usage(9, 4)]
    plain = c.resplit(c.stream(b"".join(map(c.event, items)) + c.DONE), [])
    raw = c.joined(plain).decode().replace("data: ", field).replace("\n", end).encode()
    other = c.resplit(c.stream(raw), range(len(raw)) if bytewise else [])
    assert fold(c.CHAT, other, keep_output=True) == fold(c.CHAT, plain, keep_output=True)
    assert fold(c.CHAT, other).output_tokens == 4


def test_d04_long_data_lines():
    """kubernetes-sigs/inference-perf#283"""
    for size in (200_000, 700_000, 5_000_000):
        raw = c.event(c.native("x" * size, 1)) + c.event(c.native("x" * size + "y", 2, c.STOP)) + c.DONE
        exchange = c.resplit(c.stream(raw), range(0, len(raw), 65_536))
        folded = fold(c.GENERATE, exchange, keep_output=True)
        assert (folded.outcome, len(folded.text or ""), folded.output_tokens) == ("ok", size + 1, 2)
    short = c.event(c.native("a", 1))
    refused = fold(c.GENERATE, c.stream(short + raw), max_event_bytes=1_000_000)
    assert (refused.outcome, refused.output_tokens) == ("protocol", 1)
    assert (refused.error or "").startswith("line_too_long:")


@pytest.mark.parametrize("last", [
    [{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}],
    [{"usage": {"prompt_tokens": 9, "completion_tokens": 3}}],
    [{"choices": None, "usage": {"prompt_tokens": 9, "completion_tokens": 3}}],
    [],
])
def test_d05_usage_chunk_without_choices(last: list[dict[str, Any]]):
    """sgl-project/sglang#5451"""
    chunks = [c.delta(content=x) for x in "abc"]
    if not last:
        chunks[-1]["usage"] = {"prompt_tokens": 9, "completion_tokens": 3}
    items = [c.ROLE, *chunks, *last]
    folded = fold(c.CHAT, c.stream(*enumerate(items), c.DONE))
    assert folded.outcome == "ok"
    assert (folded.prompt_tokens, folded.output_tokens, folded.token_source) == (9, 3, "server")
    assert (folded.chunk_ns, folded.chunk_tokens) == ([1 * MS, 2 * MS, 3 * MS], [1, 1, 1])


@pytest.mark.parametrize("api", ["chat", "generate"])
def test_d06_no_usage_is_never_the_requested_length(api: str):
    """sgl-project/sglang#24266"""
    if api == "chat":
        request, items = c.CHAT, [c.delta(content="x") for _ in range(12)]
    else:
        request, items = c.GENERATE, [c.native("x" * (i + 1), None) for i in range(12)]
    folded = fold(request, c.stream(*((50 * (i + 1), item) for i, item in enumerate(items)), c.DONE))
    assert (folded.outcome, folded.output_tokens, folded.token_source) == ("ok", 12, "estimated")
    assert gaps_ms(folded) == [50] * 11
    assert sum(folded.chunk_tokens) == 12


def test_d07_cumulative_and_incremental_text():
    """sgl-project/sglang#215"""
    def folded(request: Any, *texts: str) -> Folded:
        items = [c.native(text, i + 1, c.STOP if i == len(texts) - 1 else None) for i, text in enumerate(texts)]
        return fold(request, c.stream(*((10 * i, item) for i, item in enumerate(items)), c.DONE), keep_output=True)

    whole = folded(c.GENERATE, "A", "A B", "A B C")
    assert (whole.text, whole.output_tokens, gaps_ms(whole)) == ("A B C", 3, [10, 10])
    assert folded(c.INCREMENTAL, "A", " B", " C") == whole
    assert folded(c.GENERATE, "ha", "haha").text == "haha"
    assert folded(c.INCREMENTAL, "ha", "haha").text == "hahaha"


@pytest.mark.parametrize("said", ["native", "continuous", "final"])
def test_d08_many_tokens_in_a_chunk(said: str):
    """vllm-project/vllm#27485"""
    texts, totals, at = ["a", "bcde", "fghi", "jklm"], [1, 5, 9, 13], [100, 180, 260, 340]
    if said == "native":
        items = [c.native("".join(texts[: i + 1]), totals[i]) for i in range(4)]
        folded = fold(c.GENERATE, c.stream(*zip(at, items, strict=True), c.DONE))
    else:
        items = [c.delta(content=text) for text in texts]
        if said == "continuous":
            items = [{**item, "usage": {"completion_tokens": n}} for item, n in zip(items, totals, strict=True)]
        events = [(5, c.ROLE), *zip(at, items, strict=True), (341, c.usage(9, 13))]
        folded = fold(c.CHAT, c.stream(*events, c.DONE))
    assert (folded.outcome, folded.output_tokens, folded.token_source) == ("ok", 13, "server")
    assert folded.first_token_ns == 100 * MS
    assert (gaps_ms(folded), folded.chunk_tokens) == ([80, 80, 80], [1, 4, 4, 4])
    assert folded.last_token_ns == 340 * MS


def test_d09_the_first_token_is_no_gap():
    """vllm-project/vllm#7242"""
    at = [900 + 10 * i for i in range(10)]
    items = [c.native("x" * (i + 1), i + 1) for i in range(10)]
    folded = fold(c.GENERATE, c.stream(*zip(at, items, strict=True), c.DONE))
    assert gaps_ms(folded) == [10] * 9
    assert folded.first_token_ns == 900 * MS
    single = fold(c.GENERATE, c.stream((900, items[0]), c.DONE))
    assert (gaps_ms(single), single.chunk_tokens) == ([], [1])


@pytest.mark.parametrize("request_", [c.CHAT, c.GENERATE])
def test_d10_an_answer_without_tokens_has_no_ttft(request_: Any):
    """vllm-project/vllm#6064"""
    events = [c.ROLE, c.delta("stop"), c.usage(9, 0)] if request_ is c.CHAT else [c.native("", 0, c.STOP)]
    for tail in (events, events[:1]):
        folded = fold(request_, c.stream(*((5, item) for item in tail), (6, c.DONE)))
        assert (folded.outcome, folded.output_tokens) == ("empty", 0)
        assert (folded.first_token_ns, folded.first_content_ns, folded.chunk_ns) == (None, None, [])
        assert folded.output_digest is None


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_d11_reasoning_is_the_first_token(name: str):
    """vllm-project/guidellm#737"""
    folded = fold(c.CHAT, c.stream((5, c.ROLE), (50, c.delta(**{name: "hm"})), (60, c.delta(**{name: "so"})),
                                   (400, c.delta("stop", content="4")), c.DONE), keep_output=True)
    assert (folded.first_token_ns, folded.first_content_ns) == (50 * MS, 400 * MS)
    assert gaps_ms(folded) == [10, 340]
    assert folded.text == "4"


def test_d11_tool_calls_alone_are_tokens():
    """vllm-project/guidellm#737"""
    call = {"index": 0, "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"name": None, "arguments": "{}"}}
    folded = fold(c.CHAT, c.stream((5, c.ROLE), (50, c.delta(tool_calls=[call])), (60, c.delta(tool_calls=[more])),
                                   (70, c.delta("tool_calls")), c.DONE))
    assert (folded.outcome, folded.finish_reason) == ("ok", "tool_calls")
    assert (folded.first_token_ns, folded.first_content_ns, folded.output_tokens) == (50 * MS, None, 2)
    assert folded.output_digest


@pytest.mark.parametrize("error", [
    c.event({"error": {"message": "boom", "code": 500}}),
    c.event({"error": "boom"}),
    c.event({"object": "error", "message": "boom"}),
    b"event: error\n" + c.event({"message": "boom"}),
    b"event: error\ndata: boom\n\n",
    b'event: error\ndata: "boom"\n\n',
])
@pytest.mark.parametrize("n_before", [0, 3])
def test_d12_error_inside_a_good_stream(error: bytes, n_before: int):
    """sgl-project/sglang#38868"""
    native = [c.native("x" * (i + 1), i + 1) for i in range(n_before)]
    chat = [c.delta(content="x") for _ in range(n_before)]
    for request, items in ((c.GENERATE, native), (c.CHAT, chat), (c.COMPLETIONS, chat)):
        folded = fold(request, c.stream(*enumerate(items), (9, error), c.DONE))
        assert (folded.outcome, folded.error) == ("server_error", "boom")
        assert folded.output_tokens == (n_before or None)
        assert len(folded.chunk_ns) == n_before


def test_d13_polite_early_end():
    """kubernetes-sigs/inference-perf#655"""
    items = [c.native("x" * (i + 1), i + 1) for i in range(10)]
    cut = fold(c.GENERATE, c.stream(*enumerate(items)))
    assert (cut.outcome, cut.output_tokens) == ("truncated", 10)
    stopped = c.native("x" * 10, 10, c.STOP)
    for tail in ([c.DONE], []):
        whole = fold(c.GENERATE, c.stream(*enumerate(items), (10, stopped), *tail))
        assert (whole.outcome, whole.output_tokens, whole.finish_reason) == ("ok", 10, "stop")
    reset = c.stream(*enumerate(items), c.event(stopped)[:40])
    reset.failure = ("disconnect", "reset by peer")
    lost = fold(c.GENERATE, reset)
    assert (lost.outcome, lost.error, lost.output_tokens) == ("disconnect", "reset by peer", 10)
    chat = fold(c.CHAT, c.stream(*((i, c.delta(content="x")) for i in range(10))))
    assert (chat.outcome, chat.output_tokens, chat.token_source) == ("truncated", 10, "estimated")


def test_d14_every_request_fails():
    """sgl-project/genai-bench#83"""
    for request in (c.GENERATE, c.COMPLETIONS, c.CHAT):
        folded = fold(request, c.body({"detail": "Not Found"}, status=404))
        assert (folded.outcome, folded.error) == ("http", "Not Found")
        assert (folded.output_tokens, folded.token_source, folded.first_token_ns) == (None, None, None)


def test_d15_zero_time_and_zero_tokens():
    """ray-project/llmperf#55"""
    frozen = fold(c.GENERATE, c.stream(*((0, c.native("x" * (i + 1), i + 1)) for i in range(3)), c.DONE))
    assert (frozen.outcome, frozen.first_token_ns, frozen.last_token_ns) == ("ok", 0, 0)
    assert gaps_ms(frozen) == [0, 0]
    none = fold(c.GENERATE, c.stream((1000, c.native("", 0, c.STOP)), c.DONE))
    assert (none.outcome, none.first_token_ns, none.output_tokens) == ("empty", None, 0)


@pytest.mark.parametrize(("meta", "expected"), [
    ({"cached_tokens": 512, "cached_tokens_details": {"device": 512, "host": 0}}, (512, 512, 0, None)),
    ({"cached_tokens": 512, "cached_tokens_details": None}, (512, None, None, None)),
    ({"cached_tokens": 0}, (0, 0, 0, None)),
    ({"cached_tokens": 0, "cached_tokens_details": None}, (0, 0, 0, None)),
    ({"cached_tokens": 512, "cached_tokens_details": {"device": 256, "host": 128, "storage": 128}},
     (512, 256, 128, 128)),
    ({}, (None, None, None, None)),
])
def test_d24_tiers_that_are_not_told_are_none(meta: dict[str, Any], expected: tuple[Any, ...]):
    """sgl-project/sglang#26590"""
    folds = [fold(c.GENERATE, c.stream(c.event(c.native("a", 1, c.STOP, **meta)), c.DONE)),
             fold(c.GENERATE, c.body(c.native("a", 1, c.STOP, **meta)))]
    report = {"cached_tokens": meta["cached_tokens"]} if meta else None
    events = [c.delta("stop", content="a"), c.usage(600, 1, prompt_tokens_details=report)]
    if meta.get("cached_tokens_details"):
        events.insert(1, {"choices": [], "sglext": {"cached_tokens_details": meta["cached_tokens_details"]}})
    folds.append(fold(c.CHAT, c.stream(*map(c.event, events), c.DONE)))
    for folded in folds:
        assert (folded.cached_tokens, folded.device_tokens, folded.host_tokens, folded.storage_tokens) == expected
