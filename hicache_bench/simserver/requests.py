"""Request bodies to jobs, with SGLang's limits and error messages."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from hicache_bench.cachesim.chain import namespace_seed
from hicache_bench.scrub import well_formed
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Job
from hicache_bench.simserver.tokenizer import encode

Body = Mapping[str, Any]

NATIVE_DEFAULT_TOKENS = 128
COMPLETION_DEFAULT_TOKENS = 16


class Rejected(Exception):
    """A request this server refuses with status 400. `schema` tells a malformed body from one too long."""

    def __init__(self, message: str, schema: bool = False) -> None:
        super().__init__(message)
        self.schema = schema


def native_jobs(config: SimConfig, body: Body) -> tuple[list[Job], bool]:
    """The jobs of a /generate body, and whether the answer is a list (io_struct.py `_determine_batch_size`)."""
    given = [key for key in ("text", "input_ids") if body.get(key) is not None]
    if len(given) != 1:
        raise Rejected("exactly one of text and input_ids must be given", schema=True)
    prompts, batch = _prompts(body[given[0]], given[0], strings=given == ["text"])
    params = body.get("sampling_params") or {}
    sampling = params if isinstance(params, list) else [params] * len(prompts)
    if len(sampling) != len(prompts) or not all(isinstance(one, dict) for one in sampling):
        raise Rejected("sampling_params must be an object, or one object a prompt", schema=True)
    _check_rank(body)
    jobs: list[Job] = []
    for index, (ids, one) in enumerate(zip(prompts, sampling, strict=True)):
        copies = _count(one, "n", 1)
        asked = _count(one, "max_new_tokens", NATIVE_DEFAULT_TOKENS)
        batch = batch or copies > 1
        jobs += [_job(config, body, ids, asked, index, _native_limit(body)) for _ in range(copies)]
    return jobs, batch


def completion_jobs(config: SimConfig, body: Body) -> list[Job]:
    """The jobs of a /v1/completions body."""
    if body.get("prompt") is None:
        raise Rejected("prompt is required", schema=True)
    prompt = body["prompt"]
    ids_given = isinstance(prompt, list) and prompt and not isinstance(prompt[0], str)
    prompts, _ = _prompts(prompt, "prompt", strings=not ids_given)
    asked = _count(body, "max_tokens", COMPLETION_DEFAULT_TOKENS)
    _check_rank(body)
    return [_job(config, body, ids, asked, i, None) for i, ids in enumerate(prompts)
            for _ in range(_count(body, "n", 1))]


def chat_jobs(config: SimConfig, body: Body) -> list[Job]:
    """The jobs of a /v1/chat/completions body, by a template of our own: `role⏎content⏎ … assistant⏎`."""
    ids = encode(chat_text(body.get("messages")))
    asked = _count(body, "max_completion_tokens", _count(body, "max_tokens", NATIVE_DEFAULT_TOKENS))
    _check_rank(body)
    return [_job(config, body, ids, asked, 0, None) for _ in range(_count(body, "n", 1))]


def chat_text(messages: Any) -> str:
    """The prompt text of chat messages."""
    if not isinstance(messages, list) or not messages:
        raise Rejected("messages must be a list with at least one message", schema=True)
    parts = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Rejected("each message needs a role", schema=True)
        parts.append(f"{message['role']}\n{_content(message.get('content'))}\n")
    return "".join(parts) + "assistant\n"


def wants_stream(body: Body) -> bool:
    """Whether the body asks for events."""
    return body.get("stream") is True


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise Rejected("message content must be a string or a list of parts", schema=True)


def _prompts(value: Any, name: str, *, strings: bool) -> tuple[list[list[int]], bool]:
    if strings:
        if isinstance(value, str):
            return [encode(value)], False
        if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
            return [encode(text) for text in value], True
        raise Rejected(f"{name} must be a string or a list of strings", schema=True)
    if isinstance(value, list) and value and all(isinstance(ids, list) for ids in value):
        return [_ids(ids, name) for ids in value], True
    return [_ids(value, name)], False


def _ids(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise Rejected(f"{name} must be a list of integers or of such lists", schema=True)
    if value and not (min(value) >= 0 and max(value) < 2**32):
        raise Rejected(f"{name} holds a value outside 0 to 4294967295")
    return value


def _job(config: SimConfig, body: Body, ids: list[int], asked: int, index: int, limit: int | None) -> Job:
    return Job(_rid(body.get("rid"), index), ids, output_limit(config, len(ids), asked),
               _namespace(body, index), limit, wants_stream(body), _priority(body))


def output_limit(config: SimConfig, prompt_tokens: int, asked: int) -> int:
    """How many tokens the answer gets; raises `Rejected` for a prompt or sum that is too long.

    The pool cuts the answer silently: allocator/base.py `max_new_tokens_for_memory`, scheduler.py
    `init_req_max_new_tokens`.
    """
    if prompt_tokens == 0:
        raise Rejected("the prompt has no tokens")
    if prompt_tokens >= config.context_length:
        raise Rejected(f"The input ({prompt_tokens} tokens) is longer than the model's context length "
                       f"({config.context_length} tokens).")
    if prompt_tokens + asked > config.context_length:
        raise Rejected("Requested token count exceeds the model's maximum context length of "
                       f"{config.context_length} tokens: {prompt_tokens} of input and {asked} of completion.")
    if prompt_tokens >= config.max_input_tokens:
        raise Rejected(f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length "
                       f"({config.max_input_tokens} tokens). Use a shorter input or enable "
                       "--allow-auto-truncate.")
    page = config.page_size
    paged_prompt = -(-prompt_tokens // page) * page
    return max(0, min(asked, config.max_request_tokens - prompt_tokens - 1,
                      config.device_tokens - paged_prompt - page - 1))


def _native_limit(body: Body) -> int | None:
    start = body.get("logprob_start_len", -1)
    if body.get("return_logprob") is True and type(start) is int and start >= 0:
        return start
    return None


def _namespace(body: Body, index: int) -> bytes | None:
    parts: list[str | None] = []
    for name in ("extra_key", "cache_salt"):
        value = body.get(name)
        if isinstance(value, list):
            value = value[index] if index < len(value) else None
        if not (value is None or isinstance(value, str)):
            raise Rejected(f"{name} must be a string", schema=True)
        parts.append(None if value is None else well_formed(value))
    return namespace_seed(*parts)


def _priority(body: Body) -> int:
    value = body.get("priority")
    if value is not None and type(value) is not int:
        raise Rejected("priority must be a whole number", schema=True)
    return value or 0


def _rid(value: Any, index: int) -> str:
    if isinstance(value, list):
        value = value[index] if index < len(value) else None
    return value if isinstance(value, str) else uuid.uuid4().hex


def _count(params: Mapping[str, Any], name: str, default: int) -> int:
    value = params.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 0 or (name == "n" and not 1 <= value <= 128):
        raise Rejected(f"{name} is {value!r}; allowed: a whole number", schema=True)
    return value


def _check_rank(body: Body) -> None:
    rank = body.get("routed_dp_rank", body.get("data_parallel_rank"))
    if rank not in (None, 0):
        raise Rejected(f"routed_dp_rank={rank} is out of range: this server has 1 data-parallel rank")
