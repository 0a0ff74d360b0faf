"""The connections of the fast transport: one that owns its socket (Linux, plain TCP), one on asyncio's streams.

Both read raw bytes, stamp them before anything looks at them and hand them to a `Talk`, which knows HTTP and
fills the `Exchange`. A socket link reads with `recvmsg`, so that the kernel's receive marks replace the
client's; all socket links share one epoll set, which costs the event loop one callback for any number of them.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

from hicache_bench.clock import now_ns
from hicache_bench.load.http1 import AnswerReader
from hicache_bench.load.stamps import ANCILLARY_BYTES, KernelClock, ask_for_stamps, kernel_real_ns
from hicache_bench.load.transport import classify_os_error
from hicache_bench.records import Exchange, Outcome

READ_BYTES = 256 * 1024
EVENTS_A_TURN = 128
"""Sockets read before the event loop gets its turn for timers and the sends that are due."""


class Talk:
    """One request and its answer at a time over one connection; the same for both kinds of link.

    `over` is the future of the request under way, done when the exchange is complete or has failed.
    """

    __slots__ = ("_exchange", "_kernel_reads", "_loop_reads", "_reader", "over", "used")

    def __init__(self) -> None:
        self._reader = AnswerReader()
        self._exchange: Exchange | None = None
        self._kernel_reads = self._loop_reads = 0
        self.over: asyncio.Future[None] | None = None
        self.used = False

    @property
    def reusable(self) -> bool:
        """Between requests: whether the last answer left the connection fit for another."""
        return not self.used or (self._exchange is None and self._reader.reusable)

    @property
    def busy(self) -> bool:
        return self._exchange is not None

    @property
    def floor_ns(self) -> int:
        """No stamp of this exchange may lie before this instant: the last read, or the send."""
        exchange = self._exchange
        if exchange is None:
            return 0
        if exchange.reads:
            return exchange.reads[-1][0]
        return exchange.headers_ns or exchange.sent_ns or 0

    def begin(self, exchange: Exchange, over: asyncio.Future[None]) -> None:
        self._reader.begin()
        self._exchange, self.over = exchange, over
        self._kernel_reads = self._loop_reads = 0
        self.used = True

    def read(self, data: bytes, stamp_ns: int, kernel: bool) -> bool:
        """Take one read; False when the connection is of no further use."""
        exchange, reader = self._exchange, self._reader
        if exchange is None:
            return False  # bytes nobody asked for
        if kernel:
            self._kernel_reads += 1
        else:
            self._loop_reads += 1
        body = reader.feed(data)
        if exchange.status is None and reader.status is not None:
            exchange.status, exchange.content_type = reader.status, reader.content_type
            exchange.headers_ns = stamp_ns
        if body:
            exchange.reads.append((stamp_ns, body))
        if reader.fault is not None:
            self.finish(stamp_ns, ("protocol", reader.fault))
            return False
        if reader.complete:
            self.finish(stamp_ns, None)
            return reader.reusable
        return True

    def lost(self, error: OSError | None) -> None:
        """The connection has ended: politely (None) or not."""
        if self._exchange is None:
            return
        reader = self._reader
        failure: tuple[Outcome, str] | None
        if error is not None:
            failure = classify_os_error(error, connecting=False)
        elif reader.end():
            failure = None
        elif reader.fault is not None:
            failure = ("protocol", reader.fault)
        else:
            when = "without an answer" if reader.status is None else "before the answer was complete"
            failure = ("disconnect", f"the server closed the connection {when}")
        self.finish(now_ns(), failure)

    def finish(self, done_ns: int, failure: tuple[Outcome, str] | None) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self._exchange = None
        exchange.done_ns = done_ns
        if failure is not None:
            exchange.failure = failure
        if self._kernel_reads:
            exchange.clock = "mixed" if self._loop_reads else "kernel"
        if self.over is not None and not self.over.done():
            self.over.set_result(None)


class SocketPump:
    """One epoll set for all socket links of a transport (Linux only)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._links: dict[int, SocketLink] = {}
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.clock = KernelClock()
        loop.add_reader(self._epoll.fileno(), self._turn)

    def add(self, link: SocketLink, fd: int) -> None:
        self._links[fd] = link
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        if self._links.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def want_write(self, fd: int, wanted: bool) -> None:
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        for link in tuple(self._links.values()):
            link.close()
        self._epoll.close()

    def _turn(self) -> None:
        links = self._links
        for fd, events in self._epoll.poll(0, EVENTS_A_TURN):
            link = links.get(fd)
            if link is None:
                continue
            if events & select.EPOLLOUT:
                link.write_on()
            if events & ~select.EPOLLOUT:
                link.readable()


class SocketLink:
    """A connection that owns its non-blocking socket. `closed` is called once, when it has ended."""

    __slots__ = ("_closed", "_fd", "_into", "_marks", "_pump", "_rest", "_sock", "idle_since_ns", "talk")

    def __init__(self, pump: SocketPump, sock: socket.socket, closed: Callable[[Link], None], *, marks: bool) -> None:
        self.talk = Talk()
        self.idle_since_ns = now_ns()
        self._pump, self._sock, self._fd, self._closed = pump, sock, sock.fileno(), closed
        self._into = [pump.buffer]
        self._rest: list[memoryview] = []
        self._marks = marks and ask_for_stamps(sock)
        pump.add(self, self._fd)

    @property
    def open(self) -> bool:
        return self._fd >= 0

    def peer_has_closed(self) -> bool:
        """Whether an end (or stray bytes) waits unread: nothing sent now would be answered."""
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def write(self, head: bytes, body: bytes) -> bool:
        """One system call for head and body; what the socket does not take is written when it can.

        False when nothing at all has left: the server can not have seen the request.
        """
        try:
            sent = self._sock.sendmsg((head, body))
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return False
        if sent < len(head) + len(body):
            parts = (memoryview(head)[sent:], memoryview(body)[max(0, sent - len(head)):])
            self._rest = [part for part in parts if part]
            self._pump.want_write(self._fd, True)
        return True

    def write_on(self) -> None:
        try:
            sent = self._sock.sendmsg(self._rest)
        except BlockingIOError:
            return
        except OSError:
            # The server no longer listens; its answer, if any, is still to be read.
            self._rest = []
        else:
            while self._rest and sent >= len(self._rest[0]):
                sent -= len(self._rest.pop(0))
            if self._rest:
                self._rest[0] = self._rest[0][sent:]
        if not self._rest:
            self._pump.want_write(self._fd, False)

    def readable(self) -> None:
        if self._fd < 0:
            return
        pump, talk = self._pump, self.talk
        try:
            if self._marks:
                n, ancillary, _, _ = self._sock.recvmsg_into(self._into, ANCILLARY_BYTES)
                stamp_ns = now_ns()
            else:
                n, ancillary = self._sock.recv_into(pump.buffer), []
                stamp_ns = now_ns()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not n:
            self._end(None)
            return
        kernel = False
        if ancillary and (real_ns := kernel_real_ns(ancillary)) is not None:
            marked_ns = pump.clock.instant(real_ns, stamp_ns, talk.floor_ns)
            if marked_ns is not None:
                stamp_ns, kernel = marked_ns, True
        # Not reusable while part of the request is unsent: the server answered before it had read it all.
        if not talk.read(bytes(pump.view[:n]), stamp_ns, kernel) or (self._rest and not talk.busy):
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            self._pump.remove(self._fd)
            self._fd = -1
            self._sock.close()
            self._closed(self)

    def _end(self, error: OSError | None) -> None:
        self.close()
        self.talk.lost(error)


class StreamLink(asyncio.Protocol):
    """A connection on an asyncio transport: TLS, and systems without epoll. Always the loop's own stamps."""

    def __init__(self, closed: Callable[[Link], None]) -> None:
        self.talk = Talk()
        self.idle_since_ns = now_ns()
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._paused = False

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        stamp_ns = now_ns()
        if not self.talk.read(bytes(data), stamp_ns, False) or (self._paused and not self.talk.busy):
            self.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if error is not None and not isinstance(error, OSError):
            error = OSError(f"{type(error).__name__}: {error}")
        self._closed(self)
        self.talk.lost(error)

    def peer_has_closed(self) -> bool:
        return not self.open

    def write(self, head: bytes, body: bytes) -> bool:
        """See `SocketLink.write`."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.writelines((head, body))
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._closed(self)


Link = SocketLink | StreamLink
