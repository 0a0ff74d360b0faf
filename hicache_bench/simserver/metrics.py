"""The simulated server's /metrics page: SGLang's names, types and labels (observability/metrics_collector.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Engine

_Row = tuple[Mapping[str, str], float]


def metrics_page(config: SimConfig, engine: Engine) -> str:
    """Prometheus text (version 0.0.4) of the state of this instant."""
    engine.refresh()
    lines: list[str] = []
    for name, kind, rows in (*_request_counters(config, engine), *_cache_counters(config, engine),
                             *_gauges(config, engine)):
        lines += (f"# HELP sglang:{name} simulated by hicache-bench", f"# TYPE sglang:{name} {kind}")
        lines += (_line(name, labels, value) for labels, value in rows)
    return "\n".join(lines) + "\n"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in sorted(labels.items()))
    return f"sglang:{name}{{{inside}}} {float(value)!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _request_counters(config: SimConfig, engine: Engine) -> Iterable[tuple[str, str, list[_Row]]]:
    base = {"model_name": config.served_model_name, "engine_type": "unified"}
    scheduler = _scheduler_labels(config)
    for name, counts in (("prompt_tokens_total", engine.prompt_tokens),
                         ("generation_tokens_total", engine.generated_tokens),
                         ("num_requests_total", engine.requests)):
        yield name, "counter", [({**base, "is_streaming": str(streamed).lower()}, counts[streamed])
                                for streamed in (False, True)]
    sources = ["device", "host", *(["storage"] if config.storage_class else [])]
    yield "cached_tokens_total", "counter", [({**base, "cache_source": tier}, engine.tokens[tier])
                                             for tier in sources]
    modes = {"input": "input", "device_hit": "device", "host_hit": "host", "storage_hit": "storage"}
    yield "prefill_effective_tokens_total", "counter", [
        ({**scheduler, "mode": mode}, engine.tokens[key]) for mode, key in modes.items()]
    yield "num_aborted_requests_total", "counter", [(base, engine.aborted)]


def _cache_counters(config: SimConfig, engine: Engine) -> Iterable[tuple[str, str, list[_Row]]]:
    counters = engine.core.cache.counters
    radix = {"cache_type": "Simulated", "tp_rank": "0", "pp_rank": "0", "dp_rank": "0"}
    yield "evicted_tokens_total", "counter", [(radix, counters.evicted)]
    if config.enable_hierarchical_cache:
        yield "hicache_dropped_tokens_total", "counter", [
            ({**radix, "reason": reason}, tokens) for reason, tokens in sorted(counters.dropped.items())]
        yield "hicache_backup_tokens_total", "counter", [({**radix, "pool": "kv"}, counters.backup)]
        yield "load_back_tokens_total", "counter", [({**radix, "pool": "kv"}, counters.load_back)]
    if config.storage_class is not None:
        storage = {"storage_backend": config.hicache_storage_backend or "", "tp_rank": "0", "dp_rank": "0",
                   "pp_rank": "0", "pp_size": "1", "attn_cp_rank": "0", "attn_cp_size": "1"}
        yield "backuped_tokens_total", "counter", [(storage, counters.storage_backup)]
        yield "prefetched_tokens_total", "counter", [(storage, counters.prefetched)]
        yield "storage_prefetch_hit_tokens_total", "counter", [(storage, counters.storage_hit)]
        yield "storage_prefetch_unfulfilled_tokens_total", "counter", [
            ({**storage, "reason": reason}, tokens) for reason, tokens in sorted(counters.unfulfilled.items())]


def _gauges(config: SimConfig, engine: Engine) -> Iterable[tuple[str, str, list[_Row]]]:
    labels = _scheduler_labels(config)
    cache = engine.core.cache
    used = cache.device_used_tokens - cache.evictable_tokens
    values: dict[str, float] = {
        "max_total_num_tokens": config.device_tokens, "page_size": config.page_size,
        "num_pages": config.device_tokens // config.page_size, "context_len": config.context_length,
        "num_running_reqs": engine.running, "num_queue_reqs": engine.waiting, "num_used_tokens": used,
        "token_usage": used / config.device_tokens,
        "kv_available_tokens": config.device_tokens - cache.device_used_tokens,
        "kv_evictable_tokens": cache.evictable_tokens,
        "kv_used_tokens": cache.device_used_tokens - cache.evictable_tokens,
    }
    if config.host_tokens is not None:
        values["hicache_host_used_tokens"] = cache.host_used_tokens
        values["hicache_host_total_tokens"] = config.host_tokens
    for name, value in values.items():
        yield name, "gauge", [(labels, value)]


def _scheduler_labels(config: SimConfig) -> dict[str, str]:
    return {"model_name": config.served_model_name, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0",
            "moe_ep_rank": "0"}
