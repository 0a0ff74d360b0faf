"""A three-tier prefix cache of whole pages, least recently used first out.

Plain stand-in until the page-accurate one: tiers are inclusive (what enters the device is written through),
eviction is by page instead of by tree node, running requests lock nothing. The match, insert and attribution
rules are SGLang's (schedule_batch.py `_compute_max_prefix_len`, `split_cached_prefix_by_tier`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_PageKey = bytes
_Pages = OrderedDict[_PageKey, None]


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens of a prompt's cached prefix by the tier that held them when it was looked up."""

    device: int = 0
    host: int = 0
    storage: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.storage


@dataclass(slots=True)
class CacheCounters:
    """Running totals in tokens: device→host, host→storage, host→device, storage→host, off the device."""

    backup: int = 0
    storage_backup: int = 0
    load_back: int = 0
    prefetched: int = 0
    evicted: int = 0


class PrefixCache:
    """Pages keyed by a hash chain over their token ids; each tier is one LRU of keys.

    `host_tokens` or `storage_tokens` None: no such tier. A chain is always touched from its tail to its
    head, so a page's ancestors outlive it and every tier holds whole prefixes. Memory is bounded by the
    resident pages.
    """

    def __init__(self, page_size: int, device_tokens: int, host_tokens: int | None = None,
                 storage_tokens: int | None = None, prefetch_threshold: int = 256) -> None:
        self.page_size = page_size
        self.prefetch_threshold = prefetch_threshold
        self.counters = CacheCounters()
        self._device: _Pages = OrderedDict()
        self._host: _Pages = OrderedDict()
        self._storage: _Pages = OrderedDict()
        self._device_pages = device_tokens // page_size
        self._host_pages = (host_tokens or 0) // page_size
        self._storage_pages = (storage_tokens or 0) // page_size

    @property
    def device_used_tokens(self) -> int:
        return len(self._device) * self.page_size

    @property
    def host_used_tokens(self) -> int:
        return len(self._host) * self.page_size

    @property
    def storage_used_tokens(self) -> int:
        return len(self._storage) * self.page_size

    def match(self, ids: Sequence[int], namespace: bytes = b"", limit_tokens: int | None = None) -> Match:
        """The cached prefix of a prompt, brought to the device.

        At most all tokens but the last can match (and `limit_tokens`), floored to a page. A storage hit
        under `prefetch_threshold` tokens is not read.
        """
        longest = len(ids) - 1 if limit_tokens is None else min(len(ids) - 1, limit_tokens)
        keys = self._keys(ids, max(longest, 0) // self.page_size, namespace)
        device, host, storage = self._split(keys)
        if storage * self.page_size < self.prefetch_threshold:
            storage = 0
        size = self.page_size
        self.counters.load_back += (host + storage) * size
        self.counters.prefetched += storage * size
        found = keys[: device + host + storage]
        if self._host_pages and storage:
            self._put(self._host, found, self._host_pages)
        self._enter_device(found)
        return Match(device * size, host * size, storage * size)

    def insert(self, ids: Sequence[int], n_tokens: int, namespace: bytes = b"") -> None:
        """Make the whole pages of the first `n_tokens` tokens resident, written through to every tier.

        After a prefill that is the prompt; after the answer it is prompt + output - 1, for the last sampled
        token has no KV.
        """
        keys = self._keys(ids, min(n_tokens, len(ids)) // self.page_size, namespace)
        self._enter_device(keys)
        if self._host_pages:
            self.counters.backup += self._put(self._host, keys, self._host_pages)[0] * self.page_size
        if self._storage_pages:
            self.counters.storage_backup += self._put(self._storage, keys, self._storage_pages)[0] * self.page_size

    def flush(self) -> None:
        """Empty device and host; storage stays."""
        self._device.clear()
        self._host.clear()

    def clear_storage(self) -> None:
        """Empty storage; device and host stay."""
        self._storage.clear()

    def _keys(self, ids: Sequence[int], pages: int, namespace: bytes) -> list[_PageKey]:
        data = np.asarray(ids[: pages * self.page_size], dtype=np.uint32).tobytes()
        step = 4 * self.page_size
        keys, key = [], namespace
        for start in range(0, pages * step, step):
            key = hashlib.blake2b(data[start : start + step], digest_size=16, key=key).digest()
            keys.append(key)
        return keys

    def _split(self, keys: list[_PageKey]) -> tuple[int, int, int]:
        counts = [0, 0, 0]
        tiers = (self._device, self._host, self._storage)
        level = 0
        for key in keys:
            while level < len(tiers) and key not in tiers[level]:
                level += 1
            if level == len(tiers):
                break
            counts[level] += 1
        return counts[0], counts[1], counts[2]

    def _enter_device(self, keys: list[_PageKey]) -> None:
        self.counters.evicted += self._put(self._device, keys, self._device_pages)[1] * self.page_size

    @staticmethod
    def _put(tier: _Pages, keys: list[_PageKey], capacity: int) -> tuple[int, int]:
        """Touch or add a chain, tail first; (pages added, pages evicted)."""
        added = 0
        for key in reversed(keys[:capacity]):
            if key in tier:
                tier.move_to_end(key)
            else:
                tier[key] = None
                added += 1
        evicted = max(len(tier) - capacity, 0)
        for _ in range(evicted):
            tier.popitem(last=False)
        return added, evicted
