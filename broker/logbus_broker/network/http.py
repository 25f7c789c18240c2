"""The smallest HTTP server that a scraper needs, on the broker's own loop: GET of a few fixed paths, one answer, close.

An answer is an iterator of blocks; the next block is generated only when the socket has taken the previous one. So a page of any
size holds one block in memory and the loop for about a millisecond at a time, and a scraper that does not read costs only its
slot. Slots are few, and each exchange has a deadline: a slow client loses its own connection. When all slots are taken, a new
connection gets that of the oldest exchange that has had a second and has not sent a request yet.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from logbus_broker.logs import log_bug
from logbus_broker.network.poller import READ, WRITE, Poller

EXCHANGES_MAX = 16  # scrapers, and a few people with curl
_REQUEST_SECONDS = 1.0  # after this, an exchange without a request gives way to a new connection
_EXCHANGE_SECONDS_MAX = 10.0  # Prometheus itself gives up after 10 s
HEAD_BYTES_MAX = 8 * 1024

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}
# No website can make these its own.
NAMES_OF_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """Status, type and body of one response."""

    status: int
    content_type: str
    blocks: Iterator[bytes]


_HOST = re.compile(r"^host:[ \t]*(\S*?)(?::\d+)?[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)

Routes = Mapping[str, Callable[[], HttpAnswer]]


def text(status: int, line: str) -> HttpAnswer:
    """A short human-readable answer."""
    return HttpAnswer(status=status, content_type="text/plain; charset=utf-8", blocks=iter([line.encode()]))


def respond(head: bytes, routes: Routes, names: Collection[str] = ()) -> Iterator[bytes]:
    """The whole response to a request's head, block by block. Pure except for what the route reads. With `names`, only to a
    request that addresses one of them: a website's page could read what is on loopback, by making the site's name lead there."""
    words = head.split(b"\n", 1)[0].decode("latin-1").split()
    method, chunked = (words[0], words[2] == "HTTP/1.1") if len(words) == 3 else ("", False)
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        answer = text(400, "this is an HTTP server\n")
    elif method not in ("GET", "HEAD"):
        answer = text(405, "only GET and HEAD\n")
    elif names and _addressed(head) not in ("", *names):
        answer = text(421, f"this answers to {' and '.join(sorted(names))}\n")
    else:
        route = routes.get(words[1].partition("?")[0])
        answer = route() if route else text(404, f"there are {' and '.join(routes)}\n")
    return _encode(answer, with_body=method != "HEAD", chunked=chunked)


def _addressed(head: bytes) -> str:
    """The name in the header Host, without a port; empty if there is no such header."""
    header = _HOST.search(head.decode("latin-1"))
    return header[1].lower() if header else ""


def _encode(answer: HttpAnswer, *, with_body: bool, chunked: bool) -> Iterator[bytes]:
    """HTTP/1.1 gets chunks, so that a truncated page never passes for a complete one; 1.0 gets the bytes until close."""
    lines = [f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}", f"Content-Type: {answer.content_type}", "Connection: close"]
    lines += ["Allow: GET, HEAD"] if answer.status == 405 else []
    lines += ["Transfer-Encoding: chunked"] if chunked and with_body else []
    yield "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    if not with_body:
        return
    for block in answer.blocks:
        yield b"%x\r\n%b\r\n" % (len(block), block) if chunked else block
    if chunked:
        yield b"0\r\n\r\n"


class HttpExchange:
    """One connection: reads a head, then sends blocks. `step` is called when the socket is ready for either."""

    __slots__ = ("_blocks", "_head", "_left", "_names", "_routes", "deadline", "sock")

    def __init__(self, sock: socket.socket, routes: Routes, deadline: float, names: Collection[str] = ()) -> None:
        self.sock = sock
        self.deadline = deadline
        self._routes = routes
        self._names = names
        self._head = b""
        self._blocks: Iterator[bytes] | None = None
        self._left = memoryview(b"")

    @property
    def answering(self) -> bool:
        return self._blocks is not None

    def step(self) -> bool:
        """Read or send once; False when it is over. Raises OSError."""
        return self._read() if self._blocks is None else self._send(self._blocks)

    def _read(self) -> bool:
        received = self.sock.recv(HEAD_BYTES_MAX)
        self._head += received
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._blocks = respond(self._head, self._routes, self._names)
            return True
        return self._head[:1].isalpha() and bool(received) and len(self._head) < HEAD_BYTES_MAX  # a method's name comes first

    def _send(self, blocks: Iterator[bytes]) -> bool:
        if not self._left:
            block = next(blocks, None)
            if block is None:
                return False
            self._left = memoryview(block)
        self._left = self._left[self.sock.send(self._left) :]
        return True


class HttpEndpoint:
    """The listening socket and its exchanges, each registered with the server's poller; their descriptors' numbers are below
    `descriptors_end`."""

    def __init__(
        self,
        sock: socket.socket,
        routes: Routes,
        *,
        poller: Poller[Any],
        now: Callable[[], float],
        descriptors_end: int = sys.maxsize,
        names: Collection[str] = (),
    ) -> None:
        self._listening = sock
        self._names = names
        self._descriptors_end = descriptors_end
        self._routes = routes
        self._exchanges: dict[HttpExchange, None] = {}  # oldest first
        self._poller = poller
        self._now = now
        self._accepting = False
        self._accept_again()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def _accept_again(self) -> None:
        if not self._accepting:
            self._poller.register(self._listening.fileno(), READ, self._accept)
            self._accepting = True

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._poller.unregister(self._listening.fileno())
        self._accepting = False

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of descriptors: try again with the next sweep
            self._stop_accepting()
            return
        is_full = len(self._exchanges) >= EXCHANGES_MAX or sock.fileno() >= self._descriptors_end
        if is_full and not self._make_room():
            sock.close()
            return
        exchange = HttpExchange(sock, self._routes, self._now() + _EXCHANGE_SECONDS_MAX, self._names)
        try:
            sock.setblocking(False)
            self._poller.register(sock.fileno(), READ, lambda: self._step(exchange))
        except OSError:
            sock.close()
            return
        self._exchanges[exchange] = None

    def _make_room(self) -> bool:
        came_before = self._now() - _REQUEST_SECONDS
        for exchange in self._exchanges:
            if not exchange.answering and exchange.deadline - _EXCHANGE_SECONDS_MAX <= came_before:
                self._finish(exchange)
                return True
        return False

    def _step(self, exchange: HttpExchange) -> None:
        answering = exchange.answering
        try:
            goes_on = exchange.step()
            if goes_on and exchange.answering and not answering:
                self._poller.modify(exchange.sock.fileno(), WRITE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            goes_on = False
        except Exception:
            log_bug("building a page failed")
            goes_on = False
        if not goes_on:
            self._finish(exchange)

    def _finish(self, exchange: HttpExchange) -> None:
        """Raises nothing; a second call does nothing."""
        if exchange not in self._exchanges:
            return
        del self._exchanges[exchange]
        self._poller.unregister(exchange.sock.fileno())
        with contextlib.suppress(OSError):
            exchange.sock.close()

    def sweep(self, now: float) -> None:
        """End exchanges that take too long, and listen again if descriptors had run out. Does nothing once it is closed: a stop
        closes it some turns before the last sweep."""
        if self._listening.fileno() < 0:
            return
        for exchange in [exchange for exchange in self._exchanges if exchange.deadline <= now]:
            self._finish(exchange)
        self._accept_again()

    def close(self) -> None:
        for exchange in list(self._exchanges):
            self._finish(exchange)
        self._stop_accepting()
        self._listening.close()
