from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.cachesim.chain import extend_keys, namespace_seed, page_keys
from hicache_bench.errors import UsageError

IDS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1)), max_size=40)


def by_hand(ids, page_size, seed=b""):
    keys = []
    for start in range(0, len(ids) - page_size + 1, page_size):
        page = ids[start : start + page_size]
        wide = max(page) >= 2**32
        data = b"\xff" + struct.pack(f"<{page_size}Q", *page) if wide else struct.pack(f"<{page_size}I", *page)
        seed = hashlib.sha256(seed + data).digest()
        keys.append(seed)
    return keys


@given(IDS, st.integers(1, 8))
def test_equals_the_definition(ids, page_size):
    assert page_keys(ids, page_size) == by_hand(ids, page_size)


@given(IDS, st.integers(1, 8), st.integers(0, 40), st.sampled_from([None, b"s" * 32]))
def test_extending_equals_hashing_everything(ids, page_size, known, seed):
    whole = page_keys(ids, page_size, seed)
    assert extend_keys(whole[:known], ids, page_size, seed) == whole


def test_known_digests():
    assert page_keys([1, 2], 2)[0].hex() == hashlib.sha256(bytes([1, 0, 0, 0, 2, 0, 0, 0])).hexdigest()
    assert page_keys([1], 2) == page_keys([], 1) == []


def test_a_page_names_its_whole_prefix():
    assert page_keys([1, 2, 3, 4], 2)[1] != page_keys([9, 2, 3, 4], 2)[1]


def test_namespaces_are_apart():
    seeds = {namespace_seed(*names) for names in [("a",), ("b",), (None, "a"), ("a", "a"), ("", None), (None, "")]}
    assert len(seeds) == 6
    assert namespace_seed() is None
    tag = b"sglang-cache-namespace-v1"
    assert namespace_seed("ab") == hashlib.sha256(tag + b"\1\2\0\0\0\0\0\0\0ab\0").digest()


@pytest.mark.parametrize("ids", [[-1], [2**63], ["x"], [None]])
def test_bad_ids_are_refused(ids):
    with pytest.raises(UsageError, match="0 to"):
        page_keys(ids, 1)


def test_bad_page_size_is_refused():
    with pytest.raises(UsageError, match="page size 0"):
        page_keys([1], 0)
