"""Token ids to page keys: the SHA-256 chain SGLang names storage pages with.

A page's key covers the page and everything before it, so equal keys mean equal prefixes. Source: SGLang 0.5.23
mem_cache/utils.py and cpp_utils/hash_binding.cpp (digest of the previous page, then the ids as little-endian
uint32, or a 0xff byte and uint64 words when an id of the page needs more).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from hicache_bench.errors import UsageError

_NAMESPACE_TAG = b"sglang-cache-namespace-v1"
_U32_MAX = 2**32 - 1
_ID_MAX = 2**63 - 1


def namespace_seed(extra_key: str | None = None, cache_salt: str | None = None) -> bytes | None:
    """The digest that stands before the first page of a namespaced request; None without a namespace."""
    if extra_key is None and cache_salt is None:
        return None
    digest = hashlib.sha256(_NAMESPACE_TAG)
    for part in (extra_key, cache_salt):
        if part is None:
            digest.update(b"\0")
        else:
            data = part.encode()
            digest.update(b"\1" + len(data).to_bytes(8, "little") + data)
    return digest.digest()


def page_keys(ids: Sequence[int], page_size: int, seed: bytes | None = None) -> list[bytes]:
    """Keys (32 bytes each) of the full pages of `ids`; a partial last page has no key.

    `seed` is a namespace seed, or the key of the page before `ids`.
    """
    if page_size < 1:
        raise UsageError(f"page size {page_size}: at least 1 token is needed")
    n_pages = len(ids) // page_size
    narrow, wide = _encode(ids[: n_pages * page_size])
    keys: list[bytes] = []
    key = seed or b""
    for page in range(n_pages):
        start, end = page * page_size, (page + 1) * page_size
        if wide is not None and int(wide[start:end].max()) > _U32_MAX:
            data = b"\xff" + wide[start:end].tobytes()
        else:
            data = narrow[4 * start : 4 * end]
        key = hashlib.sha256(key + data).digest()
        keys.append(key)
    return keys


def extend_keys(keys: Sequence[bytes], ids: Sequence[int], page_size: int, seed: bytes | None = None) -> list[bytes]:
    """`page_keys(ids, page_size, seed)` where `keys` are already known for the first pages: only the rest is hashed."""
    done = min(len(keys), len(ids) // page_size)
    before = keys[done - 1] if done else seed
    return [*keys[:done], *page_keys(ids[done * page_size :], page_size, before)]


def _encode(ids: Sequence[int]) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.uint64]] | None]:
    """The ids as uint32 bytes, and as uint64 when any of them is wider than 32 bits."""
    try:
        words = np.asarray(ids, dtype=np.int64)
    except (OverflowError, ValueError, TypeError) as error:
        raise UsageError(f"token ids must be whole numbers from 0 to {_ID_MAX}: {error}") from error
    if words.size == 0:
        return b"", None
    if int(words.min()) < 0:
        raise UsageError(f"token id {int(words.min())}: ids are whole numbers from 0 to {_ID_MAX}")
    wide = words.astype("<u8") if int(words.max()) > _U32_MAX else None
    return words.astype("<u4").tobytes(), wide
