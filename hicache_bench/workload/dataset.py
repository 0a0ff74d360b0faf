"""Literal prompts and conversations from a file: JSONL rows, or the OpenAI and ShareGPT shapes.

A row is `{"prompt": "..."}`, `{"messages": [{"role", "content"}, ...]}` (also inside `"body"`, as in batch
files), or `{"conversations": [{"from", "value"}, ...]}`. The file is JSONL, or one JSON array of such rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hicache_bench.errors import UsageError
from hicache_bench.pacing import generator
from hicache_bench.records import Message, Prompt, Turn
from hicache_bench.workload.lengths import draw_lengths
from hicache_bench.workload.shapes import Draft
from hicache_bench.workload.streams import Dataset
from hicache_bench.workload.trace import missing, numbered_lines

_SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
                   "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "system": "system"}
_SHAPES = {"jsonl": ("prompt", "text"), "openai": ("messages", "body"), "sharegpt": ("conversations",)}


def load_dataset(stream: Dataset, path: Path, seed: int) -> Iterator[Draft]:
    """One session a row; a conversation becomes one turn for each user message, with the file's own answers
    as history. With `loop` the rows repeat for ever. Raises UsageError naming file and line.
    """
    rows = _drafts(stream, path)
    if stream.loop:
        kept = list(rows)
        rows = itertools.cycle(kept)
    lengths = generator(seed, f"{stream.name}/output_tokens")
    for turns in rows:
        outputs = draw_lengths(stream.output_tokens, len(turns), lengths).tolist()
        yield Draft(tuple(
            Turn(prompt, output, after=(index - 1,) if index else (), label=f"turn{index}")
            for index, (prompt, output) in enumerate(zip(turns, outputs, strict=True))
        ))


def _drafts(stream: Dataset, path: Path) -> Iterator[list[Prompt]]:
    for where, row in _rows(path):
        if not isinstance(row, Mapping):
            raise UsageError(f"{where}: a row is an object, not {type(row).__name__}")
        shape = stream.format if stream.format != "auto" else _shape(row, where)
        if shape == "jsonl":
            yield [_text(row, where)]
        elif turns := list(_turns(_messages(row, shape, where))):
            yield turns


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open("rb") as file:
            is_array = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
        if is_array:
            rows = msgspec.json.decode(path.read_bytes())
            yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows, start=1))
            return
    except OSError as error:
        raise missing(path, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    for number, line in numbered_lines(path):
        try:
            yield f"{path}:{number}", msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not JSON: {error}") from None


def _shape(row: Mapping[str, Any], where: str) -> str:
    for shape, keys in _SHAPES.items():
        if any(key in row for key in keys):
            return shape
    raise UsageError(f"{where}: keys {', '.join(map(str, row)) or 'none'}; needed: prompt, messages or conversations")


def _text(row: Mapping[str, Any], where: str) -> Prompt:
    text = row.get("prompt", row.get("text"))
    if not isinstance(text, str) or not text:
        raise UsageError(f"{where}: prompt must be a text that is not empty")
    return Prompt(text=text)


def _messages(row: Mapping[str, Any], shape: str, where: str) -> list[Message]:
    if shape == "openai":
        body = row.get("body", row)
        items, role_key, content_key = body.get("messages") if isinstance(body, Mapping) else None, "role", "content"
    else:
        items, role_key, content_key = row.get("conversations"), "from", "value"
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise UsageError(f"{where}: {shape} rows hold a list of message objects")
    messages = []
    for item in items:
        role, content = item.get(role_key), _content(item.get(content_key))
        if shape == "sharegpt":
            role = _SHAREGPT_ROLES.get(str(role))
        if not isinstance(role, str) or content is None:
            raise UsageError(f"{where}: a message needs {role_key} and a text in {content_key}")
        messages.append(Message(role, content))
    return messages


def _content(value: object) -> str | None:
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, Mapping) and part.get("type") == "text"]
        texts = [part for part in parts if isinstance(part, str)]
        return "".join(texts) if texts and len(texts) == len(value) else None
    return value if isinstance(value, str) else None


def _turns(messages: list[Message]) -> Iterator[Prompt]:
    for index, message in enumerate(messages):
        if message.role == "user":
            yield Prompt(messages=tuple(messages[: index + 1]))
