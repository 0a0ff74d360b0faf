"""Read Prometheus pages: SGLang's own and any further exporter's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from hicache_bench.errors import ServerError
from hicache_bench.sglang.httpcall import call, refusal

MAX_PAGE_BYTES = 64 * 2**20
_OFF_LOOP_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page: full sample name (`…_total`, `…_bucket`), labels, value, metric type."""

    name: str
    labels: Mapping[str, str]
    value: float
    kind: str


def parse_samples(text: str, content_type: str = "") -> list[Sample]:
    """Every sample of a page in Prometheus text format, or OpenMetrics when the content type says so.

    A page that claims OpenMetrics but breaks its stricter rules is read as plain text. Raises `ServerError`
    for anything that is neither.
    """
    if "openmetrics" in content_type:
        try:
            return _parse(parse_openmetrics, text)
        except ServerError:
            pass
    return _parse(parse_text, text)


async def scrape(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None,
                 timeout_s: float = 10.0, max_bytes: int = MAX_PAGE_BYTES) -> list[Sample]:
    """The samples of one page; raises `ServerError` for no answer, a status that is not 200, or no such text.

    Pages beyond a few kilobytes are parsed in a thread: parsing one on the loop would delay its stamps.
    """
    answer = await call(session, "GET", url, headers=headers or {}, timeout_s=timeout_s, max_bytes=max_bytes)
    if answer.status != 200:
        raise refusal(answer)
    try:
        if len(answer.body) < _OFF_LOOP_BYTES:
            return parse_samples(answer.text, answer.content_type)
        return await asyncio.to_thread(parse_samples, answer.text, answer.content_type)
    except ServerError as error:
        raise ServerError(f"{url} is no metrics page: {error}", answer.status) from None


def total(samples: Sequence[Sample], name: str, **labels: str) -> float | None:
    """Sum of the samples called `name` with these labels; None when there is none.

    Where ranks are told apart, only tensor and pipeline rank 0 count: every one of those ranks reports the
    same logical tokens (srt/observability/metrics_collector.py). Data-parallel ranks are summed.
    """
    values = [sample.value for sample in samples if sample.name == name and _is_first_rank(sample.labels)
              and all(sample.labels.get(label) == value for label, value in labels.items())]
    return sum(values) if values else None


def largest(samples: Sequence[Sample], name: str) -> float | None:
    """Largest finite sample called `name` (a capacity of one rank); None when there is none."""
    return max((sample.value for sample in samples if sample.name == name and math.isfinite(sample.value)),
               default=None)


def _is_first_rank(labels: Mapping[str, str]) -> bool:
    return labels.get("tp_rank", "0") == "0" and labels.get("pp_rank", "0") == "0"


def _parse(parser: Callable[[str], Iterable[Metric]], text: str) -> list[Sample]:
    try:
        return [Sample(sample.name, sample.labels, float(sample.value), family.type)
                for family in parser(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServerError(f"line not understood: {str(error)[:200]}") from None
