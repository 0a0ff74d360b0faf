"""Answers in the shape of SGLang's native API (tokenizer_manager.py `_handle_batch_output`)."""

from __future__ import annotations

import time
from typing import Any

from hicache_bench.cachesim.request import TierTokens
from hicache_bench.clock import NS_PER_S
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Generation
from hicache_bench.simserver.tokenizer import decode


def tier_details(config: SimConfig, cached: TierTokens) -> dict[str, Any] | None:
    """`cached_tokens_details`: None when nothing was cached, no storage key without a storage tier."""
    if cached.cached == 0:
        return None
    details: dict[str, Any] = {"device": cached.device, "host": cached.host}
    if config.storage_class is not None:
        details |= {"storage": cached.storage, "storage_backend": config.storage_class}
    return details


def native_item(config: SimConfig, generation: Generation, done: int, sent: int, text: str, *,
                last: bool) -> dict[str, Any]:
    """One answer or stream event: everything so far, or from `sent` on with incremental streaming.

    `text` is what goes into the event; `last` says whether this is the final one.
    """
    start = sent if config.incremental_streaming_output else 0
    return {"text": text, "output_ids": generation.output_ids[start:done],
            "meta_info": _meta(config, generation, done, first=sent == 0, last=last)}


def finish_reason(generation: Generation, done: int) -> dict[str, Any]:
    """How the answer ended (managers/schedule_batch.py FINISH_LENGTH, FINISH_ABORT)."""
    if generation.aborted:
        return {"type": "abort", "message": generation.result.error or "Aborted", "status_code": None,
                "err_type": None}
    return {"type": "length", "length": done}


def whole_text(generation: Generation) -> str:
    """The text of a complete answer."""
    return decode(generation.output_ids)


def _meta(config: SimConfig, generation: Generation, done: int, *, first: bool, last: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": generation.job.rid,
        "finish_reason": finish_reason(generation, done) if last else None,
        "prompt_tokens": len(generation.job.ids),
        "weight_version": "default",
        "num_retractions": generation.result.retractions,
    }
    if config.enable_metrics:
        queued_s = (generation.started_ns - generation.received_ns) / NS_PER_S
        meta |= {
            "storage_prefetch_wait": generation.prefetch_wait_s,
            "storage_staging_wait": 0.0,
            "forward_entry_time": generation.wall_s(generation.started_ns),
            "prefill_finished_time": generation.wall_s(generation.first_ns),
            "queue_time": queued_s,
        }
    meta |= {"reasoning_tokens": 0, "completion_tokens": done, "cached_tokens": generation.cached.cached}
    if last:
        meta["weight_versions"] = [{"version": "default", "start": 0, "end": done}]
    details = None if generation.details_lost else tier_details(config, generation.cached)
    meta |= {"cached_tokens_details": details, "dp_rank": None}
    if last:
        meta |= _final_times(config, generation, done)
    if config.enable_metrics and (first or last):
        meta["response_sent_to_client_ts"] = time.time()
    return meta


def _final_times(config: SimConfig, generation: Generation, done: int) -> dict[str, Any]:
    finished_ns = generation.finished_ns
    times: dict[str, Any] = {"e2e_latency": (finished_ns - generation.received_ns) / NS_PER_S}
    if config.enable_metrics:
        decoding_s = (finished_ns - generation.first_ns) / NS_PER_S
        times |= {
            "request_received_ts": generation.received_s,
            "first_token_latency": (generation.first_ns - generation.received_ns) / NS_PER_S,
            "api_server_dispatch_finish_ts": generation.received_s,
            "request_finished_ts": generation.wall_s(finished_ns),
            "decode_throughput": done / decoding_s if decoding_s > 0 else 0.0,
        }
    return times


def stream_error(message: str) -> dict[str, Any]:
    """An error inside a native stream, whose status is 200 already (http_server.py `serve_generate_request`)."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}


def error_response(message: str, kind: str) -> dict[str, Any]:
    """The error body of the OpenAI endpoints and of malformed native requests."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": 400}
