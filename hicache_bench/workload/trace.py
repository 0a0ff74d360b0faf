"""Recorded loads with one request a line: Mooncake (prefix hashes) and Azure (lengths only).

Formats: kvcache-ai/Mooncake FAST25-release/traces/*.jsonl; Azure/AzurePublicDataset
AzureLLMInferenceTrace_*.csv. Content is made from the hash ids: equal ids are equal tokens.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import msgspec

from hicache_bench.errors import UsageError
from hicache_bench.records import Prompt, Segment, Turn
from hicache_bench.workload.shapes import Draft
from hicache_bench.workload.streams import Dataset, StreamSpec, Trace

MOONCAKE_BLOCK_TOKENS = 512
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00|Z)?")
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Count
    hash_ids: list[int]


def load_mooncake(stream: Trace, path: Path) -> Iterator[Draft]:
    """One single-turn session a line, in file order (ties keep it). Raises UsageError with file:line."""
    decoder = msgspec.json.Decoder(_Line)
    block = stream.block_tokens or MOONCAKE_BLOCK_TOKENS
    begin, end = stream.window_ns
    for number, raw in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{where}: not a Mooncake trace line: {error}") from None
        at_ns = _milliseconds_ns(line.timestamp, where)
        if not begin <= at_ns < end:
            continue
        ids = line.hash_ids
        segments = block_segments(
            ids, line.input_length, block, where,
            prefix=f"{stream.name}/", tail=f"{stream.name}/t{number}", scale=stream.length_scale,
        )
        # The first block is often the same system prompt for all, so the second one tells groups apart.
        yield Draft((_turn(segments, line.output_length, stream),), _affinity(stream, ids), at_ns - begin)


def load_azure(stream: Trace, path: Path) -> Iterator[Draft]:
    """One session of fresh content a row; the offsets count from the first row. Raises UsageError."""
    begin, end = stream.window_ns
    zero: int | None = None
    for number, row in _csv_rows(path):
        where = f"{path}:{number}"
        stamp = _azure_ns(row["TIMESTAMP"], where)
        zero = stamp if zero is None else zero
        if stamp < zero:
            raise UsageError(f"{where}: {row['TIMESTAMP']} is earlier than the first row")
        tokens = scaled(max(1, _whole(row["ContextTokens"], where)), stream.length_scale)
        output = _whole(row["GeneratedTokens"], where)
        if not begin <= stamp - zero < end:
            continue
        segments = (Segment(f"{stream.name}/r{number}", tokens),)
        yield Draft((_turn(segments, output, stream),), arrival_ns=stamp - zero - begin)


def block_segments(
    ids: list[int], tokens: int, block: int, where: str, *, prefix: str, tail: str, scale: float
) -> tuple[Segment, ...]:
    """The segments of a prompt of `tokens` given by the ids of its blocks.

    Traces count blocks by ceiling (Mooncake: the last id names a partial block) or by floor (WEKA: the rest
    has no id, so it becomes fresh content named `tail`). Raises UsageError for any other count, or for an id
    that occurs twice in one prompt (ids name prefixes).
    """
    rest = tokens % block
    floor = tokens // block
    if len(ids) not in (floor, floor + (rest > 0)):
        raise UsageError(f"{where}: {tokens} tokens in blocks of {block} need {floor + (rest > 0)} hash ids "
                         f"(or {floor} without the partial one), not {len(ids)}; is the block size right?")
    if len(set(ids)) != len(ids):
        raise UsageError(f"{where}: a hash id occurs twice in one request; ids must name prefixes")
    full = scaled(block, scale)
    segments = [Segment(f"{prefix}{block_id}", full) for block_id in ids[:floor]]
    if rest:
        key = f"{prefix}{ids[-1]}" if len(ids) > floor else tail
        segments.append(Segment(key, scaled(rest, scale)))
    return tuple(segments)


def scaled(tokens: int, scale: float) -> int:
    """A length times a factor, at least 1."""
    return tokens if scale == 1.0 else max(1, round(tokens * scale))


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of a file with their numbers from 1, read as a stream."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise missing(path, error) from None


def missing(path: Path, error: OSError) -> UsageError:
    """The error for a trace or data file that cannot be opened."""
    return UsageError(f"{path}: cannot read it ({error.strerror or error}); docs/workloads.md#traces says where to "
                      "get public traces, and --trace PATH names the file of a trace stream")


def check_files(streams: Iterable[StreamSpec], base_dir: Path) -> None:
    """That every trace and data set is there and can be opened; raises UsageError for the first that is not.

    For early in a command: reading them takes long, and needs the server's sizes.
    """
    for stream in streams:
        if not isinstance(stream, Trace | Dataset):
            continue
        path = base_dir / stream.path
        if path.is_dir() and isinstance(stream, Trace) and stream.format == "weka":
            continue
        try:
            if not path.is_fifo():  # whoever writes into a pipe would see it close
                path.open("rb").close()
        except OSError as error:
            raise missing(path, error) from None


def _turn(segments: tuple[Segment, ...], output: int, stream: Trace) -> Turn:
    prompt = Prompt(segments, n_tokens=sum(segment.n_tokens for segment in segments))
    return Turn(prompt, scaled(max(1, output), stream.output_scale))


def _affinity(stream: Trace, ids: list[int]) -> str:
    return f"{stream.name}/{ids[min(1, len(ids) - 1)]}" if ids else ""


def _milliseconds_ns(value: float, where: str) -> int:
    if not value < 2**53:
        raise UsageError(f"{where}: timestamp {value} is no time in milliseconds")
    return round(value * 10**6)


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            if any(column not in names for column in _AZURE_COLUMNS):
                raise UsageError(f"{path}:1: columns are {', '.join(names) or 'none'}; "
                                 f"needed: {', '.join(_AZURE_COLUMNS)}")
            for row in reader:
                if any(row[column] is None for column in _AZURE_COLUMNS):
                    raise UsageError(f"{path}:{reader.line_num}: the row ends too early")
                yield reader.line_num, row
    except OSError as error:
        raise missing(path, error) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not readable as CSV: {error}") from None


def _azure_ns(text: str, where: str) -> int:
    match = _AZURE_TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        parsed = datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc)
    except ValueError:
        raise UsageError(f"{where}: {text!r} is no time like 2023-11-16 18:15:46.6805900") from None
    return int(parsed.timestamp()) * 10**9 + int((match[2] or "0").ljust(9, "0"))


def _whole(text: str, where: str) -> int:
    cleaned = text.strip()
    if not (cleaned.isascii() and cleaned.isdigit() and len(cleaned) < 10):
        raise UsageError(f"{where}: {text!r} is no token count")
    return int(cleaned)
