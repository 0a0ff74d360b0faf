"""SGLang's native `/generate`: request body and answer.

Sources, of SGLang 0.5.23: srt/managers/io_struct.py (GenerateReqInput), srt/managers/tokenizer_manager.py
`_handle_batch_output` (meta_info), srt/entrypoints/http_server.py `serve_generate_request` (streams).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hicache_bench.records import Folded, WireRequest
from hicache_bench.wire.answer import Answer
from hicache_bench.wire.body import TokenIds, check_count, encode, merge, one_prompt
from hicache_bench.wire.values import count, read_tiers, seconds, small_scalars, sum_of_tiers, text_or_none

PATH = "/generate"
_OWNED = frozenset({"input_ids", "text", "stream"})

_COLUMNS = frozenset({
    "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "cached_tokens_details",
    "dp_rank", "e2e_latency", "first_token_latency", "queue_time", "storage_prefetch_wait", "num_retractions",
})
# Wall-clock stamps of the server, what follows from other columns, and what repeats in every answer of a run.
_IGNORED = frozenset({
    "weight_version", "weight_versions", "forward_entry_time", "prefill_finished_time", "request_received_ts",
    "api_server_dispatch_finish_ts", "response_sent_to_client_ts", "request_finished_ts", "decode_throughput",
    "output_token_logprobs_length",
})
_KNOWN = _COLUMNS | _IGNORED


def build_generate(
    *,
    input_ids: TokenIds | None,
    text: str | None,
    max_new_tokens: int,
    streamed: bool,
    ignore_eos: bool,
    temperature: float = 0.0,
    rid: str | None = None,
    routed_dp_rank: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
    incremental: bool = False,
) -> WireRequest:
    """A `/generate` request for one prompt, given as token ids or as text.

    `extra_body` goes into the top level, its `sampling_params` into ours. `incremental` must be true when the
    server was started with --incremental-streaming-output; it is no request field. Raises `UsageError`.
    """
    check_count("max_new_tokens", max_new_tokens)
    body: dict[str, Any] = {"input_ids" if text is None else "text": one_prompt(input_ids, text)}
    body["sampling_params"] = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "ignore_eos": ignore_eos,
    }
    body["stream"] = streamed
    if rid is not None:
        body["rid"] = rid
    if routed_dp_rank is not None:
        body["routed_dp_rank"] = routed_dp_rank
    merge(body, extra_body, _OWNED, "sampling_params")
    return WireRequest(PATH, encode(body), "generate", streamed, incremental)


def read(answer: Answer, item: dict[str, Any], stamp: int | None, incremental: bool) -> None:
    """Take in one event, or a whole body (`stamp` None).

    `text` and `output_ids` hold everything so far, or with `incremental` only what is new;
    `completion_tokens` is a running total in both forms (sgl-project/sglang#215). Without it the ids are
    counted, they come from the server too.
    """
    text, ids, meta = item.get("text"), item.get("output_ids"), item.get("meta_info")
    if text is None and ids is None and meta is None:
        return
    answer.answers += 1
    seen, chars = _read_text(answer, text, stamp, incremental)
    if isinstance(ids, list):
        seen = _read_ids(answer, ids, incremental) or seen
    said = None
    if isinstance(meta, dict):
        answer.figures.update(meta)
        said = count(meta.get("completion_tokens"))
        if meta.get("finish_reason") is not None:
            _read_finish(answer, meta["finish_reason"])
    if said is None and isinstance(ids, list):
        said = answer.n_ids
    answer.add(stamp, said, seen, chars)


def _read_text(answer: Answer, text: Any, stamp: int | None, incremental: bool) -> tuple[bool, int]:
    """(whether there is new text, how many characters of it)."""
    if not isinstance(text, str):
        return False, 0
    if text and answer.first_content_ns is None:
        answer.first_content_ns = stamp
    if incremental:
        answer.parts.append(text)
        return text != "", len(text)
    before, answer.text = answer.text, text
    return text not in ("", before), max(len(text) - len(before), 0)


def _read_ids(answer: Answer, ids: list[Any], incremental: bool) -> bool:
    if incremental:
        answer.output_ids = answer.output_ids or []
        answer.output_ids += ids
        answer.n_ids += len(ids)
        return bool(ids)
    before, answer.n_ids, answer.output_ids = answer.n_ids, len(ids), ids
    return len(ids) > before


def _read_finish(answer: Answer, reason: Any) -> None:
    detail = reason if isinstance(reason, dict) else {"type": reason}
    if (kind := text_or_none(detail.get("type"))) is None:
        return
    answer.finish_reason = kind
    answer.finished = True
    if kind == "abort" and answer.error is None:
        answer.error = text_or_none(detail.get("message")) or "abort"


def fill(answer: Answer, folded: Folded) -> None:
    """Write what `meta_info` says about prompt, cache and server into `folded`."""
    meta = answer.figures
    cached = count(meta.get("cached_tokens"))
    tiers = read_tiers(meta.get("cached_tokens_details"), cached)
    folded.prompt_tokens = count(meta.get("prompt_tokens"))
    folded.cached_tokens = sum_of_tiers(tiers) if cached is None else cached
    folded.device_tokens, folded.host_tokens, folded.storage_tokens, folded.storage_backend = tiers
    folded.request_id = text_or_none(meta.get("id"))
    folded.dp_rank = count(meta.get("dp_rank"))
    folded.retractions = count(meta.get("num_retractions"))
    folded.server_e2e_s = seconds(meta.get("e2e_latency"))
    folded.server_ttft_s = seconds(meta.get("first_token_latency"))
    folded.server_queue_s = seconds(meta.get("queue_time"))
    folded.prefetch_wait_s = seconds(meta.get("storage_prefetch_wait"))
    folded.extra = small_scalars(meta, _KNOWN) or None
