"""A toy tokenizer that loses nothing: known words, letter pairs, bytes, and a spelling for every other id."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from string import ascii_lowercase

from hicache_bench.workload.english import WORDS

_BYTES = 256
_PIECES: tuple[str, ...] = tuple(dict.fromkeys(
    [*(word for word in WORDS if len(word) > 1), *map("".join, product(ascii_lowercase, repeat=2))]))
_IDS = {piece: _BYTES + i for i, piece in enumerate(_PIECES)}

VOCAB_SIZE = _BYTES + len(_PIECES)
OUTPUT_IDS: tuple[int, ...] = tuple(_IDS[word] for word in _PIECES if re.fullmatch(" [A-Za-z]+", word))
"""Ids an answer is made of: whole words with a leading blank, so that text read back gives the same ids."""

_UNIT = re.compile(r" ?[A-Za-z]+|⟨[0-9]{1,10}⟩|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """Token ids of a text; `decode(encode(text)) == text` for every text (lone surrogates become `?`)."""
    ids: list[int] = []
    for unit in _UNIT.findall(text):
        known = _IDS.get(unit)
        if known is not None:
            ids.append(known)
        else:
            ids += _spell(unit)
    return ids


def decode(ids: list[int]) -> str:
    """The text of token ids; an id outside the vocabulary is written `⟨id⟩`, which encodes to that id."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


def token_bytes(token: int) -> bytes:
    """The bytes that one id stands for."""
    if 0 <= token < _BYTES:
        return bytes((token,))
    return (_PIECES[token - _BYTES] if _BYTES <= token < VOCAB_SIZE else f"⟨{token}⟩").encode()


@lru_cache(maxsize=65536)
def _spell(unit: str) -> tuple[int, ...]:
    if unit[0] == "⟨" and len(unit) > 1:
        token = int(unit[1:-1])
        if VOCAB_SIZE <= token < 2**32 and unit == f"⟨{token}⟩":
            return (token,)
    ids: list[int] = []
    at = 0
    while at < len(unit):
        pair = _IDS.get(unit[at : at + 2])
        if pair is None:
            ids += unit[at].encode("utf-8", "replace")
            at += 1
        else:
            ids.append(pair)
            at += 2
    return tuple(ids)
