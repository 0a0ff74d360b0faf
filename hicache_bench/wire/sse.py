"""Server-sent events without I/O: bytes in any split → events.

Follows the event-stream grammar of the WHATWG HTML standard: LF, CRLF and CR end a line, `data` fields are
joined with a line feed, lines starting with a colon are comments, an event counts when its blank line came.
Works on bytes only, so a multi-byte character cut between two reads is never looked at half, and characters
such as U+2028 inside the JSON are no line ends (vllm-project/vllm#38717).
"""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT_BYTES = 64 * 2**20
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: the joined `data` fields and the event name (`""` when the server gave none)."""

    data: bytes
    event: str = ""


class LineTooLong(ValueError):
    """One event is longer than the limit. `events` are the complete ones that came before it."""

    def __init__(self, limit: int, events: list[SseEvent]) -> None:
        super().__init__(f"an event is longer than {limit} bytes")
        self.events = events


class SseParser:
    """Incremental parser of one event stream.

    An event may take `max_event_bytes` bytes between its blank lines; a longer one raises `LineTooLong`, at
    the latest when it is complete, and the parser is of no use afterwards.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._buffer = bytearray()
        self._after_cr = False
        self._at_start = True

    @property
    def pending(self) -> bool:
        """Whether bytes are left that belong to no complete event."""
        return bool(self._buffer.strip(b"\n"))

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events completed by `data`, in order; empty when there is none."""
        if self._after_cr or b"\r" in data:
            data = self._line_feeds_only(data)
        buffer = self._buffer
        if not buffer and data.endswith(b"\n\n"):
            n_line = len(data) - 2
            if data.find(b"\n") == n_line <= self._limit and data.startswith(b"data: "):
                self._at_start = False
                return [SseEvent(data[6:n_line])]
            blocks = data.split(b"\n\n")
            buffer += blocks.pop()
            return self._parse(blocks)
        # The blank line may straddle two reads: look again at the last byte already searched.
        searched = max(len(buffer) - 1, 0)
        buffer += data
        end = buffer.rfind(b"\n\n", searched)
        blocks = []
        if end >= 0:
            # Splitting from the left decides where a run of line feeds is cut, so an odd one stays behind.
            blocks = bytes(buffer).split(b"\n\n")
            self._buffer = buffer = bytearray(blocks.pop())
        events = self._parse(blocks)
        if len(buffer) - buffer.endswith(b"\n") > self._limit:
            raise LineTooLong(self._limit, events)
        return events

    def close(self) -> list[SseEvent]:
        """End of the stream: an event without its blank line is dropped, as the standard says.

        Always empty; `pending` tells whether something was dropped.
        """
        return []

    def _line_feeds_only(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            # Second half of a CRLF whose CR, at the end of the last read, already ended the line.
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _parse(self, blocks: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for block in blocks:
            if len(block) > self._limit:
                raise LineTooLong(self._limit, events)
            if self._at_start:
                self._at_start = False
                block = block.removeprefix(_BOM)
            if (event := parse_block(block)) is not None:
                events.append(event)
        return events


def parse_block(block: bytes) -> SseEvent | None:
    """The event in the lines before a blank line (LF only), or None when they hold no `data` field."""
    if b"\n" not in block and block.startswith(b"data:"):
        return SseEvent(block[6:] if block.startswith(b" ", 5) else block[5:])
    data: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return SseEvent(b"\n".join(data), name.decode("utf-8", "replace")) if data else None
