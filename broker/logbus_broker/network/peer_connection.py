"""One connection to another broker: requests out, answers in, in plain text or by TLS; and who this broker is at the other end.

Each answer has its own memory, a mapping if it is large, so the receiver may keep it and nothing is copied twice.

A login is a generator of requests, like any that one broker sends another. So it is the same on a new connection and on one whose
login expires soon (KIP-368), on which other requests are under way.
"""

from __future__ import annotations

import errno
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from logbus_broker.errors import ConfigError, ProtocolError, SaslAuthenticationFailed, UnsupportedSaslMechanism
from logbus_broker.network.buffers import LargeFrame, Output
from logbus_broker.network.certificates import client_context
from logbus_broker.network.poller import READ, WRITE
from logbus_broker.network.tls import TlsOutput, TlsStream
from logbus_broker.protocol import codec
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.framing import FRAME_LENGTH, read_response, request_frame
from logbus_broker.replication.interfaces import PeerRequest, Then
from logbus_broker.security import sasl
from logbus_broker.settings import BrokerConfig

_SEND_BYTES_MAX = 1 << 20
_BUFFER_BYTES = 256 * 1024  # a larger answer is received into a mapping
# An answer is no request (socket.request.max.bytes): a batch of a topic with large records is sent as a whole, however small the
# follower's own settings are. What is not Kafka's protocol is more than this, read as a length.
_ANSWER_BYTES_MAX = 1 << 30
_WAITING_MAX = 64  # unanswered requests on one connection: a follower has two
_NONCE_BYTES = 18
_LOGIN_VERSION = 1  # of SaslHandshake and SaslAuthenticate: the first that tells how long a login is valid


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


# -- who this broker is at the others --------------------------------------------------------------------------------------------

Login = Generator[PeerRequest, memoryview, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user that this broker is at the others. `new_nonce` returns a text that it never returned before."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    new_nonce: Callable[[], str]

    def log_in(self) -> Login:
        """The requests of a login, resumed with the answers' bodies; returns for how many ms it is valid, 0: for ever. Raises
        AuthenticationError with what the other broker says."""
        answer = yield from _ask(ApiKey.SASL_HANDSHAKE, mechanism=self.mechanism)
        if answer.error_code != ErrorCode.NONE:
            offered = ", ".join(answer.mechanisms)
            text = f"it does not offer sasl.mechanism.inter.broker.protocol={self.mechanism}: {offered}"
            raise UnsupportedSaslMechanism(text, reason="mechanism", user=self.user)
        messages = self._messages()
        message = next(messages)
        while True:
            answer = yield from _ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=message)
            if answer.error_code != ErrorCode.NONE:
                text = answer.error_message or f"error {answer.error_code}"
                raise SaslAuthenticationFailed(text, reason="refused", user=self.user)
            try:
                message = messages.send(answer.auth_bytes)
            except StopIteration:
                return int(answer.session_lifetime_ms)

    def _messages(self) -> Generator[bytes, bytes, None]:
        if self.mechanism == "PLAIN":
            yield f"\0{self.user}\0{self.password}".encode()
        else:
            yield from sasl.log_in(sasl.NAMES[self.mechanism], self.user, self.password, self.new_nonce())


def _ask(api_key: ApiKey, **values: Any) -> Generator[PeerRequest, memoryview, Any]:
    message = codec.request_class(api_key)(**values)
    body = yield PeerRequest(int(api_key), _LOGIN_VERSION, message.encode(version=_LOGIN_VERSION))
    return codec.decode_response(api_key, _LOGIN_VERSION, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecurity:
    """What the listener asks for on which brokers connect to each other. `context` returns that of TLS as it is now: certificates
    are renewed while a broker runs."""

    context: Callable[[], ssl.SSLContext] | None = None
    account: Account | None = None


OPEN = PeerSecurity()


def peer_security(config: BrokerConfig, passwords: Mapping[str, str]) -> PeerSecurity:
    """How to connect to the listener that brokers use among themselves; `passwords` are those of logbus.users.file. Raises
    ConfigError."""
    protocol, settings = config.protocol_of(config.inter_broker_listener), config.at_listener(config.inter_broker_listener)
    account = None
    if protocol.has_login:
        user = config.inter_broker_user
        if user not in passwords:
            raise ConfigError(f"logbus.inter.broker.user={user} has no line in logbus.users.file, which should have its password")
        new_nonce = partial(secrets.token_urlsafe, _NONCE_BYTES)
        mechanism = config.inter_broker_mechanism
        account = Account(mechanism=mechanism, user=user, password=passwords[user], new_nonce=new_nonce)
    return PeerSecurity(context=partial(client_context, settings) if protocol.has_tls else None, account=account)
