"""Random request histories for the cache: pure functions of a seed and a shape, no server involved.

A prompt is a list of `(key, n_tokens)`: the first `n_tokens` of the token stream `key`. A key `@7` is no stream but
the output of operation 7 of the same history (a conversation that goes on). Equal keys share content, so prompts
form a tree: cut a known prompt anywhere and go on with a new key, and two branches share exactly that prefix.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

FIRST_ID = 10
LAST_ID = 3999
_IDS_PER_BLOCK = 16
_L3_THRESHOLD_TOKENS = 256  # below this SGLang does not ask L3 (prefetch_threshold)
_RESERVED_TOKENS = 8  # the server refuses a prompt within six tokens of its pool (max_req_input_len)

Segments: TypeAlias = tuple[tuple[str, int], ...]
Outputs: TypeAlias = Mapping[int, Sequence[int]]
"""Operation index → the token ids it answered."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Asks next to each other with an equal `group` are in flight at the same time."""

    prompt: Segments
    max_new: int
    extra_key: str | None = None
    salt: str | None = None
    priority: int | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """`flush`: empty device and host. `clear`: empty L3. `restart`: a new server process, same L3 folder."""

    do: Literal["flush", "clear", "restart"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a history has to suit.

    `longest_tokens` bounds ordinary prompts; with `near_pool` a few ask for nearly the whole device pool (the pool
    less two pages and the output, above which a request would wait for ever). `group` > 1 sends that many at a time.
    """

    page_tokens: int
    pool_tokens: int
    longest_tokens: int
    n_ops: int
    storage: bool
    near_pool: bool = True
    restart: bool = False
    priorities: bool = False
    group: int = 1


def stream(key: str, n_tokens: int) -> list[int]:
    """The first `n_tokens` ids of the endless stream `key`, each in FIRST_ID..LAST_ID: SHA-256 of `key/block` read as
    16 big-endian 16-bit numbers."""
    ids: list[int] = []
    block = 0
    while len(ids) < n_tokens:
        digest = hashlib.sha256(f"{key}/{block}".encode()).digest()
        ids += [FIRST_ID + value % (LAST_ID - FIRST_ID + 1) for value in struct.unpack(f">{_IDS_PER_BLOCK}H", digest)]
        block += 1
    return ids[:n_tokens]


def token_ids(prompt: Sequence[Sequence[str | int]] | Segments, outputs: Outputs) -> list[int]:
    """The ids of a prompt; `outputs` holds the answers that its `@` segments name. A short answer is an error."""
    ids: list[int] = []
    for key, n_tokens in prompt:
        key, n_tokens = str(key), int(n_tokens)
        part = list(outputs[int(key[1:])][:n_tokens]) if key.startswith("@") else stream(key, n_tokens)
        if len(part) != n_tokens:
            raise ValueError(f"segment {key} has {len(part)} tokens, {n_tokens} wanted")
        ids += part
    return ids


def cut(prompt: Segments, n_tokens: int) -> Segments:
    """The first `n_tokens` of a prompt."""
    kept: list[tuple[str, int]] = []
    for key, length in prompt:
        if n_tokens <= 0:
            break
        kept.append((key, min(length, n_tokens)))
        n_tokens -= length
    return tuple(kept)


def length(prompt: Segments) -> int:
    return sum(n_tokens for _, n_tokens in prompt)


def history(seed: int, shape: Shape) -> tuple[Ask | Act, ...]:
    """The operations of one history, a pure function of its arguments."""
    return tuple(_Writer(seed, shape).operations())


class _Writer:
    """Writes one history; keeps what was asked so far, because most requests build on an earlier one."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.seed = seed
        self.shape = shape
        self.rng = random.Random(seed)
        self.asked: list[tuple[int, Ask]] = []
        self.n_keys = 0

    def operations(self) -> Iterator[Ask | Act]:
        op = 0
        restart = self.shape.restart
        while op < self.shape.n_ops:
            if restart and op >= self.shape.n_ops // 2:
                restart = False
                yield Act("restart")
                op += 1
            for done in self._acts() if op > 5 else ():
                yield done
                op += 1
            asks = [self._ask(op if self.shape.group > 1 else None) for _ in range(self.shape.group)]
            for ask in asks:
                yield ask
                self.asked.append((op, ask))
                op += 1

    def _acts(self) -> tuple[Act, ...]:
        draw = self.rng.random()
        if draw < 0.035:
            return (Act("flush"),)
        if self.shape.storage and draw < 0.055:
            return (Act("flush"), Act("clear"))
        if self.shape.storage and draw < 0.065:
            return (Act("clear"),)
        return ()

    def _ask(self, group: int | None) -> Ask:
        max_new = self.rng.choice((1, 1, 2, 3, 4, 6, 8, 12))
        limit = self.shape.longest_tokens
        prompt, extra_key, salt = self._prompt()
        if self.shape.near_pool and self.rng.random() < 0.03:
            limit = self.shape.pool_tokens - max(2 * self.shape.page_tokens, _RESERVED_TOKENS) - max_new
            prompt = (*prompt, self._fresh(limit))
        priority = self.rng.choice((None, 0, 1, 2, 5)) if self.shape.priorities else None
        return Ask(cut(prompt, limit), max_new, extra_key, salt, priority, group)

    def _prompt(self) -> tuple[Segments, str | None, str | None]:
        if not self.asked or self.rng.random() < 0.15:
            return (self._fresh(self._length()),), *self._namespace(0.1)
        op, base = self._earlier()
        space = (base.extra_key, base.salt) if self.rng.random() < 0.92 else self._namespace(0.7)
        return self._build_on(op, base), *space

    def _build_on(self, op: int, base: Ask) -> Segments:
        draw = self.rng.random()
        old = base.prompt
        if draw < 0.30:
            return old
        if draw < 0.52:
            return (*old, (f"@{op}", base.max_new), self._fresh(self._tail(length(old) + base.max_new)))
        if draw < 0.60:
            return (*old, (f"@{op}", base.max_new))
        if draw < 0.72:
            return (*old, self._fresh(self._tail(length(old))))
        kept = cut(old, self._near_page(self.rng.randint(1, length(old)), length(old)))
        return kept if draw < 0.80 else (*kept, self._fresh(self._tail(length(kept))))

    def _earlier(self) -> tuple[int, Ask]:
        """An earlier request: one of the last six, or any."""
        recent = self.asked[-6:] if self.rng.random() < 0.35 else self.asked
        return self.rng.choice(recent)

    def _namespace(self, chance: float) -> tuple[str | None, str | None]:
        if self.rng.random() >= chance:
            return None, None
        return self.rng.choice((("x", None), ("y", None), (None, "s"), (None, "t"), ("x", "s")))

    def _fresh(self, n_tokens: int) -> tuple[str, int]:
        self.n_keys += 1
        return f"{self.seed}.{self.n_keys}", n_tokens

    def _length(self) -> int:
        longest = self.shape.longest_tokens
        draw = self.rng.random()
        if draw < 0.25:
            n_tokens = self.rng.randint(1, _L3_THRESHOLD_TOKENS - 1)
        elif draw < 0.8:
            n_tokens = self.rng.randint(_L3_THRESHOLD_TOKENS, max(_L3_THRESHOLD_TOKENS, longest * 2 // 3))
        else:
            n_tokens = self.rng.randint(min(_L3_THRESHOLD_TOKENS, longest), longest)
        return self._near_page(n_tokens, longest)

    def _tail(self, before: int) -> int:
        """How much to append to `before` tokens, so that the sum often lies on or beside a page edge."""
        added = self.rng.choice((self.rng.randint(1, 40), self.rng.randint(40, 400), self._length()))
        return max(1, self._near_page(before + added, before + added) - before)

    def _near_page(self, n_tokens: int, limit: int) -> int:
        page = self.shape.page_tokens
        draw = self.rng.random()
        if draw < 0.35:
            n_tokens -= n_tokens % page
        elif draw < 0.5:
            n_tokens += 1 - n_tokens % page
        elif draw < 0.6:
            n_tokens += page - 1 - n_tokens % page
        return max(1, min(n_tokens, limit))
