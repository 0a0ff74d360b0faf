"""Locust as a second load engine: same plan, same wire code, same rows, same run directory.

The child processes of this package import it too, and importing Locust patches a whole process; so the user
class is only loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_bench.locust_user.user import HiCacheUser

__all__ = ["HiCacheUser"]


def __getattr__(name: str) -> Any:
    if name == "HiCacheUser":
        from hicache_bench.locust_user.user import HiCacheUser

        return HiCacheUser
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
