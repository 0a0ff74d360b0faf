"""The storage tier: which keys it has, least recently used out first."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_bench.cachesim.node import PageKey


class Storage:
    """Keys of stored pages (and of the windows and states stored with them); `capacity_pages` None: unlimited.

    Only full-attention pages count against the capacity. A key's presence is all that matters: content is the key.
    """

    def __init__(self, capacity_pages: int | None) -> None:
        self.capacity_pages = capacity_pages
        self._pages: dict[PageKey, None] = {}
        self.windows: set[PageKey] = set()
        self.states: set[PageKey] = set()

    def __len__(self) -> int:
        return len(self._pages)

    def put(self, keys: Sequence[PageKey]) -> int:
        """Store pages; returns how many are new. Pages stored already are only refreshed."""
        pages = self._pages
        before = len(pages)
        if self.capacity_pages is None:
            pages.update(dict.fromkeys(keys))
            return len(pages) - before
        added = 0
        for key in keys:
            if key in pages:
                del pages[key]
            else:
                added += 1
            pages[key] = None
        for _ in range(max(len(pages) - self.capacity_pages, 0)):
            oldest = next(iter(pages))
            del pages[oldest]
            self.windows.discard(oldest)
            self.states.discard(oldest)
        return added

    def prefix(self, keys: Sequence[PageKey], start: int, end: int) -> int:
        """How many pages of keys[start:end] are stored without a gap."""
        pages = self._pages
        for index in range(start, end):
            if keys[index] not in pages:
                return index - start
        return end - start

    def touch(self, keys: Sequence[PageKey]) -> None:
        """Pages have been read; matters only with a capacity."""
        if self.capacity_pages is not None:
            self.put([key for key in keys if key in self._pages])

    def clear(self) -> None:
        self._pages.clear()
        self.windows.clear()
        self.states.clear()
