"""A loopback HTTP server that sends chosen bytes at chosen times: the other side of the bug-report tests."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Step = bytes | float | str
"""bytes: written and flushed · float: seconds to sleep · "close": polite end · "reset": TCP RST."""

DONE = b"data: [DONE]\n\n"


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    arrived_ns: int

    def json(self):
        return json.loads(self.body)


def head(status: int = 200, content_type: str = "text/event-stream", length: int | None = None) -> bytes:
    framing = f"Content-Length: {length}" if length is not None else "Transfer-Encoding: chunked"
    return f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n{framing}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


END = b"0\r\n\r\n"


def event(obj) -> bytes:
    return b"data: " + (obj if isinstance(obj, bytes) else json.dumps(obj).encode()) + b"\n\n"


def native(text: str, n: int, *, finish: str | None = None, prompt: int = 8, cached: int = 0, details=None):
    reason = {"type": finish, "length": n} if finish else None
    return {"text": text, "output_ids": list(range(n)),
            "meta_info": {"id": "x", "finish_reason": reason, "prompt_tokens": prompt, "completion_tokens": n,
                          "cached_tokens": cached, "cached_tokens_details": details}}


def native_stream(tokens: int = 3, gap: float = 0.0, first: float = 0.0) -> list[Step]:
    steps: list[Step] = [head(), first]
    for i in range(1, tokens + 1):
        last = "length" if i == tokens else None
        steps += [chunk(event(native("ab" * i, i, finish=last))), gap if i < tokens else 0.0]
    return [*steps, chunk(DONE), END]


def json_answer(obj, status: int = 200) -> list[Step]:
    body = json.dumps(obj).encode()
    return [head(status, "application/json", len(body)) + body]


Script = Callable[[Seen], Sequence[Step]]


@dataclass
class ScriptedServer:
    script: Script
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    peak: int = 0
    url: str = ""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._writers: set[asyncio.StreamWriter] = set()
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for writer in tuple(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader, writer) -> bool:
        start = await reader.readuntil(b"\r\n\r\n")
        first, *lines = start.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {}
        for line in lines:
            if line:
                name, value = line.split(":", 1)
                headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(method, path, headers, body, time.monotonic_ns())
        self.seen.append(seen)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            for step in self.script(seen):
                if isinstance(step, float):
                    if step:
                        await asyncio.sleep(step)
                elif step == "close":
                    return False
                elif step == "reset":
                    sock: socket.socket = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                    return False
                else:
                    writer.write(step)
                    await writer.drain()
        finally:
            self.in_flight -= 1
        return True


