"""Answers in the shape of SGLang's OpenAI endpoints (srt/entrypoints/openai/serving_*.py, usage_processor.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hicache_bench.simserver.config import SimConfig
from hicache_bench.simserver.engine import Generation
from hicache_bench.simserver.native import tier_details, whole_text

_OBJECTS = {True: ("chat.completion", "chat.completion.chunk"), False: ("text_completion", "text_completion")}


class Shape:
    """Builds the answer and the stream chunks of one OpenAI request; `chat` picks the endpoint."""

    def __init__(self, config: SimConfig, body: Mapping[str, Any], rid: str, *, chat: bool) -> None:
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        self.chat = chat
        self.include_usage = options.get("include_usage") is True
        self._continuous = options.get("continuous_usage_stats") is True
        self._details = body.get("return_cached_tokens_details") is True
        self._config = config
        self._head = {"id": rid, "object": _OBJECTS[chat][1], "created": int(time.time()),
                      "model": body.get("model") or config.served_model_name}

    def answer(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """The body of a request without streaming."""
        ends = max(len(generation.output_ids) for generation in generations)
        body = {
            **self._head, "object": _OBJECTS[self.chat][0],
            "choices": [self._choice(i, generation) for i, generation in enumerate(generations)],
            "usage": self._usage(generations, None) | {"completion_tokens_details": None},
            "metadata": {"weight_version": "default",
                         "weight_versions": [{"version": "default", "start": 0, "end": ends}]},
        }
        return body | self._sglext(generations)

    def role_chunk(self, index: int) -> dict[str, Any]:
        """The first chunk of a chat stream; it carries no token."""
        return self._chunk(index, {"reasoning_content": None, "role": "assistant", "content": ""}, None)

    def text_chunk(self, index: int, text: str, generation: Generation, done: int, *,
                   last: bool) -> dict[str, Any]:
        """A chunk with text. In a completions stream the finish reason rides on the last one."""
        if self.chat:
            chunk = self._chunk(index, {"reasoning_content": None, "content": text}, None)
        else:
            chunk = self._chunk(index, text, "length" if last else None)
        if self._continuous and self.include_usage:
            chunk["usage"] = self._usage([generation], done) | {"completion_tokens_details": None}
        return chunk

    def finish_chunk(self, index: int) -> dict[str, Any]:
        """The chunk with the finish reason of a chat stream."""
        return self._chunk(index, {"reasoning_content": None}, "length")

    def closing_chunks(self, generations: Sequence[Generation]) -> list[dict[str, Any]]:
        """What follows the choices: tier details if asked for and any, then usage if asked for."""
        chunks = []
        if details := self._sglext(generations):
            chunks.append({**self._head, "choices": [], "usage": None, **details})
        if self.include_usage:
            usage = self._usage(generations, None)
            if self.chat:
                usage["completion_tokens_details"] = None
            chunks.append({**self._head, "choices": [], "usage": usage})
        return chunks

    def _choice(self, index: int, generation: Generation) -> dict[str, Any]:
        text = whole_text(generation)
        content: dict[str, Any] = {"text": text}
        if self.chat:
            content = {"message": {"role": "assistant", "content": text, "reasoning_content": None}}
        return {"index": index, **content, "logprobs": None, "finish_reason": "length", "matched_stop": None}

    def _chunk(self, index: int, content: Any, finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta" if self.chat else "text": content, "logprobs": None,
                  "finish_reason": finish, "matched_stop": None}
        return {**self._head, "choices": [choice], **({} if self.chat else {"usage": None})}

    def _usage(self, generations: Sequence[Generation], done: int | None) -> dict[str, Any]:
        prompt = sum(len(generation.job.ids) for generation in generations)
        output = sum(len(generation.output_ids) for generation in generations) if done is None else done
        cached = sum(generation.cached.cached for generation in generations)
        details = {"cached_tokens": cached} if self._config.enable_cache_report else None
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
                "prompt_tokens_details": details, "reasoning_tokens": 0}

    def _sglext(self, generations: Sequence[Generation]) -> dict[str, Any]:
        first = generations[0]
        wanted = self._details and not first.details_lost
        details = tier_details(self._config, first.cached) if wanted else None
        return {} if details is None else {"sglext": {"cached_tokens_details": details}}
