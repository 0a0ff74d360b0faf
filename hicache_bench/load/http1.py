"""HTTP/1.1 without sockets: request heads, and answers read incrementally from any split of their bytes.

The parser is llhttp (`httptools`), with the leniencies aiohttp gives to servers, so both transports take and
refuse the same answers. Nothing here looks at what the body means.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_FIELD_BYTES = 8190
"""Longest header field or status line; the same as in aiohttp (`ClientSession.max_field_size`)."""

MAX_FIELDS = 128
"""Most header fields of one answer; the same as in aiohttp (`max_headers`)."""

_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_UNREADABLE = frozenset({"br", "zstd"})
_INFORMATIONAL = range(100, 200)
_SWITCHING = 101


class BadAnswer(ValueError):
    """Bytes that are no HTTP answer this client reads; the message says why."""


def request_prefix(path: str, host: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Everything of a POST head but the body's length: equal for all requests to one path."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\nContent-Length: ").encode("utf-8", "surrogateescape")


def request_head(prefix: bytes, body_bytes: int) -> bytes:
    """The head of one request, to be written together with its body."""
    return b"%b%d\r\n\r\n" % (prefix, body_bytes)


class AnswerReader:
    """Reads the answers of one connection, one after the other.

    `begin` before each request; then `feed` every read, in order, and `end` when the server has closed. An
    answer is over when `complete` is true; `reusable` then tells whether the connection can carry another.
    `fault` says why the bytes are no answer, once they are not; nothing more may be fed then. `status` is None
    until the final head (not a 1xx one) has come.
    """

    __slots__ = ("_decoder", "_encoding", "_feed", "_fields", "_framed", "_line_bytes", "_parser", "_parts",
                 "_reason_bytes", "complete", "content_type", "fault", "on_body", "reusable", "status")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        # The parser keeps this bound method: a body piece costs no Python frame.
        self.on_body = self._parts.append
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._feed = self._parser.feed_data
        self.begin()

    def begin(self) -> None:
        """Forget the last answer."""
        self.status: int | None = None
        self.content_type = ""
        self.complete = False
        self.reusable = False
        self._decoder: _Decoder | None = None
        self.fault: str | None = None
        self._line_bytes = 0
        self._clear_head()

    def feed(self, data: bytes) -> bytes:
        """The decoded body bytes in `data`.

        Bytes after a complete answer are dropped, and the connection is not used again.
        """
        try:
            self._feed(data)
            if self.status is None:
                self._bound_head(data)
        except HttpParserUpgrade:
            self.complete, self.reusable = True, False
        except (HttpParserError, BadAnswer) as error:
            self.reusable = False
            if not self.complete:
                self.fault = self.fault or str(error) or type(error).__name__
        parts = self._parts
        if not parts:
            body = b""
        else:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
        return body if self._decoder is None else self._decoded(body)

    def end(self) -> bool:
        """The server has closed: whether the answer is complete by that (a body without any length)."""
        if self.complete:
            return True
        if self.status is None or self._framed:
            return False
        self.complete = True
        if self._decoder is not None:
            self._decoded(b"")
        return self.fault is None

    def _decoded(self, body: bytes) -> bytes:
        assert self._decoder is not None
        try:
            return self._decoder.feed(body, last=self.complete)
        except BadAnswer as error:
            self.fault = self.fault or str(error)
            self.reusable = False
            return b""

    # ------------------------------------------------------------------ called by the parser

    def on_status(self, reason: bytes) -> None:
        self._reason_bytes += len(reason)
        if self._reason_bytes > MAX_FIELD_BYTES:
            self._refuse(f"the status line is longer than {MAX_FIELD_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is not None:
            return  # a trailer
        value = value.rstrip(b" \t")
        self._fields += 1
        if len(name) + len(value) > MAX_FIELD_BYTES:
            self._refuse(f"the header field {name[:40]!r} is longer than {MAX_FIELD_BYTES} bytes")
        if self._fields > MAX_FIELDS:
            self._refuse(f"more than {MAX_FIELDS} header fields")
        if b"\0" in value:
            self._refuse(f"a NUL byte in the header field {name[:40]!r}")
        match name.lower():
            case b"content-type":
                if not self.content_type:
                    self.content_type = value.decode("utf-8", "surrogateescape")
            case b"content-encoding":
                self._encoding = value.decode("latin-1").lower()
            case b"content-length" | b"transfer-encoding":
                self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status in _INFORMATIONAL and status != _SWITCHING:
            return
        if self._encoding in _UNREADABLE:
            self._refuse(f"content-encoding {self._encoding!r} is not supported; gzip and deflate are")
        if self._encoding in _WINDOW_BITS:
            self._decoder = _Decoder(self._encoding)
        self.status = status

    def on_message_complete(self) -> None:
        if self.status is None:
            self._clear_head()  # a 1xx answer: the real one follows
            return
        if self.complete:
            self.reusable = False  # an answer nobody asked for
            return
        self.complete = True
        self.reusable = self._parser.should_keep_alive()

    # ------------------------------------------------------------------ head

    def _clear_head(self) -> None:
        self._fields = 0
        self._reason_bytes = 0
        self._encoding = ""
        self._framed = False
        self.content_type = ""

    def _bound_head(self, data: bytes) -> None:
        """Refuse an endless line before it is complete: the parser would gather it without a limit."""
        cut = data.rfind(b"\n")
        self._line_bytes = self._line_bytes + len(data) if cut < 0 else len(data) - cut - 1
        if self._line_bytes > 2 * MAX_FIELD_BYTES:
            raise BadAnswer(f"a line of the head is longer than {MAX_FIELD_BYTES} bytes")

    def _refuse(self, why: str) -> None:
        # The parser turns an exception of a callback into one of its own.
        self.fault = why
        raise BadAnswer(why)


class _Decoder:
    """Undoes gzip or deflate of one body, with or without the zlib wrapper servers forget on deflate."""

    __slots__ = ("_encoding", "_inner")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._inner: zlib._Decompress | None = None

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """A gzip body that stops short is taken as it is, a deflate one is not: what aiohttp does."""
        if self._inner is None:
            if not data:
                return b""
            raw = self._encoding == "deflate" and data[0] & 0xF != 8
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS if raw else _WINDOW_BITS[self._encoding])
        try:
            plain = self._inner.decompress(data)
        except zlib.error as error:
            raise BadAnswer(f"the body is no {self._encoding}: {error}") from None
        if last and self._encoding == "deflate" and not self._inner.eof:
            raise BadAnswer("the deflate body stops short")
        return plain
