"""Copies from host to storage: every node, once its host copy is readable, in batches (SGLang 0.5.23,
mem_cache/unified_radix_cache.py `write_backup_storage`)."""

from __future__ import annotations

from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node
from hicache_bench.cachesim.pages import PageState
from hicache_bench.cachesim.transfers import Transfer


def write(core: Core, node: Node) -> None:
    """Begin to write a node's pages, and the window and state it has on the host."""
    if node.host is None:
        return
    transfer = core.transfer("storage_write", len(node.keys), [node])
    transfer.keys = list(node.keys)
    transfer.with_window = node.window is not None and node.window.host is not None
    transfer.with_state = node.state is not None and node.state.host is not None
    transfer.anchor = node
    core.host.retain(node.host)
    lock = core.tree.lock_host(node)
    transfer.anchor_mark = None if lock is None else lock[1]


def advance(core: Core, transfer: Transfer, pages: int) -> None:
    """`pages` more pages have reached storage."""
    assert core.storage is not None
    done = transfer.keys[transfer.done_pages : transfer.done_pages + pages]
    transfer.done_pages += len(done)
    core.counters.storage_backup += len(done) * core.page_size
    core.storage.put(done)
    if transfer.with_window:
        core.storage.windows.update(done)
    if transfer.with_state and transfer.done_pages == transfer.pages:
        core.storage.states.add(transfer.keys[-1])


def end(core: Core, transfer: Transfer) -> None:
    """The host pages are no longer read, whether all of them were written or not."""
    for node in transfer.nodes:
        if node.host is not None and node.host.state is PageState.REFERENCED:
            core.host.release(node.host)
    core.end(transfer)
    if transfer.anchor is not None and transfer.anchor_mark is not None:
        core.tree.unlock_host((transfer.anchor, transfer.anchor_mark))
