"""From a turn of the plan to the bytes that are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hicache_bench.errors import UsageError
from hicache_bench.records import Message, Prompt, Session, WireRequest
from hicache_bench.wire.generate import build_generate
from hicache_bench.wire.openai import build_chat, build_completions
from hicache_bench.workload.tokens import TokenSpace

Api = Literal["generate", "completions", "chat"]
DpRouting = Literal["none", "round_robin", "sticky"]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Everything about a request that the workload does not vary from turn to turn."""

    api: Api = "generate"
    streamed: bool = True
    prompt_format: Literal["ids", "text"] = "ids"
    ignore_eos: bool = True
    temperature: float = 0.0
    model: str = "default"
    incremental: bool = False
    timeout_ns: int | None = None
    dp_routing: DpRouting | int = "none"
    dp_size: int = 1
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """The conversation so far of one session, in the form its API needs. Empty before the first turn."""

    ids: NDArray[np.uint32] | None = None
    text: str = ""
    messages: tuple[Message, ...] = ()


class RequestBuilder:
    """Builds wire requests; the only place where keys become tokens or text."""

    def __init__(self, space: TokenSpace, options: RequestOptions) -> None:
        self.options = options
        self._space = space
        self._round_robin = 0
        self._build = _BUILDERS[options.api]

    def dp_rank(self, session: Session) -> int | None:
        """The data-parallel rank to ask for (`routed_dp_rank`), or None to leave it to the server."""
        routing, size = self.options.dp_routing, self.options.dp_size
        if routing == "none":
            return None
        if isinstance(routing, int):
            return routing
        if routing == "sticky":
            return _stable_hash(session.affinity or f"{session.stream}/{session.id}") % size
        rank = self._round_robin % size
        self._round_robin += 1
        return rank

    def context(self, prompt: Prompt, history: History | None) -> History:
        """The whole context that a request with this prompt sends, after `history` when it is live."""
        before = history or History()
        if self.options.api == "chat":
            return History(messages=(*before.messages, *self._messages(prompt)))
        if prompt.messages:
            raise UsageError("chat messages need the chat API; run with --api chat")
        if self.options.prompt_format == "text" or prompt.text is not None:
            return History(text=before.text + self._text(prompt))
        ids = self._space.prompt_ids(prompt)
        return History(ids=ids if before.ids is None else np.concatenate((before.ids, ids)))

    def build(self, context: History, output_tokens: int, rid: str, dp_rank: int | None) -> WireRequest:
        return self._build(self.options, context, output_tokens, rid, dp_rank)

    def extend(self, context: History, output_ids: Sequence[int] | None, text: str) -> History:
        """The context plus what the server answered: the history of a live turn."""
        if self.options.api == "chat":
            return History(messages=(*context.messages, Message("assistant", text)))
        if context.ids is None:
            return History(text=context.text + text)
        if output_ids is None:
            raise UsageError(
                "a live history in token ids needs the native API, which answers with ids; "
                'use api "generate", or prompts.format = "text"'
            )
        return History(ids=np.concatenate((context.ids, np.asarray(output_ids, dtype=np.uint32))))

    def _text(self, prompt: Prompt) -> str:
        return prompt.text if prompt.text is not None else self._space.text(prompt)

    def _messages(self, prompt: Prompt) -> tuple[Message, ...]:
        return prompt.messages or (Message("user", self._text(prompt)),)


_Builder = Callable[[RequestOptions, History, int, str, "int | None"], WireRequest]


def _generate(options: RequestOptions, context: History, tokens: int, rid: str, rank: int | None) -> WireRequest:
    return build_generate(
        input_ids=context.ids,
        text=None if context.ids is not None else context.text,
        max_new_tokens=tokens,
        streamed=options.streamed,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        rid=rid,
        routed_dp_rank=rank,
        extra_body=options.extra_body,
        incremental=options.incremental,
    )


def _completions(options: RequestOptions, context: History, tokens: int, rid: str, rank: int | None) -> WireRequest:
    return build_completions(
        model=options.model,
        input_ids=context.ids,
        text=None if context.ids is not None else context.text,
        max_tokens=tokens,
        streamed=options.streamed,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        rid=rid,
        routed_dp_rank=rank,
        extra_body=options.extra_body,
    )


def _chat(options: RequestOptions, context: History, tokens: int, rid: str, rank: int | None) -> WireRequest:
    return build_chat(
        model=options.model,
        messages=context.messages,
        max_tokens=tokens,
        streamed=options.streamed,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        rid=rid,
        routed_dp_rank=rank,
        extra_body=options.extra_body,
    )


_BUILDERS: dict[str, _Builder] = {"generate": _generate, "completions": _completions, "chat": _chat}


def _stable_hash(text: str) -> int:
    value = 0xCBF29CE484222325  # FNV-1a: equal in every process, unlike hash()
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
