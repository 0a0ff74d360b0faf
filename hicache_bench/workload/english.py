"""Endless English by the key: word tables, sentence patterns and an extendable hash that chooses.

SHAKE-128 is an extendable-output function: a longer output starts with the shorter one, and it is the same in
every Python version, process and machine. So the text of a key is stable, unbounded and never repeats.
Models that decode greedily answer steadily on language, unlike on random ids (near ties at every token).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from hicache_bench.workload import words

_CLASSES: dict[str, tuple[str, ...]] = {
    "N": tuple(words.NAMES),
    "S": tuple(words.SURNAMES),
    "a": tuple(words.ADJECTIVES),
    "n": tuple(words.NOUNS),
    "v": tuple(words.VERBS),
    "d": tuple(words.ADVERBS),
    "P": tuple(words.PLACES),
    "t": tuple(words.TIMES),
    "j": tuple(words.JOINERS),
    "r": tuple(words.ARTICLES),
    "p": tuple(words.PREPOSITIONS),
    "A": tuple(map(str.capitalize, words.ADJECTIVES)),
    "D": tuple(map(str.capitalize, words.ADVERBS)),
    "T": tuple(map(str.capitalize, words.TIMES)),
    "E": tuple(mark for mark in words.MARKS if mark in ".!?"),
}

# One letter a class, anything else a literal word. The first words of every pattern are open classes, because
# they carry the choices (7 to 8 bits each) that make first pages differ.
_PATTERNS = (
    "N S v n d , j N S v r a n p P .",
    "N S of P , r a n , v a n d p r n .",
    "N S v r a n from r n p P , j d v r a n .",
    "N S , who had v a n p P , d v r a n ; N S v r n .",
    "N S said that r a n p P was a , j N v r n t .",
    "A n p P d v N S , j r a n v r a n E",
    "A n with a n v N S d ; r n of P v r a n .",
    "D r a n of N S v r n p r a n , j P v r n .",
    "T N S v r n , r n , j r a n with a n by P .",
    "A n from P v N S ; a n , which N had v d , v r n .",
    "N of P v r a n to N S , j N S d v r a n p r n .",
    "A n v a n p P : N S v r n d , j N v r a n .",
)
# The head sentence has no literals before its ninth word: some 60 bits of choice in the first 16 tokens.
_HEAD = "N S v a n d p P t r a n , j a n v N S ."

SLOTS = 24
"""Choices taken from the hash for one sentence, the pattern first."""


def _vocabulary() -> tuple[tuple[str, ...], dict[str, int]]:
    found: dict[str, int] = {}
    for table in (*_CLASSES.values(), tuple(words.FUNCTION_WORDS), words.MARKS):
        for word in table:
            found.setdefault(word if word in words.MARKS else f" {word}", len(found))
    return tuple(found), found


WORDS, _ID = _vocabulary()
"""Every string a prompt is joined from: a word with its leading space, or a mark. Tokenize these once."""

EMPTY = len(WORDS)
"""The id of "no word here" in the matrices of `word_matrix`."""


def _tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.intp]]:
    """For each pattern and slot: how many choices, where they begin in the pool, and the pool of word ids."""
    pool: list[int] = []
    begin: dict[str, int] = {}
    for name, table in _CLASSES.items():
        begin[name] = len(pool)
        pool += [_ID[word if word in words.MARKS else f" {word}"] for word in table]
    sizes = np.ones((len(_PATTERNS) + 1, SLOTS - 1), dtype=np.uint32)
    starts = np.zeros_like(sizes)
    empty_at = len(pool)
    pool.append(EMPTY)
    starts[:] = empty_at
    for row, pattern in enumerate((*_PATTERNS, _HEAD)):
        for column, slot in enumerate(pattern.split()):
            if slot in _CLASSES:
                sizes[row, column], starts[row, column] = len(_CLASSES[slot]), begin[slot]
            else:
                starts[row, column] = len(pool)
                pool.append(_ID[slot if slot in words.MARKS else f" {slot}"])
    return sizes, starts, np.array(pool, dtype=np.intp)


_SIZES, _STARTS, _POOL = _tables()


def word_matrix(source: bytes, sentences: int) -> NDArray[np.intp]:
    """The first `sentences` sentences of the text named by `source`: word ids, (sentences, SLOTS - 1),
    read row by row; EMPTY entries are no words. More sentences never change the earlier ones."""
    drawn = np.frombuffer(hashlib.shake_128(source).digest(sentences * SLOTS * 2), dtype="<u2")
    choices = drawn.reshape(sentences, SLOTS).astype(np.uint32)
    pattern = (choices[:, 0] * np.uint32(len(_PATTERNS))) >> np.uint32(16)
    pattern[:1] = len(_PATTERNS)
    picked = ((choices[:, 1:] * _SIZES[pattern]) >> np.uint32(16)) + _STARTS[pattern]
    ids: NDArray[np.intp] = _POOL[picked]
    return ids
