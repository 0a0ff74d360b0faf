"""What the simulated server says about itself, under SGLang's names (/server_info, /model_info, /v1/loads)."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

import msgspec

from hicache_bench import __version__
from hicache_bench.sglang.capture import SIMULATED_MARKER
from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Engine
from hicache_bench.simserver.tokenizer import VOCAB_SIZE

_MODEL_PATH = "hicache-bench/simulated"


def server_info(config: SimConfig, engine: Engine) -> dict[str, Any]:
    """Flat dict of resolved settings; keys never hold a key value."""
    arguments = {
        "model_path": _MODEL_PATH, "tokenizer_path": _MODEL_PATH,
        "served_model_name": config.served_model_name, "device": "simulated", "dtype": "none",
        "context_length": config.context_length, "page_size": config.page_size,
        "max_total_tokens": config.max_total_tokens, "max_running_requests": config.max_running_requests,
        "schedule_policy": "fcfs", "radix_eviction_policy": config.radix_eviction_policy,
        "disable_radix_cache": False, "chunked_prefill_size": config.chunked_prefill_size,
        "enable_hierarchical_cache": config.enable_hierarchical_cache, "hicache_ratio": config.hicache_ratio,
        "hicache_size": config.hicache_size, "hicache_write_policy": config.hicache_write_policy,
        "hicache_io_backend": config.hicache_io_backend, "hicache_mem_layout": config.hicache_mem_layout,
        "swa_full_tokens_ratio": config.swa_full_tokens_ratio, "max_mamba_cache_size": config.max_mamba_cache_size,
        "mamba_track_interval": config.mamba_track_interval, "c128_page_size": config.c128_page_size,
        "hicache_storage_backend": config.hicache_storage_backend if config.storage_class else None,
        "hicache_storage_prefetch_policy": config.hicache_storage_prefetch_policy,
        "tp_size": 1, "dp_size": 1, "pp_size": 1, "disaggregation_mode": "null",
        "stream_interval": config.stream_interval,
        "incremental_streaming_output": config.incremental_streaming_output,
        "stream_response_default_include_usage": False, "enable_cache_report": config.enable_cache_report,
        "enable_metrics": config.enable_metrics, "allow_auto_truncate": False,
        "api_key": "<redacted>" if config.api_key else None,
        "admin_api_key": "<redacted>" if config.admin_api_key else None,
    }
    machine = {**msgspec.to_builtins(config.machine()), "speed": config.speed, "faults": list(config.faults),
               "prefetch_threshold": config.prefetch_threshold, "storage_tokens": config.storage_tokens}
    state = {**arguments, "world_size": 1,
             "effective_max_running_requests_per_dp": config.max_running_requests,
             "memory_usage": {"token_capacity": config.device_tokens}}
    return {
        SIMULATED_MARKER: True, **arguments, "status": "ready",
        "max_total_num_tokens": config.device_tokens, "max_req_input_len": config.max_input_tokens,
        "startup_time": {"started": engine.started_s}, "kv_events": None, "internal_states": [state],
        "version": f"simulated-{__version__}", "frontend": "python", "simulated_machine": machine,
    }


def model_info(config: SimConfig) -> dict[str, Any]:
    """/model_info."""
    return {
        "model_path": _MODEL_PATH, "served_model_name": config.served_model_name,
        "tokenizer_path": _MODEL_PATH, "is_generation": True, "preferred_sampling_params": None,
        "weight_version": "default", "load_format": "none", "reasoning_parser": None,
        "tool_call_parser": None, "disaggregation_mode": "null", "has_image_understanding": False,
        "has_audio_understanding": False, "model_type": "simulated", "architectures": ["Simulated"],
        "vocab_size": VOCAB_SIZE,
    }


def models(config: SimConfig, engine: Engine) -> dict[str, Any]:
    """/v1/models."""
    return {"object": "list", "data": [{
        "id": config.served_model_name, "object": "model", "created": int(engine.started_s),
        "owned_by": "hicache-bench", "root": config.served_model_name, "parent": None,
        "max_model_len": config.context_length}]}


def storage_status(config: SimConfig) -> dict[str, Any]:
    """GET /hicache/storage-backend."""
    return {"hicache_storage_backend": config.hicache_storage_backend if config.storage_class else None,
            "hicache_storage_backend_extra_config": None,
            "hicache_storage_prefetch_policy": config.hicache_storage_prefetch_policy,
            "hicache_write_policy": config.hicache_write_policy}


def loads(config: SimConfig, engine: Engine) -> dict[str, Any]:
    """/v1/loads."""
    used = min(engine.running_tokens, config.device_tokens)
    load = {
        "timestamp": time.time(), "dp_rank": 0, "num_running_reqs": engine.running,
        "num_waiting_reqs": engine.waiting, "num_used_tokens": used, "num_total_tokens": used,
        "max_total_num_tokens": config.device_tokens, "max_running_requests": config.max_running_requests,
        "token_usage": used / config.device_tokens,
        "total_prefill_uncached_tokens": engine.tokens["input"],
        "memory": {"token_capacity": config.device_tokens},
        "queues": {"waiting": engine.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }
    return {"timestamp": datetime.now(timezone.utc).isoformat(), "version": f"simulated-{__version__}",
            "accelerator": None, "num_accelerators": 1, "loads": [load]}
