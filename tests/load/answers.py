"""Answers a server may give, good and bad, as scripted steps: both transports must make the same rows of them."""

from __future__ import annotations

import gzip
import json
import zlib

from tests.scripted import DONE, END, Step, chunk, event, head, json_answer, native, native_stream
from tests.wire.captured import CAPTURES

TOKENS = [event(native("a" * i, i, finish="length" if i == 3 else None)) for i in (1, 2, 3)]
BODY = b"".join(TOKENS) + DONE
CHUNKED = b"".join(map(chunk, [*TOKENS, DONE])) + END
PAUSE = 0.02
"""Long enough for the client to read what came before on its own."""


def plain(*fields: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    lines = [f"HTTP/{version} {status}", "Content-Type: text/event-stream", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def squeezed(data: bytes, bits: int) -> bytes:
    deflate = zlib.compressobj(wbits=bits)
    return deflate.compress(data) + deflate.flush()


LENGTH = f"Content-Length: {len(BODY)}"
TE = "Transfer-Encoding: chunked"
GZIP = gzip.compress(BODY)
ERROR = json.dumps({"error": {"message": "too long", "code": 400}}).encode()

CASES: dict[str, list[Step]] = {
    "stream": native_stream(5),
    "stream, one write a token": native_stream(5, gap=PAUSE),
    "one write": [head() + CHUNKED],
    "length": [plain(LENGTH) + BODY],
    "length, split": [plain(LENGTH), PAUSE, BODY[:100], PAUSE, BODY[100:]],
    "until close": [plain() + BODY, "close"],
    "until close, split": [plain(), PAUSE, BODY[:100], PAUSE, BODY[100:], "close"],
    "http 1.0": [plain(version="1.0") + BODY, "close"],
    "http 1.0 keep-alive": [plain(LENGTH, "Connection: keep-alive", version="1.0") + BODY],
    "connection close": [plain(TE, "Connection: close") + CHUNKED, "close"],
    "json": json_answer(native("abc", 3, finish="length")),
    "error 400": [head(400, "application/json", len(ERROR)) + ERROR],
    "error 500 empty": [head(500, "text/plain", 0)],
    "error 503 until close": [plain(status="503 Busy") + b"overloaded", "close"],
    "redirect": [plain("Location: /elsewhere", "Content-Length: 0", status="307 Temporary Redirect")],
    "redirect with body": [plain("Location: /x", "Content-Length: 5", status="302 Found") + b"moved"],
    "204": [plain(status="204 No Content")],
    "304": [plain(status="304 Not Modified")],
    "100 continue": [b"HTTP/1.1 100 Continue\r\n\r\n" + head() + CHUNKED],
    "100 continue, split": [b"HTTP/1.1 100 Continue\r\n\r\n", PAUSE, head(), PAUSE, CHUNKED],
    "103 early hints": [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Type: text/html\r\n\r\n", head() + CHUNKED],
    "101 switching": [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", PAUSE, "close"],
    "trailers": [head() + b"".join(map(chunk, [*TOKENS, DONE])) + b"0\r\nX-Sum: 1\r\nContent-Type: a/b\r\n\r\n"],
    "trailers, split": [head(), chunk(BODY) + b"0\r\nX-S", PAUSE, b"um: 1\r\n\r\n"],
    "chunk extension": [head() + f"{len(BODY):x};name=value\r\n".encode() + BODY + b"\r\n0\r\n\r\n"],
    "chunk size in capitals": [head() + f"{len(BODY):08X}\r\n".encode() + BODY + b"\r\n0\r\n\r\n"],
    "blank after chunk size": [head() + f"{len(BODY):x} \r\n".encode() + BODY + b"\r\n0\r\n\r\n"],
    "obs-fold": [plain("X-Long: one", " two", TE) + CHUNKED],
    "bare line feeds": [(head()).replace(b"\r\n", b"\n") + CHUNKED],
    "no content type": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED],
    "two content types": [plain("Content-Type: application/json", TE) + CHUNKED],
    "many fields": [plain(*(f"X-{i}: {i}" for i in range(120)), TE) + CHUNKED],
    "too many fields": [plain(*(f"X-{i}: {i}" for i in range(200)), TE) + CHUNKED],
    "long field": [plain("X: " + "a" * 8000, TE) + CHUNKED],
    "field over the limit": [plain("X: " + "a" * 9000, TE) + CHUNKED],
    "endless field": [b"HTTP/1.1 200 OK\r\nX: " + b"a" * 50_000, PAUSE, b"a" * 50_000, PAUSE, "close"],
    "long reason": [plain(TE, status="200 " + "x" * 9000) + CHUNKED],
    "no reason": [plain(TE, status="200") + CHUNKED],
    "latin-1 field": [plain("X: caf\xe9", TE) + CHUNKED],
    "nul in a field": [plain("X: a\0b", TE) + CHUNKED],
    "gzip": [plain("Content-Encoding: gzip", f"Content-Length: {len(GZIP)}") + GZIP],
    "gzip in chunks": [plain("Content-Encoding: GZIP", TE), chunk(GZIP[:20]), PAUSE, chunk(GZIP[20:]) + END],
    "short gzip": [plain("Content-Encoding: gzip", TE) + chunk(GZIP[:-20]) + END],
    "deflate": [plain("Content-Encoding: deflate", TE) + chunk(zlib.compress(BODY)) + END],
    "raw deflate": [plain("Content-Encoding: deflate", TE) + chunk(squeezed(BODY, -15)) + END],
    "bad gzip": [plain("Content-Encoding: gzip", TE) + chunk(b"this is no gzip") + END],
    "bad gzip, split": [plain("Content-Encoding: gzip", TE), PAUSE, chunk(b"this is no gzip") + END],
    "brotli": [plain("Content-Encoding: br", TE) + chunk(b"\x0b\x00\x80a\x03") + END],
    "unknown encoding": [plain("Content-Encoding: rot13", TE) + CHUNKED],
    "identity": [plain("Content-Encoding: identity", TE) + CHUNKED],
    "length and chunked": [plain(LENGTH, TE) + CHUNKED],
    "two lengths": [plain(LENGTH, "Content-Length: 3") + BODY],
    "negative length": [plain("Content-Length: -1") + BODY],
    "no http": [b"not http at all\r\n\r\n", "close"],
    "http 2 preface": [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "close"],
    "bad chunk size": [head() + b"zz\r\nnot a chunk\r\n", "close"],
    "bad chunk size, split": [head() + chunk(TOKENS[0]), PAUSE, b"zz\r\nnot a chunk\r\n", PAUSE, "close"],
    "chunk too long for its size": [head() + chunk(TOKENS[0]), PAUSE, b"3\r\nabcdef\r\n", PAUSE, "close"],
    "close at once": ["close"],
    "close in the head": [b"HTTP/1.1 200 OK\r\nContent-", PAUSE, "close"],
    "close after the head": [head(), PAUSE, "close"],
    "close in a chunk": [head() + chunk(TOKENS[0]) + b"50\r\nab", PAUSE, "close"],
    "close between chunks": [head() + chunk(TOKENS[0]), PAUSE, "close"],
    "close before the length": [plain(LENGTH) + BODY[:-5], PAUSE, "close"],
    "reset at once": ["reset"],
    "reset in the body": [head() + chunk(TOKENS[0]), PAUSE, "reset"],
    "empty stream": [head() + END],
    "no done": [head() + chunk(TOKENS[0]) + END],
    "error event": [head() + chunk(TOKENS[0]) + chunk(event({"error": {"message": "boom"}})) + chunk(DONE) + END],
    "bad json": [head() + chunk(b"data: {nope\n\n") + END],
}

CAPTURED = sorted(str(path.relative_to(CAPTURES)) for path in CAPTURES.rglob("*.http")
                  if path.read_bytes().startswith(b"HTTP/1."))
