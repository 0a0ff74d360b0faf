"""Whole files, written so that a reader sees the old one or the new one and never a half."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from hicache_bench.errors import StoreError
from hicache_bench.units import format_bytes


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a hidden neighbour, fsync, rename over `path`, fsync the folder.

    Raises StoreError naming the path and the bytes needed; the neighbour is removed and an earlier file
    of that name stays as it was.
    """
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as exc:
        with suppress(OSError):
            partial.unlink()
        raise StoreError(_why(exc, path, len(data))) from exc


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(exc: OSError, path: Path, need: int) -> str:
    if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write {path}: {exc.strerror or exc}"
    try:
        left = os.statvfs(path.parent)
        free = format_bytes(left.f_bavail * left.f_frsize)
    except OSError:
        free = "an unknown amount"
    return f"disk full: {path} needs {format_bytes(need)}, {free} free; what was written before it is readable"
