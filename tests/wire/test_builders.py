"""The exact JSON every builder writes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hicache_bench.errors import UsageError
from hicache_bench.records import Message, WireRequest
from hicache_bench.wire.generate import build_generate
from hicache_bench.wire.openai import build_chat, build_completions

SHOULD = {"streamed": True, "ignore_eos": True}


def native(**options: Any) -> WireRequest:
    return build_generate(**{"input_ids": [1, 2], "text": None, "max_new_tokens": 8, **SHOULD, **options})


def completions(**options: Any) -> WireRequest:
    return build_completions(**{"model": "m", "input_ids": [1, 2], "text": None, "max_tokens": 8, **SHOULD, **options})


def chat(**options: Any) -> WireRequest:
    return build_chat(**{"model": "m", "messages": [Message("user", "hé")], "max_tokens": 8, **SHOULD, **options})


def sent(request: WireRequest) -> Any:
    return json.loads(request.body)


def test_generate():
    request = native()
    assert (request.path, request.api, request.streamed, request.incremental) == ("/generate", "generate", True, False)
    assert sent(request) == {
        "input_ids": [1, 2], "stream": True,
        "sampling_params": {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True},
    }


def test_generate_text_rank_rid_and_extra_body():
    request = native(input_ids=None, text="hé", streamed=False, ignore_eos=False, temperature=0.5, rid="a",
                     routed_dp_rank=0, incremental=True, max_new_tokens=0,
                     extra_body={"priority": 3, "sampling_params": {"top_p": 0.5, "temperature": 1}})
    assert not request.streamed
    assert request.incremental
    assert sent(request) == {
        "text": "hé", "stream": False, "rid": "a", "routed_dp_rank": 0, "priority": 3,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1, "ignore_eos": False, "top_p": 0.5},
    }


@pytest.mark.parametrize("ids", [np.array([3, 70000], np.int32), np.array([3, 70000], np.int64), (3, 70000),
                                 [np.int32(3), np.int64(70000)]])
def test_token_ids_of_any_kind(ids: Any):
    assert sent(native(input_ids=ids))["input_ids"] == [3, 70000]
    assert sent(completions(input_ids=ids))["prompt"] == [3, 70000]


def test_completions():
    request = completions()
    assert (request.path, request.api, request.streamed) == ("/v1/completions", "completions", True)
    assert sent(request) == {
        "model": "m", "prompt": [1, 2], "max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "return_cached_tokens_details": True,
    }
    plain = sent(completions(input_ids=None, text="x", streamed=False, rid="a", routed_dp_rank=1))
    assert plain == {
        "model": "m", "prompt": "x", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "stream": False,
        "return_cached_tokens_details": True, "rid": "a", "routed_dp_rank": 1,
    }


def test_chat():
    request = chat(messages=[Message("system", "s"), Message("user", "hé")], rid="a", routed_dp_rank=1,
                   extra_body={"stream_options": {"continuous_usage_stats": True}, "top_k": 1})
    assert (request.path, request.api, request.streamed) == ("/v1/chat/completions", "chat", True)
    assert sent(request) == {
        "model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hé"}],
        "max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "stream": True, "rid": "a", "routed_dp_rank": 1,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_cached_tokens_details": True, "top_k": 1,
    }


@pytest.mark.parametrize(("build", "options", "message"), [
    (native, {"text": "x"}, "either input_ids or text, got both"),
    (native, {"input_ids": None}, "got neither"),
    (completions, {"text": ""}, "got both"),
    (native, {"max_new_tokens": -1}, "max_new_tokens is -1"),
    (chat, {"max_tokens": -1}, "max_tokens is -1"),
    (chat, {"messages": []}, "at least one message"),
    (native, {"extra_body": {"stream": False}}, "may not set 'stream'"),
    (completions, {"extra_body": {"prompt": "y"}}, "may not set 'prompt'"),
    (native, {"extra_body": {"sampling_params": 3}}, "must be a table"),
    (native, {"extra_body": {"x": object()}}, "can not be written as JSON"),
    (native, {"input_ids": [1, "2", object()]}, "can not be written as JSON"),
])
def test_bad_input_is_a_usage_error(build: Any, options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        build(**options)


def test_extra_body_is_left_alone():
    extra = {"sampling_params": {"top_p": 0.5}}
    native(extra_body=extra)
    assert extra == {"sampling_params": {"top_p": 0.5}}
