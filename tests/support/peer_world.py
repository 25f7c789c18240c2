"""Connections of one broker to others over real sockets, in a loop turned by the test, with scripted brokers at the other end."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.errors import SaslAuthenticationFailed
from logbus_broker.network.peer import Addresses, PeerConnections
from logbus_broker.network.peer_connection import OPEN, PeerSecurity
from logbus_broker.network.poller import Poller
from logbus_broker.protocol import codec
from logbus_broker.protocol.api import ApiKey
from logbus_broker.replication.interfaces import PeerRequest
from logbus_broker.security import sasl
from logbus_broker.security.state import SecurityState
from logbus_broker.settings import BrokerConfig

from tests.support.manual_clock import ManualClock

HELLO = 18
LOGIN_VERSION = 1


class ScriptedPeer:
    """A listening socket; the test accepts, reads requests and answers them as it wants. With a `context` it speaks TLS."""

    def __init__(self, *, is_listening: bool = True, context: ssl.SSLContext | None = None) -> None:
        """If it does not listen, it still occupies its port, where connections are refused."""
        self._context = context
        self._is_encrypted = context is None
        self._listening = socket.socket()
        self._listening.settimeout(PATIENCE_SECONDS)
        self._listening.bind(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.sock: socket.socket | None = None
        if is_listening:
            self.listen()

    def listen(self) -> None:
        self._listening.listen()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=self.port)

    def is_greeted(self) -> bool:
        """Whether a client has connected and sent something, which stays unread."""
        if self.sock is None and _is_readable(self._listening):
            self.sock, _ = self._listening.accept()
            self.sock.settimeout(PATIENCE_SECONDS)
            if self._context is not None:
                self.sock.setblocking(False)
                self.sock = self._context.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
                self._is_encrypted = False
        if isinstance(self.sock, ssl.SSLSocket) and not self._is_encrypted:
            try:
                self.sock.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError:  # the client did not like the certificate
                self.hang_up()
                return False
            self.sock.settimeout(PATIENCE_SECONDS)
            self._is_encrypted = True
        return self.sock is not None and _is_readable(self.sock)

    def read(self) -> tuple[int, int, int, bytes]:
        """API key, version, correlation id, and everything after the client id."""
        (length,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(length)
        api_key, version, correlation_id, name = struct.unpack_from(">hhih", frame)
        return api_key, version, correlation_id, frame[10 + name :]

    def answer(self, correlation_id: int, body: bytes) -> None:
        assert self.sock is not None
        self.sock.sendall(struct.pack(">ii", len(body) + 4, correlation_id) + body)

    def answer_greeting(self) -> None:
        api_key, _, correlation_id, _ = self.read()
        assert api_key == HELLO
        self.answer(correlation_id, b"\0\0\0\0\0\0")

    def read_message(self, api_key: int) -> tuple[int, Any]:
        """A request of a login: its correlation id, and what it says."""
        asked, version, correlation_id, body = self.read()
        assert (asked, version) == (api_key, LOGIN_VERSION)
        return correlation_id, codec.decode_request(api_key, version, memoryview(body))

    def answer_message(self, correlation_id: int, api_key: int, **values: Any) -> None:
        self.answer(correlation_id, codec.response_class(api_key)(**values).encode(version=LOGIN_VERSION))

    def hang_up(self) -> None:
        assert self.sock is not None
        self.sock.close()
        self.sock = None

    def die(self) -> None:
        """As a killed process: the port no longer listens."""
        self._listening.close()
        if self.sock is not None:
            self.sock.close()

    def _exactly(self, count: int) -> bytes:
        assert self.sock is not None
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


class PeerWorld:
    """Broker 1. `events` records what happens to its connections, in order."""

    def __init__(self, security: PeerSecurity = OPEN, **settings: Any) -> None:
        self.clock = ManualClock()
        self.poller: Poller[Any] = Poller()
        self.events: list[tuple[str, int]] = []
        self.answers: list[bytes | None] = []
        self.looked_up: list[tuple[Endpoint, Callable[[Addresses], None]]] = []
        self.peers = PeerConnections(
            1,
            events=self,
            poller=self.poller,
            clock=self.clock,
            resolve=lambda endpoint, then: self.looked_up.append((endpoint, then)),
            jitter=lambda: 1.0,
            config=BrokerConfig(**settings),
            security=security,
        )

    def reached(self, broker: int) -> None:
        self.events.append(("reached", broker))

    def closed(self, broker: int) -> None:
        self.events.append(("closed", broker))

    def refused(self, broker: int) -> None:
        self.events.append(("refused", broker))

    def send(self, broker: int, body: bytes, api_key: int = 1, version: int = 4) -> None:
        def then(answer: memoryview | None) -> None:
            self.answers.append(None if answer is None else bytes(answer))

        self.peers.send(broker, PeerRequest(api_key, version, body), then)

    def turn(self, seconds: float = 0.0) -> None:
        """One turn of a loop."""
        for descriptor, _ in self.poller.epoll.poll(seconds):
            owner = self.poller.owners.get(descriptor)
            if owner is not None:
                owner()
        now = self.clock.monotonic()
        if now >= self.peers.due:
            self.peers.work(now)

    def until(self, holds: Callable[[], bool]) -> None:
        """Run turns until it holds; the clock does not move."""

        def turned() -> bool:
            if holds():
                return True
            self.turn(0.005)
            return False

        wait_until(turned, what="what the turns lead to", poll_seconds=0)

    def reach(self, peer: ScriptedPeer, broker: int = 2) -> None:
        """Connect to a peer and complete the greeting."""
        self.peers.know({broker: peer.endpoint})
        self.reach_known(peer, broker)

    def reach_known(self, peer: ScriptedPeer, broker: int = 2) -> None:
        """The same for a known peer; each step waits, because the kernel takes some time for it."""
        self.until(peer.is_greeted)
        peer.answer_greeting()
        self.until(lambda: self.peers.is_reached(broker))

    def log_in(self, peer: ScriptedPeer, state: SecurityState, lifetime_ms: int = 0) -> None:
        """Let it log in at a peer that has these users; SaslAuthenticationFailed if the peer refuses it."""
        self.until(peer.is_greeted)
        correlation_id, handshake = peer.read_message(ApiKey.SASL_HANDSHAKE)
        peer.answer_message(correlation_id, ApiKey.SASL_HANDSHAKE, error_code=0, mechanisms=[handshake.mechanism])
        self.until(peer.is_greeted)
        correlation_id, message = peer.read_message(ApiKey.SASL_AUTHENTICATE)
        users = sasl.Users(lambda: state, b"")
        server = sasl.scram_exchange(sasl.NAMES[handshake.mechanism], users, lambda: "server", message.auth_bytes)
        answer: dict[str, Any] = {"error_code": 0, "error_message": None, "auth_bytes": next(server), "session_lifetime_ms": 0}
        peer.answer_message(correlation_id, ApiKey.SASL_AUTHENTICATE, **answer)
        self.until(peer.is_greeted)
        correlation_id, message = peer.read_message(ApiKey.SASL_AUTHENTICATE)
        try:
            server.send(message.auth_bytes)
        except StopIteration as done:
            answer |= {"auth_bytes": done.value.last, "session_lifetime_ms": lifetime_ms}
        except SaslAuthenticationFailed as refusal:
            answer |= {"error_code": 58, "error_message": str(refusal), "auth_bytes": b""}
        peer.answer_message(correlation_id, ApiKey.SASL_AUTHENTICATE, **answer)
        self.turn(PATIENCE_SECONDS)  # until it has arrived

    def close(self) -> None:
        self.peers.know({})
        self.poller.close()


def _is_readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])
