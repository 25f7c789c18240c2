"""One connection to another broker: requests out, answers in, in plain text or by TLS.

Each answer has its own memory, a mapping if it is large, so the receiver may keep it and nothing is copied twice.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections import deque
from typing import Any, NamedTuple

from logbus_broker.errors import ProtocolError
from logbus_broker.network.buffers import LargeFrame, Output
from logbus_broker.network.poller import READ, WRITE
from logbus_broker.network.tls import TlsOutput, TlsStream
from logbus_broker.protocol.framing import FRAME_LENGTH, read_response, request_frame
from logbus_broker.replication.interfaces import PeerRequest, Then

_SEND_BYTES_MAX = 1 << 20
_BUFFER_BYTES = 256 * 1024  # a larger answer is received into a mapping
# An answer is no request (socket.request.max.bytes): a batch of a topic with large records is sent as a whole, however small the
# follower's own settings are. What is not Kafka's protocol is more than this, read as a length.
_ANSWER_BYTES_MAX = 1 << 30
_WAITING_MAX = 64  # unanswered requests on one connection: a follower has two


class _Waiting(NamedTuple):
    """A request that is still unanswered."""

    correlation_id: int
    api_key: int
    version: int
    then: Then
    since: float


class PeerConnection:
    """One TCP connection: frames out, answers in. Any exception it raises ends it."""

    def __init__(self, sock: socket.socket, client_id: bytes) -> None:
        self.sock = sock
        self.tls: TlsStream | None = None
        self.is_open = False  # whether the connection is established, and encrypted if it is to be; nothing can be sent before
        self.output = Output()
        self.waiting: deque[_Waiting] = deque()
        self._source: Any = sock  # what is read from and written to
        self._client_id = client_id
        self._correlation_id = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._large: LargeFrame | None = None

    def request(self, request: PeerRequest, then: Then, now: float) -> None:
        assert len(self.waiting) < _WAITING_MAX, "more requests in flight than any caller sends"
        self._correlation_id += 1
        number = self._correlation_id & 0x7FFFFFFF
        self.waiting.append(_Waiting(number, request.api_key, request.version, then, now))
        self.output.append(request_frame(request.api_key, request.version, number, self._client_id, request.body))

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        secured = context.wrap_socket(self.sock, server_hostname=host, do_handshake_on_connect=False)
        self.sock, self._source, self.output = secured, TlsStream(secured), TlsOutput()
        self.tls = self._source

    @property
    def interest(self) -> int:
        """Which events to watch for."""
        wants_to_write = bool(self.output)
        if self.tls is not None:
            wants_to_write &= not self.tls.write_wants_read
            wants_to_write |= self.tls.read_wants_write
        return READ | WRITE if wants_to_write else READ

    def receive(self) -> None:
        """Read once and deliver the complete answers. Raises OSError, ProtocolError, TlsFailure."""
        try:
            if self._large is not None:
                count = self._large.receive(self._source)
            else:
                count = self._source.recv_into(self._view[self._end :])
                self._end += count
        except (BlockingIOError, InterruptedError):
            return
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        if self._large is None:
            self._take_frames()
        elif self._large.is_whole:
            frame, self._large = self._large.view, None
            self._answer(frame)

    def _take_frames(self) -> None:
        while self._large is None and self._end - self._start >= FRAME_LENGTH.size:
            (length,) = FRAME_LENGTH.unpack_from(self._buffer, self._start)
            if not FRAME_LENGTH.size <= length <= _ANSWER_BYTES_MAX:
                raise ProtocolError(f"an answer of {length} bytes")
            begin = self._start + FRAME_LENGTH.size
            if length > _BUFFER_BYTES - FRAME_LENGTH.size:
                self._large = LargeFrame(length, self._view[begin : self._end])
                self._start = self._end
            elif begin + length <= self._end:
                self._start = begin + length
                self._answer(memoryview(bytes(self._view[begin : self._start])))
            else:
                break
        left = self._end - self._start
        self._view[:left] = self._view[self._start : self._end]
        self._start, self._end = 0, left

    def _answer(self, frame: memoryview) -> None:
        if not self.waiting:
            raise ProtocolError("a response without a request")
        waiting = self.waiting.popleft()
        correlation_id, body = read_response(frame, waiting.api_key, waiting.version)
        if correlation_id != waiting.correlation_id:
            self.waiting.appendleft(waiting)
            raise ProtocolError(f"the answer to request {correlation_id} instead of {waiting.correlation_id}")
        waiting.then(body)

    def send(self) -> None:
        """Send what fits. Raises OSError, TlsFailure."""
        self.output.send(self._source, _SEND_BYTES_MAX)

    def close(self) -> list[Then]:
        """Close the connection; returns the callbacks of unanswered requests."""
        self.sock.close()
        self.output.close()
        left = [waiting.then for waiting in self.waiting]
        self.waiting.clear()
        return left
