"""Every invariant of a cache, checked from scratch; for tests."""

from __future__ import annotations

from hicache_bench.cachesim.core import Core
from hicache_bench.cachesim.node import Node, is_device_leaf
from hicache_bench.cachesim.pages import IllegalTransition, PageState


def check_core(core: Core) -> None:
    """Raise IllegalTransition naming the node and the rule when anything is inconsistent."""
    for pool in (core.device, core.host):
        pool.check()
    for tier in (core.windows, core.states):
        if tier is not None:
            tier.device_pool.check()
            tier.host_pool.check()
    nodes = _nodes(core.tree.root)
    if len(nodes) != core.tree.n_nodes:
        raise IllegalTransition(f"{len(nodes)} nodes in the tree, {core.tree.n_nodes} counted")
    for node in nodes:
        _check_node(core, node)
    evictable = sum(len(node.keys) for node in nodes if node.device is not None and not node.locks)
    if evictable != core.tree.evictable_pages:
        raise IllegalTransition(f"{evictable} evictable pages, {core.tree.evictable_pages} counted")
    in_tree = sum(len(node.keys) for node in nodes if node.device is not None)
    own = sum(len(holding) for holding in core.device.active.values() if not isinstance(holding.owner, int))
    if in_tree + own != core.device.used_pages:
        raise IllegalTransition(f"device: {in_tree} pages in the tree, {own} of requests, not {core.device.used_pages}")
    if not core.live_requests and not core.in_flight:
        _check_idle(core, nodes, own)


def _nodes(root: Node) -> list[Node]:
    nodes = list(root.children.values())
    for node in nodes:
        nodes += node.children.values()
    return nodes


def _check_node(core: Core, node: Node) -> None:
    parent = node.parent
    assert parent is not None
    size = len(node.keys)
    rules = {
        "has pages": size > 0,
        "is its parent's child": parent.children.get(node.keys[0]) is node if node.keys else False,
        "starts where its parent ends": node.start == parent.end,
        "device pages match its keys": node.device is None or (len(node.device) == size
                                                               and core.device.active.get(node.id) is node.device),
        "host pages match its keys": node.host is None or len(node.host) == size,
        "device set is prefix-closed": node.device is None or parent.parent is None or parent.device is not None,
        "host set is prefix-closed": core.tree.write_back or core.backups_failed or node.host is None
        or parent.parent is None or parent.host is not None,
        "is held somewhere": node.device is not None or node.host is not None,
        "device children are counted": node.device_children == sum(
            child.device is not None for child in node.children.values()),
        "locks are not negative": node.locks >= 0 and node.host_locks >= 0,
        "window is as long as the node": node.window is None or all(
            part is None or len(part) == size for part in (node.window.device, node.window.host)),
        "windows and states need full attention": node.device is not None or all(
            slot is None or slot.device is None for slot in (node.window, node.state)),
        "a pending backup reads a device copy": node.pending is None or (node.device is not None and node.locks > 0)
        or node.pending.blocking,
        "device leaves are known": not is_device_leaf(node) or node.id in core.tree.victims,
    }
    for rule, holds in rules.items():
        if not holds:
            raise IllegalTransition(f"{node!r}: broken rule: {rule}")


def _check_idle(core: Core, nodes: list[Node], own: int) -> None:
    pools = [core.device, core.host]
    for tier in (core.windows, core.states):
        if tier is not None:
            pools += [tier.device_pool, tier.host_pool]
    if own or any(node.locks or node.host_locks or node.pending or node.loading or node.busy for node in nodes):
        raise IllegalTransition("idle, but something is still held or locked")
    for pool in pools:
        if any(holding.state is not PageState.READABLE for holding in pool.active.values()):
            raise IllegalTransition(f"{pool.name}: idle, but a page is not readable")
    if core.prefetch_pages:
        raise IllegalTransition(f"idle, but {core.prefetch_pages} prefetched pages are expected")
