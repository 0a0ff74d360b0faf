"""SGLang's OpenAI endpoints, `/v1/completions` and `/v1/chat/completions`: request bodies and answers.

Sources: srt/entrypoints/openai/{protocol,usage_processor,serving_chat,serving_completions}.py, SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hicache_bench.errors import UsageError
from hicache_bench.records import Folded, Message, WireRequest
from hicache_bench.wire.answer import Answer
from hicache_bench.wire.body import TokenIds, check_count, encode, merge, one_prompt
from hicache_bench.wire.values import count, read_tiers, small_scalars, sum_of_tiers, text_or_none

COMPLETIONS_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"
_OWNED = frozenset({"prompt", "messages", "stream"})
_KNOWN_USAGE = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})


def build_completions(
    *,
    model: str,
    input_ids: TokenIds | None,
    text: str | None,
    max_tokens: int,
    streamed: bool,
    ignore_eos: bool,
    temperature: float = 0.0,
    rid: str | None = None,
    routed_dp_rank: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> WireRequest:
    """A `/v1/completions` request for one prompt, given as token ids or as text.

    Asks for the usage (streams) and for the cached tokens by tier. `extra_body` goes into the top level, its
    `stream_options` into ours. Raises `UsageError`.
    """
    body: dict[str, Any] = {"model": model, "prompt": one_prompt(input_ids, text)}
    _common(body, max_tokens, streamed, ignore_eos, temperature, rid, routed_dp_rank, extra_body)
    return WireRequest(COMPLETIONS_PATH, encode(body), "completions", streamed)


def build_chat(
    *,
    model: str,
    messages: Sequence[Message],
    max_tokens: int,
    streamed: bool,
    ignore_eos: bool,
    temperature: float = 0.0,
    rid: str | None = None,
    routed_dp_rank: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> WireRequest:
    """A `/v1/chat/completions` request for a whole conversation; otherwise like `build_completions`."""
    if not messages:
        raise UsageError("a chat request needs at least one message")
    said = [{"role": message.role, "content": message.content} for message in messages]
    body: dict[str, Any] = {"model": model, "messages": said}
    _common(body, max_tokens, streamed, ignore_eos, temperature, rid, routed_dp_rank, extra_body)
    return WireRequest(CHAT_PATH, encode(body), "chat", streamed)


def _common(
    body: dict[str, Any], max_tokens: int, streamed: bool, ignore_eos: bool, temperature: float,
    rid: str | None, routed_dp_rank: int | None, extra_body: Mapping[str, Any] | None,
) -> None:
    check_count("max_tokens", max_tokens)
    body["max_tokens"] = max_tokens
    body["temperature"] = temperature
    body["ignore_eos"] = ignore_eos
    body["stream"] = streamed
    if streamed:
        body["stream_options"] = {"include_usage": True}
    body["return_cached_tokens_details"] = True
    if rid is not None:
        body["rid"] = rid
    if routed_dp_rank is not None:
        body["routed_dp_rank"] = routed_dp_rank
    merge(body, extra_body, _OWNED, "stream_options")


def read(answer: Answer, item: dict[str, Any], stamp: int | None, incremental: bool = False) -> None:
    """Take in one event, or a whole body (`stamp` None). These APIs always send what is new.

    An event without choices is never a token, whatever usage it carries (sgl-project/sglang#5451).
    """
    usage, choices = item.get("usage"), item.get("choices")
    if answer.request_id is None:
        answer.request_id = text_or_none(item.get("id"))
    said = None
    if isinstance(usage, dict):
        answer.figures.update(usage)
        said = count(usage.get("completion_tokens"))
    _read_details(answer, item)
    if isinstance(choices, list):
        answer.answers += 1
    if not isinstance(choices, list) or not choices:
        if said is not None:
            answer.settle(said)
        return
    chars = 0
    for choice in choices:
        if isinstance(choice, dict):
            chars += _read_choice(answer, choice, stamp)
            _read_details(answer, choice)
    answer.add(stamp, said, chars > 0, chars)


def _read_choice(answer: Answer, choice: dict[str, Any], stamp: int | None) -> int:
    """How many new characters a choice carries, in any field."""
    delta = choice.get("delta") or choice.get("message")
    fields = delta if isinstance(delta, dict) else {}
    content = choice.get("text") or fields.get("content")
    content = content if isinstance(content, str) else ""
    hidden = _hidden_text(fields)
    if content:
        answer.parts.append(content)
        if answer.first_content_ns is None:
            answer.first_content_ns = stamp
    if hidden:
        answer.hidden.append(hidden)
    if (reason := text_or_none(choice.get("finish_reason"))) is not None:
        answer.finish_reason = reason
        answer.finished = True
        if reason == "abort" and answer.error is None:
            answer.error = "abort"
    return len(content) + len(hidden)


def _hidden_text(fields: dict[str, Any]) -> str:
    """Generated text that is no visible content: reasoning (either field name) and tool calls."""
    hidden = fields.get("reasoning_content") or fields.get("reasoning") or ""
    text = hidden if isinstance(hidden, str) else ""
    calls = fields.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            parts = [function.get("name"), function.get("arguments")] if isinstance(function, dict) else []
            # A call whose name and arguments are still to come was generated all the same.
            text += "".join(part for part in parts if isinstance(part, str)) or "\n"
    return text


def _read_details(answer: Answer, holder: dict[str, Any]) -> None:
    """`sglext` stands at the top level; its first version (PR #17648) had it in each choice."""
    extension = holder.get("sglext")
    if isinstance(extension, dict) and extension.get("cached_tokens_details") is not None:
        answer.details = extension["cached_tokens_details"]


def fill(answer: Answer, folded: Folded) -> None:
    """Write what `usage` and `sglext` say about prompt and cache into `folded`.

    `prompt_tokens_details` is null unless the server runs with --enable-cache-report: then nothing is known,
    except from `sglext`, which does not need that flag and is left out when nothing was cached.
    """
    usage = answer.figures
    report = usage.get("prompt_tokens_details")
    cached = count(report.get("cached_tokens")) if isinstance(report, dict) else None
    tiers = read_tiers(answer.details, cached)
    folded.prompt_tokens = count(usage.get("prompt_tokens"))
    folded.cached_tokens = sum_of_tiers(tiers) if cached is None else cached
    folded.device_tokens, folded.host_tokens, folded.storage_tokens, folded.storage_backend = tiers
    folded.request_id = answer.request_id
    folded.extra = small_scalars(usage, _KNOWN_USAGE) or None
