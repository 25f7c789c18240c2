"""One client: bytes in, frames out to the dispatcher, responses back in request order.

Hot path. Bytes are received straight into the connection's own buffer and requests are views of it; they are valid until the
loop's turn ends, when staged batches have been written. The buffer grows with the bytes that arrived, never with the length
announced; what it has grown by, and answers that the peer does not take, are counted in `NetworkCounters.held_bytes`, which the
server bounds for all connections together. Reading goes on behind a waiting produce (bounded by the pipeline limit) and stops
behind a waiting fetch or a full output queue.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.counters import NetworkCounters
from broker.errors import ProtocolError
from broker.handlers.reply import Parts, Pending, part_size
from broker.network.output import Output
from broker.protocol.api import ApiKey
from broker.protocol.framing import Request, frame_length, read_request, response_head

Dispatch = Callable[[Request], Parts | Pending]

_BUFFER_BYTES_FIRST = 4 * 1024  # whoever only asks and waits needs no more: it was most of what a waiting client cost
_BUFFER_BYTES_EAGER = 512 * 1024  # a busy sender's buffer grows to here without a large frame: fewer turns per byte
_BUFFER_BYTES_KEPT = 1 << 20  # an empty buffer larger than this is given back


class Connection:
    """State of one socket; all methods run on the loop's thread."""

    __slots__ = (
        "_buffer",
        "_config",
        "_dispatch",
        "_end",
        "_network",
        "_on_ready",
        "_slots",
        "_start",
        "_view",
        "closing",
        "frame_since",
        "host",
        "interest",
        "last_active",
        "output",
        "output_held",
        "peer",
        "sock",
        "taken_at",
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
        network: NetworkCounters,
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.output = Output()
        self.output_held = 0  # bytes of it that are counted in held_bytes
        self.closing: str | None = None  # why, once decided: one word, which is counted
        self.last_active = now
        self.taken_at = now  # when the peer last took anything
        self.frame_since: float | None = None  # when the frame that is only partly here began to arrive
        self.interest = 0
        self._dispatch = dispatch
        self._config = config
        self._on_ready = on_ready
        self._network = network
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
            self.closing = "peer"
            return
        self._end += count
        self.last_active = now
        self.process(now)

    def process(self, now: float) -> None:
        """Dispatch the whole requests that are in the buffer, as far as back-pressure allows; no more at once than may be
        pipelined, so that others have their turn."""
        limit = self._config.frame_bytes_max
        self.frame_since, since = None, self.frame_since
        for _ in range(self._config.pipelined_requests_max):
            if self._start == self._end or not self.wants_to_read:
                return
            length = frame_length(self._buffer, self._start, self._end, limit=limit)
            if length is None or self._end - self._start < length + 4:
                self.frame_since = now if since is None else since
                if length is not None and length > self._config.control_frame_bytes_max:
                    self._refuse_large_unless_produce(length)
                return
            begin = self._start + 4
            self._start = begin + length
            since = None
            self._handle(read_request(self._view[begin : self._start], self.host))

    def _refuse_large_unless_produce(self, length: int) -> None:
        """Only records are large. Names and numbers by the megabyte would be decoded into many times their size, on the loop."""
        if self._end - self._start >= 6:
            api_key = int.from_bytes(self._buffer[self._start + 4 : self._start + 6], "big", signed=True)
            if api_key != ApiKey.PRODUCE:
                raise ProtocolError(f"a request of {length} bytes with api key {api_key} (logbus.control.request.max.bytes)")

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
        self._network.held_bytes += len(larger) - len(self._buffer)
        larger[:held] = self._view[self._start : self._end]
        self._buffer, self._view = larger, memoryview(larger)
        self._start, self._end = 0, held

    def give_back(self) -> None:
        """Let go of a grown buffer that holds nothing. Between turns only."""
        if self._start == self._end and len(self._buffer) > _BUFFER_BYTES_FIRST:
            self._replace_buffer(_BUFFER_BYTES_FIRST, 0)

    # -- answering -------------------------------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> None:
        answer = self._dispatch(request)
        if isinstance(answer, Pending):
            if answer.silent and answer.done:
                self._note_silent(answer)
                return
            self._slots.append((request, answer))
            answer.on_complete = self._on_complete
            if answer.parts is not None:
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
        while slots and (parts := slots[0][1].parts) is not None:
            request, pending = slots.popleft()
            if pending.silent:
                self._note_silent(pending)
            else:
                self._queue(request, parts)
        self._on_ready(self)

    def _note_silent(self, pending: Pending) -> None:
        if pending.closes:
            self.closing = "acks_0"  # a produce request without an answer failed: this is the answer

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
        if self.output.send(self.sock, self._config.send_bytes_per_turn_max):
            self.last_active = self.taken_at = now

    def count_output(self) -> None:
        """Bring `held_bytes` up to date with what the peer has not taken."""
        self._network.held_bytes += self.output.bytes_queued - self.output_held
        self.output_held = self.output.bytes_queued

    @property
    def held_bytes(self) -> int:
        """What this connection has in `NetworkCounters.held_bytes`."""
        return len(self._buffer) - _BUFFER_BYTES_FIRST + self.output_held

    @property
    def stalled_since(self) -> float:
        """Since when the peer has neither ended its frame nor taken its answers; infinity where nothing is begun."""
        taken_at = self.taken_at if self.output else math.inf
        return taken_at if self.frame_since is None else min(taken_at, self.frame_since)

    @property
    def has_unread_requests(self) -> bool:
        return self._end > self._start

    @property
    def waits_for_us(self) -> bool:
        """True while an answer is owed that is not there yet: such a connection is not idle, however long it is silent."""
        return bool(self._slots) and not self.output

    @property
    def drains(self) -> bool:
        """Whether a stopping broker still has something for it: an answer on its way, or one that a flush will give."""
        return bool(self.output) or bool(self._slots and not self._slots[0][1].stops_reading)

    def close(self) -> None:
        """Forget the pipeline (waiting fetches leave the purgatory) and free what was not sent."""
        for _, pending in self._slots:
            pending.cancel()
            for part in pending.parts or ():
                if not isinstance(part, bytes):
                    part.release()
        self._slots.clear()
        self._network.held_bytes -= self.held_bytes
        self.output.close()
        self.sock.close()
