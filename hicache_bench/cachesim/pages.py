"""Page numbers and who owns them: the state machine below every tier.

    FREE ─acquire→ COPYING ─commit→ READABLE ─retain→ REFERENCED(n) ─release→ READABLE ─evict→ FREE
                   COPYING ─abort→ FREE

Everything else is an `IllegalTransition`. An address assigned (COPYING) is not yet data readable; a page that an
outgoing copy reads (REFERENCED) cannot be evicted before the copy has ended. States belong to a `Holding`, the
pages of one owner, since the pages of one tree node always move together; a holding can be split, and pages can
be handed from a request's holding to a node's, always keeping one owner a page.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum

from hicache_bench.errors import BenchError, UsageError


class PageState(IntEnum):
    """State of all pages of one holding; FREE once it has given them back."""

    FREE = 0
    COPYING = 1
    READABLE = 2
    REFERENCED = 3


class IllegalTransition(BenchError):
    """A page was asked to do what its state does not allow: a bug of the caller."""


class PoolExhausted(BenchError):
    """Fewer free pages than asked for; nothing was taken. Whoever owns the tier may evict and ask again."""


class Holding:
    """The pages of one owner in one pool. `state` and `pages` are for reading; only the pool changes them."""

    __slots__ = ("owner", "pages", "readers", "state")

    def __init__(self, owner: Hashable, pages: list[int]) -> None:
        self.owner = owner
        self.pages = pages
        self.state = PageState.COPYING
        self.readers = 0

    def __len__(self) -> int:
        return len(self.pages)

    def __repr__(self) -> str:
        return f"Holding({self.owner!r}, {len(self.pages)} pages, {self.state.name}, {self.readers} readers)"


class PagePool:
    """`capacity` pages numbered from 0, each free or held by exactly one owner.

    The page freed last is given out first, then the lowest number never used: memory grows with the pages in
    use, not with the capacity.
    """

    __slots__ = ("_freed", "_fresh", "active", "capacity", "free_pages", "name")

    def __init__(self, capacity: int, name: str = "pages") -> None:
        if capacity < 0:
            raise UsageError(f"{name}: a pool of {capacity} pages; 0 or more are needed")
        self.name = name
        self.capacity = capacity
        self.free_pages = capacity
        self.active: dict[Hashable, Holding] = {}
        self._freed: list[int] = []
        self._fresh = 0

    @property
    def used_pages(self) -> int:
        return self.capacity - self.free_pages

    def acquire(self, owner: Hashable, n_pages: int = 1) -> Holding:
        """FREE → COPYING for `n_pages` pages; an owner that holds pages already gets its holding unchanged.

        Raises PoolExhausted (and takes nothing) when fewer pages are free.
        """
        held = self.active.get(owner)
        if held is not None:
            return held
        holding = Holding(owner, self._take(n_pages))
        self.active[owner] = holding
        return holding

    def grow(self, holding: Holding, n_pages: int) -> None:
        """Add `n_pages` more pages to a holding that is still being filled (a request's own pages)."""
        self._expect(holding, PageState.COPYING, "grow")
        holding.pages += self._take(n_pages)

    def commit(self, holding: Holding) -> None:
        """COPYING → READABLE: the data is there."""
        self._expect(holding, PageState.COPYING, "commit")
        holding.state = PageState.READABLE

    def abort(self, holding: Holding) -> None:
        """COPYING → FREE: the copy failed or its request was given up."""
        self._expect(holding, PageState.COPYING, "abort")
        self._give_back(holding)

    def retain(self, holding: Holding) -> None:
        """READABLE or REFERENCED(n) → REFERENCED(n + 1): an outgoing copy has begun to read."""
        if holding.state not in (PageState.READABLE, PageState.REFERENCED):
            raise IllegalTransition(f"{self.name}: retain of a {holding.state.name} holding; READABLE is needed")
        holding.readers += 1
        holding.state = PageState.REFERENCED

    def release(self, holding: Holding) -> None:
        """REFERENCED(n) → REFERENCED(n - 1) or READABLE: a copy has ended."""
        self._expect(holding, PageState.REFERENCED, "release")
        holding.readers -= 1
        if holding.readers == 0:
            holding.state = PageState.READABLE

    def evict(self, holding: Holding) -> None:
        """READABLE → FREE."""
        self._expect(holding, PageState.READABLE, "evict")
        self._give_back(holding)

    def split(self, holding: Holding, at: int, head_owner: Hashable) -> Holding:
        """Hand the first `at` pages to `head_owner`; both parts keep state and readers. Returns the head."""
        if holding.state is PageState.FREE or not 0 < at < len(holding.pages) or head_owner in self.active:
            raise IllegalTransition(f"{self.name}: cannot split {holding!r} at {at} for {head_owner!r}")
        head = Holding(head_owner, holding.pages[:at])
        head.state, head.readers = holding.state, holding.readers
        holding.pages = holding.pages[at:]
        self.active[head_owner] = head
        return head

    def hand_over(self, holding: Holding, start: int, end: int, new_owner: Hashable) -> Holding:
        """COPYING → READABLE for pages [start, end) of a holding, which become `new_owner`'s."""
        self._expect(holding, PageState.COPYING, "hand over")
        if not 0 <= start < end <= len(holding.pages) or new_owner in self.active:
            raise IllegalTransition(f"{self.name}: cannot hand pages {start}..{end} of {holding!r} to {new_owner!r}")
        taken = Holding(new_owner, holding.pages[start:end])
        taken.state = PageState.READABLE
        del holding.pages[start:end]
        self.active[new_owner] = taken
        return taken

    def give_back(self, holding: Holding, start: int, end: int) -> None:
        """COPYING → FREE for pages [start, end) of a holding (duplicates, a window left behind)."""
        self._expect(holding, PageState.COPYING, "give back")
        freed = holding.pages[start:end]
        self._freed += freed
        self.free_pages += len(freed)
        del holding.pages[start:end]

    def check(self) -> None:
        """Raise IllegalTransition unless every page is free or held once, and every holding is consistent."""
        owned = [page for holding in self.active.values() for page in holding.pages]
        pages = owned + self._freed
        if len(set(owned)) != len(owned) or len(set(pages)) != len(pages):
            raise IllegalTransition(f"{self.name}: a page has two owners, or is free and active")
        if self.free_pages != len(self._freed) + self.capacity - self._fresh:
            raise IllegalTransition(f"{self.name}: {self.free_pages} free pages counted")
        if sorted(pages) != list(range(self._fresh)) or self._fresh > self.capacity:
            raise IllegalTransition(f"{self.name}: a page is lost or has a number outside 0..{self.capacity - 1}")
        for owner, holding in self.active.items():
            if holding.owner is not owner and holding.owner != owner:
                raise IllegalTransition(f"{self.name}: {holding!r} is filed under {owner!r}")
            if (holding.readers > 0) != (holding.state is PageState.REFERENCED) or holding.state is PageState.FREE:
                raise IllegalTransition(f"{self.name}: {holding!r} is inconsistent")

    def _take(self, n_pages: int) -> list[int]:
        if n_pages < 0 or n_pages > self.free_pages:
            raise PoolExhausted(f"{self.name}: {n_pages} pages asked for, {self.free_pages} of {self.capacity} free")
        self.free_pages -= n_pages
        again = min(n_pages, len(self._freed))
        taken = self._freed[len(self._freed) - again :]
        del self._freed[len(self._freed) - again :]
        taken.reverse()
        if again < n_pages:
            start, self._fresh = self._fresh, self._fresh + n_pages - again
            taken += range(start, self._fresh)
        return taken

    def _give_back(self, holding: Holding) -> None:
        self._freed += holding.pages
        self.free_pages += len(holding.pages)
        holding.pages = []
        holding.state = PageState.FREE
        del self.active[holding.owner]

    def _expect(self, holding: Holding, state: PageState, verb: str) -> None:
        if holding.state is not state:
            raise IllegalTransition(f"{self.name}: {verb} of a {holding.state.name} holding; {state.name} is needed")
