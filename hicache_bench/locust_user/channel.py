"""Messages between a process and a child it started, over one socket pair.

Pickle is fine here: both ends are the same program on the same machine, and nobody else holds the socket.
"""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

_LENGTH = struct.Struct("<Q")


class Channel:
    """Length-prefixed (kind, body) messages over a stream socket; sending is safe from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, kind: str, body: Any = None) -> None:
        """Blocks until the other end has room. Raises OSError when it is gone."""
        frame = pickle.dumps((kind, body), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._sock.sendall(_LENGTH.pack(len(frame)))
            self._sock.sendall(frame)

    def receive(self) -> tuple[str, Any] | None:
        """The next message; None when the other end has closed or died, even in the middle of one."""
        head = self._exactly(_LENGTH.size)
        frame = None if head is None else self._exactly(_LENGTH.unpack(head)[0])
        return None if frame is None else pickle.loads(frame)

    def close(self) -> None:
        """The other end sees the end of the stream, and so does whoever waits in `receive` here."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _exactly(self, n: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < n:
            try:
                data = self._sock.recv(min(n - len(parts), 1 << 20))
            except OSError:
                return None
            if not data:
                return None
            parts += data
        return bytes(parts)


def start_child(module: str) -> tuple[Channel, subprocess.Popen[bytes]]:
    """Run `python -m module FD` with one end of a socket pair. A session of its own keeps Ctrl-C away: the
    child ends when its socket does, so it can still store what it was given."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-m", module, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                               stdin=subprocess.DEVNULL, start_new_session=True)
    theirs.close()
    return Channel(ours), process


def end_child(process: subprocess.Popen[bytes], timeout_s: float = 10.0) -> None:
    """Wait for a child whose socket was closed; one that hangs is killed."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def inherited(argument: str) -> Channel:
    """The child's end, from the number on its command line."""
    sock = socket.socket(fileno=int(argument))
    sock.setblocking(True)  # gevent made both ends non-blocking when it made the pair
    return Channel(sock)
