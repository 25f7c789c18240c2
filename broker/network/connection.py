"""One client: bytes in, frames out to the dispatcher, responses back in request order.

Hot path. Bytes are received straight into the connection's own buffer and requests are views of it; they are valid until the
loop's turn ends, when staged batches have been written. The buffer grows with the bytes that arrived, never with the length
announced. Reading goes on behind a waiting produce (bounded by the pipeline limit) and stops behind a waiting fetch or a full
output queue.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.handlers.reply import Parts, Pending, part_size
from broker.network.output import Output
from broker.protocol.framing import Request, frame_length, read_request, response_head

Dispatch = Callable[[Request], Parts | Pending]

_BUFFER_BYTES_FIRST = 16 * 1024
_BUFFER_BYTES_EAGER = 512 * 1024  # a busy sender's buffer grows to here without a large frame: fewer turns per byte
_BUFFER_BYTES_KEPT = 1 << 20  # an empty buffer larger than this is given back


class Connection:
    """State of one socket; all methods run on the loop's thread."""

    __slots__ = (
        "_buffer",
        "_config",
        "_dispatch",
        "_end",
        "_host",
        "_on_ready",
        "_slots",
        "_start",
        "_view",
        "closing",
        "frame_since",
        "interest",
        "last_active",
        "output",
        "peer",
        "sock",
    )

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        dispatch: Dispatch,
        config: BrokerConfig,
        now: float,
        on_ready: Callable[[Connection], None],
    ) -> None:
        self.sock = sock
        self.peer = peer
        self._host = peer.rpartition(":")[0]
        self.output = Output()
        self.closing: str | None = None  # why, once decided
        self.last_active = now
        self.frame_since: float | None = None  # when the frame that is only partly here began to arrive
        self.interest = 0
        self._dispatch = dispatch
        self._config = config
        self._on_ready = on_ready
        self._slots: deque[tuple[Request, Pending]] = deque()
        self._buffer = bytearray(_BUFFER_BYTES_FIRST)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    # -- reading ---------------------------------------------------------------------------------------------------------------

    @property
    def wants_to_read(self) -> bool:
        """False behind a waiting fetch, a full pipeline or an output queue that the peer does not empty."""
        if self._slots and (self._slots[-1][1].stops_reading or len(self._slots) >= self._config.pipelined_requests_max):
            return False
        return self.output.bytes_queued < self._config.output_bytes_max

    def receive(self, now: float) -> None:
        """Take what the socket has and hand every whole request to the dispatcher. Raises OSError, ProtocolError."""
        self._make_room()
        try:
            count = self.sock.recv_into(self._view[self._end :])
        except BlockingIOError:
            return
        if count == 0:
            self.closing = "closed by the peer"
            return
        self._end += count
        self.last_active = now
        self.process(now)

    def process(self, now: float) -> None:
        """Dispatch the whole requests that are in the buffer, as far as back-pressure allows."""
        limit = self._config.frame_bytes_max
        self.frame_since, since = None, self.frame_since
        while self._start != self._end and self.wants_to_read:
            length = frame_length(self._buffer, self._start, self._end, limit=limit)
            if length is None or self._end - self._start < length + 4:
                self.frame_since = now if since is None else since
                return
            begin = self._start + 4
            self._start = begin + length
            since = None
            self._handle(read_request(self._view[begin : self._start], self._host))

    def _make_room(self) -> None:
        """Move the rest to the front, or to a larger buffer: doubled, so it never grows beyond twice what has arrived."""
        held = self._end - self._start
        capacity = len(self._buffer)
        if held == 0:
            self._start = self._end = 0
            if capacity > _BUFFER_BYTES_KEPT:
                self._replace_buffer(_BUFFER_BYTES_FIRST, 0)
            return
        full = self._end == capacity
        if full and (held > capacity // 2 or capacity < _BUFFER_BYTES_EAGER):
            self._replace_buffer(min(capacity * 2, self._config.frame_bytes_max + 4), held)
        elif full:
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _replace_buffer(self, capacity: int, held: int) -> None:
        larger = bytearray(max(capacity, held + 4096))
        larger[:held] = self._view[self._start : self._end]
        self._buffer, self._view = larger, memoryview(larger)
        self._start, self._end = 0, held

    # -- answering -------------------------------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> None:
        answer = self._dispatch(request)
        if isinstance(answer, Pending):
            if answer.silent and answer.done:
                self._note_silent(answer)
                return
            self._slots.append((request, answer))
            answer.on_complete = self._on_complete
            if answer.done:
                self._on_complete()
        elif self._slots:
            done = Pending()
            done.parts = answer
            self._slots.append((request, done))
        else:
            self._queue(request, answer)
            self._on_ready(self)

    def _on_complete(self) -> None:
        """Move the answered head of the pipeline to the output; responses leave in request order."""
        slots = self._slots
        while slots and slots[0][1].done:
            request, pending = slots.popleft()
            if pending.silent:
                self._note_silent(pending)
            else:
                assert pending.parts is not None
                self._queue(request, pending.parts)
        self._on_ready(self)

    def _note_silent(self, pending: Pending) -> None:
        if pending.closes:
            self.closing = "a produce request with acks=0 failed"

    def _queue(self, request: Request, parts: Parts) -> None:
        if len(parts) == 1 and isinstance(parts[0], bytes):  # the usual case: one buffer for all
            self.output.append(response_head(request, len(parts[0])) + parts[0])
            return
        head = response_head(request, sum(map(part_size, parts)))
        if parts and isinstance(parts[0], bytes):
            head, parts = head + parts[0], parts[1:]
        self.output.append(head)
        self.output.extend(parts)

    def send(self, now: float) -> None:
        """Send what fits. Raises OSError, ShortFile."""
        self.last_active = now
        self.output.send(self.sock, self._config.send_bytes_per_turn_max)

    @property
    def has_unread_requests(self) -> bool:
        return self._end > self._start

    @property
    def waits_for_us(self) -> bool:
        """True while an answer is owed: such a connection is not idle, however long it is silent."""
        return bool(self._slots)

    def close(self) -> None:
        """Forget the pipeline (waiting fetches leave the purgatory) and free what was not sent."""
        for _, pending in self._slots:
            pending.cancel()
            for part in pending.parts or ():
                if not isinstance(part, bytes):
                    part.release()
        self._slots.clear()
        self.output.close()
        self.sock.close()
