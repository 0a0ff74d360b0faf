"""Read a server's resolved configuration before a run.

Sources: GET /server_info (flat, resolved values: they show silently changed settings), /model_info,
/hicache/storage-backend, /v1/models and /metrics of SGLang 0.5.23, older names tried on 404.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hicache_bench.errors import ServerError
from hicache_bench.records import ServerInfo
from hicache_bench.scrub import scrub, secret_values
from hicache_bench.sglang.admin import Admin
from hicache_bench.sglang.scrape import Sample, largest

SIMULATED_MARKER = "hicache_bench_simulated"

FLAGS = (
    "model_path", "served_model_name", "dtype", "quantization", "kv_cache_dtype", "device",
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "context_length",
    "page_size", "max_total_tokens", "mem_fraction_static", "max_running_requests", "max_queued_requests",
    "chunked_prefill_size", "max_prefill_tokens", "schedule_policy", "schedule_conservativeness",
    "disable_overlap_schedule", "enable_mixed_chunk", "disable_cuda_graph",
    "enable_hierarchical_cache", "hicache_host_memory_mode", "hicache_ratio", "hicache_size",
    "hicache_host_memory_fraction", "hicache_write_policy", "hicache_io_backend", "hicache_mem_layout",
    "hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_storage_backend_extra_config",
    "hicache_storage_prefetch_retry_poll_interval", "hicache_storage_prefetch_retry_max_attempts",
    "enable_unified_cache_external_linker", "enable_lmcache", "enable_flexkv", "enable_hisparse",
    "radix_eviction_policy", "radix_eviction_policy_config", "disable_radix_cache", "radix_cache_backend",
    "enable_session_radix_cache", "strip_thinking_cache",
    "swa_full_tokens_ratio", "disable_hybrid_swa_memory", "c128_page_size", "mamba_track_interval",
    "mamba_radix_cache_strategy", "mamba_full_memory_ratio", "max_mamba_cache_size",
    "tp_size", "dp_size", "pp_size", "ep_size", "dcp_size", "enable_dp_attention", "load_balance_method",
    "disaggregation_mode", "disaggregation_transfer_backend", "speculative_algorithm",
    "speculative_num_steps", "speculative_num_draft_tokens", "enable_lora",
    "stream_interval", "incremental_streaming_output", "stream_response_default_include_usage",
    "enable_cache_report", "enable_metrics", "tokenizer_worker_num", "detokenizer_worker_num",
    "allow_auto_truncate", "preferred_sampling_params", "sampling_defaults", "num_continuous_decode_steps",
)
"""The resolved flags that decide what a cache benchmark measures. Ports, pids, seeds, times and the
automatically sized pool are left out: they differ between two starts of one configuration."""


async def capture_server(admin: Admin, metrics: Sequence[Sample] | None) -> ServerInfo:
    """What the server says about itself; a server without these routes gives a `ServerInfo` of Nones.

    `metrics` is one scrape of its /metrics, or None. Raises `ServerError` when the server does not answer
    at all or refuses the key.
    """
    info = await admin.get_object("/server_info", "/get_server_info")
    model_info = await admin.get_object("/model_info", "/get_model_info")
    models = await _optional(admin, "/v1/models")
    storage = await admin.storage_status()
    answers = {"server_info": info, "model_info": model_info, "models": models, "storage_status": storage}
    given = {name: answer for name, answer in answers.items() if answer is not None}
    return describe(scrub(given, {*admin.secrets, *secret_values(given)}), metrics)


def describe(raw: Mapping[str, Any], metrics: Sequence[Sample] | None) -> ServerInfo:
    """`ServerInfo` from already scrubbed answers (keys `server_info model_info models storage_status`)."""
    info = _mapping(raw.get("server_info"))
    storage = raw.get("storage_status")
    flags = {name: info[name] for name in FLAGS if name in info}
    if storage is not None:
        flags.update(storage)  # an attach at run time does not show in /server_info
    model = _model_name(info, _mapping(raw.get("model_info")), raw.get("models"))
    page_size = _count(info.get("page_size")) or _metric(metrics, "sglang:page_size")
    device_tokens = _device_tokens(info, metrics)
    hicache = info.get("enable_hierarchical_cache")
    version = _text(info.get("version"))
    return ServerInfo(
        origin="simulated" if info.get(SIMULATED_MARKER) is True else "real",
        version=version, model=model, page_size=page_size, device_tokens=device_tokens,
        host_tokens=_host_tokens(info, page_size, device_tokens, metrics),
        context_length=_context_length(info, raw.get("models"), metrics),
        max_request_tokens=_count(info.get("max_req_input_len")),
        hicache=hicache if isinstance(hicache, bool) else None,
        storage_backend=_text(flags.get("hicache_storage_backend")),
        dp_size=_count(info.get("dp_size")),
        incremental_streaming=_flag(info.get("incremental_streaming_output")),
        flags=flags, raw=raw, fingerprint=_fingerprint(flags, version, model) if info else "")


async def _optional(admin: Admin, path: str) -> dict[str, Any] | None:
    try:
        return await admin.get_object(path)
    except ServerError as error:
        if error.status is None:
            raise
        return None


def _fingerprint(flags: Mapping[str, Any], version: str | None, model: str | None) -> str:
    text = msgspec.json.encode({"flags": dict(flags), "version": version, "model": model}, order="sorted")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _device_tokens(info: Mapping[str, Any], metrics: Sequence[Sample] | None) -> int | None:
    direct = _count(info.get("max_total_num_tokens")) or _metric(metrics, "sglang:max_total_num_tokens")
    if direct is not None:
        return direct
    states = info.get("internal_states")
    first = _mapping(states[0]) if isinstance(states, list) and states else {}
    return _count(_mapping(first.get("memory_usage")).get("token_capacity"))


def _host_tokens(info: Mapping[str, Any], page_size: int | None, device_tokens: int | None,
                 metrics: Sequence[Sample] | None) -> int | None:
    measured = _metric(metrics, "sglang:hicache_host_total_tokens")
    if measured is not None:
        return measured
    ratio = info.get("hicache_ratio")
    if (info.get("enable_hierarchical_cache") is not True or page_size is None or device_tokens is None
            or info.get("hicache_size") or isinstance(ratio, bool) or not isinstance(ratio, (int, float))):
        return None
    # srt/mem_cache/pool_host/base.py: one page more than the ratio says
    return (int(device_tokens * ratio) // page_size + 1) * page_size


def _context_length(info: Mapping[str, Any], models: Any, metrics: Sequence[Sample] | None) -> int | None:
    return (_count(info.get("context_length")) or _metric(metrics, "sglang:context_len")
            or _count(_first_model(models).get("max_model_len")))


def _model_name(info: Mapping[str, Any], model_info: Mapping[str, Any], models: Any) -> str | None:
    candidates = (info.get("served_model_name"), model_info.get("served_model_name"),
                  _first_model(models).get("id"), info.get("model_path"), model_info.get("model_path"))
    return next((text for text in map(_text, candidates) if text is not None), None)


def _first_model(models: Any) -> Mapping[str, Any]:
    data = _mapping(models).get("data")
    return _mapping(data[0]) if isinstance(data, list) and data else {}


def _metric(metrics: Sequence[Sample] | None, name: str) -> int | None:
    value = largest(metrics, name) if metrics is not None else None
    return round(value) if value is not None and value > 0 else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
