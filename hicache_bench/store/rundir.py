"""Run directories: one folder a run, never overwritten, true at every moment, readable after any end.

`run.json` is rewritten whole whenever something is known: `schema_version`, `status`
(running, complete, aborted, failed), `name`, `workload`, `plan_digest`, `origin` (real, simulated), `loop`
(open, closed), `load`, `start_state`, `seed`, `nonce`, `argv`, `versions`, `host`, `clocks`
{monotonic_ns, wall_ns}, `started_wall_ns`, `ended_wall_ns`, `measure_start_ns`, `measure_end_ns`, `tags`,
`warnings` [{code, text, advice}], `server` {model, version, fingerprint}, `client` (loop health), `pid`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from hicache_bench.clock import NS_PER_S, now_ns
from hicache_bench.errors import StoreError, UsageError
from hicache_bench.scrub import scrub
from hicache_bench.store.files import write_atomic

RUN_SCHEMA_VERSION = 1
LATEST = "latest"

_NAME = re.compile(r"\d{8}T\d{6}Z-.+-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str) -> RunDir:
        """A new folder `<UTC time>-<name>-<4 hex>` under `root`; StoreError when it cannot be made."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        slug = re.sub(r"[^A-Za-z0-9_.]+", "_", name)[:80].strip("._") or "run"
        for _ in range(16):
            path = Path(root) / f"{stamp}-{slug}-{secrets.token_hex(2)}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as exc:
                raise StoreError(f"cannot make the run directory {path}: {exc.strerror or exc}") from exc
            return cls(path)
        raise StoreError(f"no free run directory name like {stamp}-{slug}-???? in {root}")

    @classmethod
    def open(cls, path: str | Path, root: Path = Path("results")) -> RunDir:
        """The run at `path`, or what `find_run(root, path)` finds."""
        return cls(Path(path)) if (Path(path) / "run.json").is_file() else find_run(root, str(path))

    @property
    def meta(self) -> dict[str, Any]:
        """`run.json`; StoreError when it is missing, damaged or of a newer schema."""
        meta = self.read_json("run.json")
        version = meta.get("schema_version") if isinstance(meta, dict) else None
        if not isinstance(meta, dict) or not isinstance(version, int):
            raise StoreError(f"{self.path / 'run.json'} is no run description (no schema_version)")
        if version > RUN_SCHEMA_VERSION:
            raise StoreError(f"{self.path} has schema {version}, this hicache-bench reads up to "
                             f"{RUN_SCHEMA_VERSION}: upgrade hicache-bench")  # fmt: skip
        return meta

    @property
    def status(self) -> str:
        """The stored status; `interrupted` for one that still says running while its process is gone."""
        meta = self.meta
        status = str(meta.get("status"))
        return "interrupted" if status == "running" and not _is_running(meta) else status

    def write_json(self, name: str, obj: Any) -> None:
        """Write `obj` atomically, without secrets (see `scrub`); NaN and infinity become null."""
        plain = scrub(msgspec.to_builtins(obj, enc_hook=_plain, str_keys=True))
        if name == "run.json":
            plain = {"schema_version": RUN_SCHEMA_VERSION, **plain}
        encoded = msgspec.json.format(msgspec.json.encode(plain), indent=1)
        write_atomic(self.path / name, encoded + b"\n")

    def write_text(self, name: str, text: str) -> None:
        """Write text atomically, as it is."""
        write_atomic(self.path / name, text.encode("utf-8", "replace"))

    def read_json(self, name: str) -> Any:
        """Decoded JSON; StoreError when the file is missing or damaged."""
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes())
        except OSError as exc:
            raise StoreError(f"cannot read {path}: {exc.strerror or exc}") from exc
        except (msgspec.DecodeError, RecursionError) as exc:
            raise StoreError(f"{path} is damaged: {exc}") from exc

    def append_event(self, kind: str, **fields: Any) -> None:
        """Add one line {t_ns, wall_ns, kind, ...} to `events.jsonl`, on disk when this returns."""
        event = {"t_ns": now_ns(), "wall_ns": time.time_ns(), "kind": kind, **fields}
        line = msgspec.json.encode(scrub(msgspec.to_builtins(event, enc_hook=_plain, str_keys=True)))
        path = self.path / "events.jsonl"
        try:
            with open(path, "ab+") as file:
                # A line torn by an earlier death must not swallow this one.
                torn = file.tell() > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
                file.write((b"\n" if torn else b"") + line + b"\n")
        except OSError as exc:
            raise StoreError(f"cannot append to {path}: {exc.strerror or exc}") from exc

    def read_events(self) -> list[dict[str, Any]]:
        """All whole lines of `events.jsonl` (torn ones are left out); none when there is no file."""
        try:
            lines = (self.path / "events.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise StoreError(f"cannot read {self.path / 'events.jsonl'}: {exc.strerror or exc}") from exc
        return [event for event in map(_event, lines) if event is not None]


def list_runs(root: Path) -> list[RunDir]:
    """The readable runs directly under `root`, oldest first; none when there is no such folder."""
    found = []
    for path in _candidates(root):
        run = RunDir(path)
        try:
            _ = run.meta
        except StoreError:
            continue
        found.append(run)
    return found


def find_run(root: Path, text: str) -> RunDir:
    """The run named by a path, by `latest`, by the start of its name or by its last four hex digits.

    Raises UsageError when none or several match.
    """
    if (Path(text) / "run.json").is_file():
        return RunDir(Path(text))
    runs = [path for path in _candidates(root) if (path / "run.json").is_file()]
    if text == LATEST:
        matches = runs[-1:]
    else:
        name = Path(text).name
        matches = [path for path in runs if name and (path.name.startswith(name) or path.name.endswith("-" + name))]
        matches = [path for path in matches if path.name == name] or matches
    if len(matches) == 1:
        return RunDir(matches[0])
    if matches:
        names = ", ".join(path.name for path in matches[:5]) + (", ..." if len(matches) > 5 else "")
        raise UsageError(f"{text!r} fits {len(matches)} runs in {root}: {names}; write more of the name")
    raise UsageError(f"no run {text!r} in {root} ({len(runs)} runs there); give a run directory, the start of its "
                     f"name, or {LATEST!r}")  # fmt: skip


def _candidates(root: Path) -> list[Path]:
    """Folders named like a run; by second of creation, then by when they were made."""
    try:
        paths = [path for path in Path(root).iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(paths, key=lambda path: (path.name[:16], _made_ns(path), path.name))


def _made_ns(path: Path) -> int:
    """`started_wall_ns` would need every run.json read; the workload file is written once at the start."""
    for item in (path / "workload.toml", path):
        try:
            return item.stat().st_mtime_ns
        except OSError:
            continue
    return 0


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _plain(value: Any) -> Any:
    """numpy scalars and arrays as lists and numbers, anything else (paths) as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _is_running(meta: dict[str, Any]) -> bool:
    """Whether the process of a run still lives; a process younger than the run has taken over its number."""
    pid = meta.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    born, started = _born_wall_ns(pid), meta.get("started_wall_ns")
    # Two seconds of slack: the boot time that /proc gives is whole seconds.
    return born is None or not isinstance(started, int) or born <= started + 2 * NS_PER_S


def _born_wall_ns(pid: int) -> int | None:
    """When a process was started; None where /proc does not tell."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) * NS_PER_S + ticks * NS_PER_S // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
