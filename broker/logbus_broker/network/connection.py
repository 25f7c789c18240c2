"""One client: bytes in, frames out to the dispatcher, responses back in request order.

Hot path. Bytes are received straight into the connection's own buffer and requests are views of it; they are valid until the
loop's turn ends, when staged batches have been written. The buffer grows with the bytes that have arrived, never with the
announced length, and never beyond a megabyte: the rest of a larger frame is received into a separate mapping
(`buffers.LargeFrame`).

The socket is read only when nothing in the buffer can be handled: the buffer then holds at most the beginning of one frame. So a
connection holds at most one frame plus the result of one read. Reading continues after a waiting produce (bounded by the
pipeline limit), and stops after a parked request (a waiting fetch), when the pipeline is full, or when the peer does not read its
answers. The growth of the buffer, the received part of a large frame, and unread answers are counted in
`NetworkCounters.held_bytes`, which the server bounds for all connections together.

Requests are answered as if they had been handled one after the other. A Produce or an OffsetCommit is staged, and written when
the turn ends; so staged batches are written (`settle`) before any other request of the same connection is handled.
"""

from __future__ import annotations

import logging
import math
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from logbus_broker.api.fetch_fast_path import ConnectionFetchFastPath
from logbus_broker.api.handler import Parts, Pending, part_size
from logbus_broker.api.produce_fast_path import ConnectionFastPath
from logbus_broker.errors import ProtocolError
from logbus_broker.health import NetworkCounters
from logbus_broker.logs import log_bug
from logbus_broker.network.buffers import LargeFrame, Output
from logbus_broker.network.throttling import Throttle, with_throttle_time
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Origin, Request, frame_length, read_request, response_head
from logbus_broker.protocol.produce import check_counts
from logbus_broker.settings import BrokerConfig

if TYPE_CHECKING:  # a broker without logins does not import it
    from logbus_broker.network.gate import ConnectionLogin

logger = logging.getLogger("broker.network")

Dispatch = Callable[[Request], Parts | Pending]

_BUFFER_BYTES_FIRST = 4 * 1024  # enough for a client that only asks and waits, whose cost was mostly its buffer
_BUFFER_BYTES_EAGER = 512 * 1024  # a busy sender's buffer grows to here without a large frame: fewer turns per byte
_BUFFER_BYTES_MAX = 1 << 20  # a larger frame does not go into the buffer
_SLICE_SECONDS = 0.003  # how long one connection's requests are handled before it is the others' turn
_HEADER_BYTES_MAX = 64 * 1024  # a client id is at most half of it, and no client sends tags in the header
_PRODUCE, _FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
_NO_BODY = memoryview(b"")


class Connection:
    """State of one socket; all methods run on the loop's thread."""

    __slots__ = (
        "_buffer",
        "_config",
        "_dispatch",
        "_end",
        "_fast_path",
        "_is_vetted",
        "_large",
        "_login",
        "_monotonic",
        "_network",
        "_on_ready",
        "_on_throttled",
        "_settle",
        "_slots",
        "_start",
        "_throttle",
        "_throttled_seconds",
        "_view",
        "closing",
        "descriptor",
        "frame_since",
        "has_asked",
        "host",
        "interest",
        "is_muted",
        "muted_until",
        "opened_at",
        "origin",
        "output",
        "output_held",
        "peer",
        "received_at",
        "session",
        "sock",
        "taken_at",
    )

    is_tls = False  # whether it is a `tls.TlsConnection`

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
        settle: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = lambda: -math.inf,
        listener: str = "",
        fast_path: ConnectionFastPath | None = None,
        throttle: Throttle | None = None,
        on_throttled: Callable[[Connection, float], None] = lambda connection, seconds: None,
    ) -> None:
        """`settle` writes and answers what this turn has staged. `monotonic` decides when a slice of work is over; with the
        default it never is. `listener` is the name of the listener that the peer connected to. `fast_path` is the shortcut for
        typical Produce requests; without it all take the ordinary path. `throttle` holds up clients over their quotas:
        `on_throttled` is called with for how many seconds, and `unmute` is to be called after them."""
        self.sock = sock
        self.descriptor = sock.fileno()
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.origin = Origin(self.host, listener)
        self.output = Output()
        self.output_held = 0  # how many bytes of it are counted in held_bytes
        self.closing: str | None = None  # the reason, once decided: one word, used as a counter label
        self.has_asked = False  # whether a whole request has ever arrived; where a login is required, whether it has logged in
        self.opened_at = now
        self.received_at = now  # when something last arrived
        self.taken_at = now  # when the peer last took any output
        self.frame_since: float | None = None  # when the incomplete frame began to arrive
        self.interest = 0
        self.is_muted = False  # over a quota: nothing is read, and no request is handled
        self.muted_until = -math.inf
        self._throttled_seconds = 0.0  # for which the client is held up from the next answer on
        self._throttle = throttle
        self._on_throttled = on_throttled
        self._dispatch = dispatch
        self._config = config
        self._on_ready = on_ready
        self._network = network
        self._settle = settle
        self._fast_path = fast_path
        self._monotonic = monotonic
        self._slots: deque[tuple[Request, Pending]] = deque()
        self._buffer = bytearray(_BUFFER_BYTES_FIRST)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._login: ConnectionLogin | None = None  # before it has logged in, where that is required
        self.session: ConnectionLogin | None = None  # the same, for as long as the connection is open
        self._large: LargeFrame | None = None  # the frame being received, if it is too large for the buffer
        self._is_vetted = False  # whether the current frame has been checked and may continue to arrive

    def require_login(self, login: ConnectionLogin) -> None:
        """Before anything has arrived: everything goes to `login` until it calls `admit`."""
        self._login = self.session = login
        self._dispatch = login.dispatch

    def admit(self, origin: Origin, dispatch: Dispatch, fast_path: ConnectionFastPath | None) -> None:
        """The peer has logged in: requests are dispatched from now on, and are of this origin."""
        self._login = None
        self.origin = origin
        self.has_asked = True
        self._dispatch, self._fast_path = dispatch, fast_path

    def leave_fast_path(self) -> None:
        """Every request goes to the dispatcher from now on."""
        self._fast_path = None

    # -- reading ---------------------------------------------------------------------------------------------------------------

    @property
    def is_parked(self) -> bool:
        """True if the last request waits for an event, for as long as its client has asked for."""
        return bool(self._slots) and self._slots[-1][1].stops_reading

    @property
    def wants_to_read(self) -> bool:
        """False after a parked request, with a full pipeline, over a quota, or with output that the peer does not read."""
        if self.is_muted:
            return False
        if self._slots and (self._slots[-1][1].stops_reading or len(self._slots) >= self._config.pipelined_requests_max):
            return False
        return self.output.bytes_queued < self._config.output_bytes_max

    def receive(self, now: float) -> None:
        """Take what the socket has and hand every whole request to the dispatcher. Raises OSError, ProtocolError."""
        if (self._slots or self.is_muted) and not self.wants_to_read:
            self._on_ready(self)  # the server then updates which events it watches for
            return
        if self._start == self._end:
            self._start = self._end = 0
        elif self.frame_since is None:
            self._on_ready(self)  # requests in the buffer come first
            return
        elif self._end == len(self._buffer):
            self._make_room()
        if self._large is not None:
            self._receive_large(self._large, now)
            return
        try:
            count = self.sock.recv_into(self._view[self._end :])
        except BlockingIOError:
            return
        if count == 0:
            self.closing = "peer"
            return
        self._end += count
        self.received_at = now
        fast_path = self._fast_path
        if (
            fast_path is None
            or (self._throttle is not None and self._throttle.is_active)
            or self._slots
            or self.output
            or not (self._take_produces(fast_path, now) or self._take_fetch(fast_path.fetches, now))
        ):
            self.process(now)

    def _take_produces(self, fast_path: ConnectionFastPath, now: float) -> bool:
        """Pass the typical requests at the front of the buffer to the fast path, with nothing pending before them; False if there
        are none. The requests after them are handled before their answers are sent: if one of those ends the connection, the
        answers are dropped, as on the ordinary path. Raises OSError, ProtocolError."""
        limit = self._config.pipelined_requests_max
        start = fast_path.take(self._buffer, self._view, self._start, self._end, limit, self.origin)
        if start == self._start:
            return False
        self._start = start
        self.has_asked, self.frame_since = True, None
        answers = fast_path.answers
        answer = answers[0] if len(answers) == 1 else b"".join(answers)
        answers.clear()
        if start != self._end:
            if self._holds_request():
                if answer:
                    self.output.append(answer)
                    self._on_ready(self)
                answer = b""
            self.process(now)
        if answer:  # none with acks=0
            self._send_at_once(answer, now)
        return True

    def _take_fetch(self, fast_path: ConnectionFetchFastPath, now: float) -> bool:
        """The same for a typical Fetch request that is all the buffer contains. Raises OSError, ShortFile."""
        taken = fast_path.take(self._buffer, self._view, self._start, self._end, self.origin)
        if taken is None:
            return False
        self._start = self._end
        self.has_asked, self.frame_since = True, None
        request, answer = taken
        if isinstance(answer, Pending):
            self._slots.append((request, answer))
            answer.on_complete = self._on_complete
        elif len(answer) == 1 and isinstance(answer[0], bytes):
            self._send_at_once(answer[0], now)
        else:
            self.output.extend(answer)
            self.send(now)
            if self.output:
                self._on_ready(self)
        return True

    def _holds_request(self) -> bool:
        """Whether a whole request is at the front of the buffer."""
        length = frame_length(self._buffer, self._start, self._end, limit=self._config.frame_bytes_max)
        return length is not None and self._end - self._start >= length + 4

    def _send_at_once(self, answer: bytes, now: float) -> None:
        """Send an answer with no output queued before it; what the socket does not accept is queued."""
        try:
            sent = self.sock.send(answer)
        except BlockingIOError:
            sent = 0
        if sent:
            self.taken_at = now
        if sent < len(answer):
            self.output.append(answer[sent:])
            self._on_ready(self)

    def _receive_large(self, frame: LargeFrame, now: float) -> None:
        try:
            count = frame.receive(self.sock)
        except BlockingIOError:
            return
        if count == 0:
            self.closing = "peer"
            return
        self.received_at = now
        self._network.held_bytes += count
        if frame.is_whole:
            self._network.held_bytes -= frame.arrived
            self._large = self.frame_since = None
            self._handle(read_request(frame.view, self.origin))
            self._forget_bodies()

    def process(self, now: float) -> None:
        """Dispatch the whole requests in the buffer, as far as back-pressure allows; no more at once than the pipeline limit, and
        not for long, so that other connections have their turn."""
        if self._login is not None:
            self._process_login(self._login, now)
            return
        limit = self._config.frame_bytes_max
        until = math.inf
        self.frame_since, since = None, self.frame_since
        for count in range(self._config.pipelined_requests_max):
            if self._start == self._end or not self.wants_to_read:
                return
            length = frame_length(self._buffer, self._start, self._end, limit=limit)
            if length is None or self._end - self._start < length + 4:
                if since is None:
                    since, self._is_vetted = now, False
                self.frame_since = since
                if length is not None and length > self._config.control_frame_bytes_max and not self._is_vetted:
                    self._is_vetted = self._vet(length)
                return
            if count:  # a single request does not need the clock
                time = self._monotonic()
                if count == 1:
                    until = time + _SLICE_SECONDS
                elif time > until:
                    break
            begin = self._start + 4
            self._start = begin + length
            since = None
            frame = self._view[begin : self._start]
            request = read_request(frame, self.origin)
            self._handle(request)
            if self._fast_path is not None:
                if request.api_key == _PRODUCE:
                    self._fast_path.learn(request, frame)
                elif request.api_key == _FETCH:
                    self._fast_path.fetches.learn(request, frame)
        self._on_ready(self)

    def _process_login(self, login: ConnectionLogin, now: float) -> None:
        """The same for a peer that has yet to log in, whose frames may be tokens without a header: small ones, one at a time."""
        self.frame_since, since = None, self.frame_since
        while self._login is login and self._start < self._end and self.wants_to_read and not self.closing:
            length = frame_length(self._buffer, self._start, self._end, limit=login.frame_bytes_max, least=0)
            if length is None or self._end - self._start < length + 4:
                self.frame_since = now if since is None else since
                break
            begin = self._start + 4
            self._start = begin + length
            since = None
            self._handle(login.read(self._view[begin : self._start], self.origin))
        self._on_ready(self)

    def _vet(self, length: int) -> bool:
        """Reject a large frame by its head, before all of it is received; False if too little has arrived to decide.

        Only records may be large: megabytes of names and numbers would be decoded into many times their size, on the loop."""
        head = self._view[self._start + 4 : self._end]
        if len(head) < 2:
            return False
        api_key = int.from_bytes(head[:2], "big", signed=True)
        if api_key != _PRODUCE:
            raise ProtocolError(f"a request of {length} bytes with api key {api_key} (logbus.control.request.max.bytes)")
        if len(head) < min(_HEADER_BYTES_MAX, length):
            return False
        request = read_request(head)
        return check_counts(request.body, request.version)

    def _make_room(self) -> None:
        """The buffer is full: move the rest to the front, or to a buffer of twice the size, so it never grows beyond twice what
        has arrived. The rest is the beginning of one frame; a frame too large for the buffer continues in a mapping."""
        byte_count, capacity = self._end - self._start, len(self._buffer)
        if capacity < _BUFFER_BYTES_MAX and (byte_count > capacity // 2 or capacity < _BUFFER_BYTES_EAGER):
            self._replace_buffer(capacity * 2, byte_count)
            return
        length = frame_length(self._buffer, self._start, self._end, limit=self._config.frame_bytes_max)
        if length is not None and length + 4 > _BUFFER_BYTES_MAX:
            self._large = LargeFrame(length, self._view[self._start + 4 : self._end])
            self._network.held_bytes += self._large.arrived
            self._start = self._end = 0
        else:
            self._view[:byte_count] = self._view[self._start : self._end]
            self._start, self._end = 0, byte_count

    def _replace_buffer(self, capacity: int, byte_count: int) -> None:
        other = bytearray(capacity)
        self._network.held_bytes += capacity - len(self._buffer)
        other[:byte_count] = self._view[self._start : self._end]
        self._buffer, self._view = other, memoryview(other)
        self._start, self._end = 0, byte_count

    def give_back(self) -> None:
        """Release a grown buffer that is empty. Between turns only."""
        if self._start == self._end and len(self._buffer) > _BUFFER_BYTES_FIRST:
            self._forget_bodies()
            self._replace_buffer(_BUFFER_BYTES_FIRST, 0)

    def _forget_bodies(self) -> None:
        """Requests that wait for their answers need only their header; a view of the body would keep the whole buffer alive."""
        self._slots = deque((request._replace(body=_NO_BODY), pending) for request, pending in self._slots)

    # -- answering -------------------------------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> None:
        self.has_asked = self._login is None
        if self._fast_path is not None:
            self._fast_path.pass_by()
        if self._slots and request.api_key != _PRODUCE:
            self._settle()
        if self._throttle is not None and self._throttle.is_active:
            began = self._throttle.monotonic()
            answer = self._dispatch(request)
            self._throttled_seconds = max(self._throttled_seconds, self._throttle.asked(request, began))
        else:
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
            elif pending.is_framed:
                self.output.extend(parts)
            else:
                self._queue(request, parts)
        self._on_ready(self)

    def _note_silent(self, pending: Pending) -> None:
        if pending.closes:
            self.closing = pending.closes
        elif self._throttled_seconds:
            self._mute()  # a Produce with acks=0

    def _mute(self) -> None:
        self.is_muted = True
        self._on_throttled(self, self._throttled_seconds)
        self._throttled_seconds = 0.0

    def unmute(self, now: float) -> None:
        """The time is over. A frame that has begun to arrive has as much time as a new one."""
        self.is_muted = False
        if self.frame_since is not None:
            self.frame_since = now
        self._on_ready(self)

    def _queue(self, request: Request, parts: Parts) -> None:
        if self._throttle is not None and self._throttle.is_active:
            parts, seconds = self._throttle.answered(request, parts)
            self._throttled_seconds = max(self._throttled_seconds, seconds)
            if self._throttled_seconds:
                parts = with_throttle_time(request, parts, self._throttled_seconds)
                self._mute()
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
            self.taken_at = now

    def count_output(self) -> None:
        """Update `held_bytes` with the output that the peer has not taken."""
        self._network.held_bytes += self.output.bytes_queued - self.output_held
        self.output_held = self.output.bytes_queued

    @property
    def held_bytes(self) -> int:
        """This connection's part of `NetworkCounters.held_bytes`."""
        large = 0 if self._large is None else self._large.arrived
        return len(self._buffer) - _BUFFER_BYTES_FIRST + large + self.output_held

    @property
    def stalled_since(self) -> float:
        """Since when the peer has neither finished its frame, nor taken its answers, nor let buffered requests be handled;
        infinity if nothing is in progress. Requests after a parked one came with the last read: nothing is read while parked."""
        taken_at = self.taken_at if self.output else math.inf
        if self.frame_since is not None:
            return min(taken_at, self.frame_since)
        return min(taken_at, self.received_at) if self._start < self._end else taken_at

    @property
    def last_active(self) -> float:
        return max(self.received_at, self.taken_at)

    @property
    def has_unread_requests(self) -> bool:
        return self._end > self._start

    @property
    def is_idle(self) -> bool:
        """True if no request is incomplete and no answer is owed."""
        return not self._slots and not self.output and self._start == self._end and self._large is None

    @property
    def waits_for_us(self) -> bool:
        """True while an answer is owed that is not ready yet: such a connection is not idle, however long it is silent."""
        return bool(self._slots) and not self.output

    @property
    def drains(self) -> bool:
        """Whether a stopping broker still has something to send: queued output, or an answer that a flush will complete."""
        return bool(self.output) or bool(self._slots and not self._slots[0][1].stops_reading)

    def close(self) -> None:
        """Drop the pipeline (waiting fetches leave the purgatory) and release what was not sent. Raises nothing: often something
        has already failed."""
        if self.session is not None:
            self.session.close()
        self._network.held_bytes -= self.held_bytes
        self.output_held = 0
        self._large = None
        slots, self._slots = self._slots, deque()
        for _, pending in slots:
            try:
                pending.cancel()
                for part in pending.parts or ():
                    if not isinstance(part, bytes):
                        part.release()
            except Exception:
                log_bug("cancelling a waiting request failed")
        try:
            self.output.close()
            self.sock.close()
        except OSError as error:
            logger.debug("%s: %s", self.peer, error)
