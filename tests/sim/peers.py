"""Connections to other brokers over the simulated network: `replication.peers.Peers` as `network/peer.py` offers it over sockets.

A connection is known to be good once a broker has answered ApiVersions on it. A lost connection is retried at once; a broker
that refuses, or does not answer, is retried after pauses. Events and answers come from `work` only, which the node calls in its
turns: whatever arrives while the process is stopped is delivered only when it continues.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from logbus_broker.clock import Clock
from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import read_response, request_frame
from logbus_broker.replication.interfaces import PeerEvents, PeerRequest, Then

from tests.sim.network import Network, SimSocket

CONNECT_SECONDS_MAX = 2.0
ANSWER_SECONDS_MAX = 10.0
PAUSE_FIRST, PAUSE_MAX = 0.05, 1.0
_HELLO = PeerRequest(int(ApiKey.API_VERSIONS), 0, b"")


class _Peer:
    """One broker: a connection, an attempt at one, or a time for the next attempt."""

    def __init__(self, broker: int, endpoint: Endpoint) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.sock: SimSocket | None = None
        self.attempt = 0  # the number of the newest: results of an older one are ignored
        self.is_reached = False
        self.inbox = bytearray()
        self.unsent: list[bytes] = []
        self.waiting: deque[tuple[int, PeerRequest, Then, float]] = deque()
        self.retry_at = -math.inf
        self.until = math.inf  # when the attempt is given up
        self.pause = PAUSE_FIRST
        self.sent = 0


class SimPeers:
    """See the module docstring. `wake` asks the node for a turn."""

    def __init__(self, me: str, network: Network, *, events: PeerEvents, clock: Clock, wake: Callable[[], None]) -> None:
        self.due = math.inf
        self._me = me
        self._network = network
        self._events = events
        self._clock = clock
        self._wake = wake
        self._peers: dict[int, _Peer] = {}
        self._arrived: list[Callable[[], None]] = []  # what `work` is to process
        self._is_closed = False

    # What replication calls

    def know(self, addresses: Mapping[int, Endpoint]) -> None:
        for broker, peer in list(self._peers.items()):
            if addresses.get(broker) != peer.endpoint:
                del self._peers[broker]
                self._answer_none(self._drop(peer))
        for broker, endpoint in addresses.items():
            if broker not in self._peers:
                self._peers[broker] = _Peer(broker, endpoint)
        self.due = -math.inf

    def is_reached(self, broker: int) -> bool:
        peer = self._peers.get(broker)
        return peer is not None and peer.is_reached

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        peer = self._peers.get(broker)
        if peer is None or not peer.is_reached:
            self._answer_none([then])
        else:
            self._request(peer, request, then)

    def work(self, now: float) -> None:
        arrived, self._arrived = self._arrived, []
        for handle in arrived:
            handle()
        for peer in list(self._peers.values()):
            if now >= peer.retry_at:
                self._connect(peer, now)
            elif now >= peer.until or (peer.waiting and now - peer.waiting[0][3] >= ANSWER_SECONDS_MAX):
                self._lost(peer)
        self.due = -math.inf if self._arrived else self._next(now)

    def close(self) -> None:
        """A clean shutdown of the process."""
        self._is_closed = True
        for peer in self._peers.values():
            self._drop(peer)

    # Connections

    def _next(self, now: float) -> float:
        answers = (peer.waiting[0][3] + ANSWER_SECONDS_MAX for peer in self._peers.values() if peer.waiting)
        return min([*(min(peer.retry_at, peer.until) for peer in self._peers.values()), *answers], default=math.inf)

    def _connect(self, peer: _Peer, now: float) -> None:
        peer.attempt += 1
        peer.retry_at, peer.until = math.inf, now + CONNECT_SECONDS_MAX
        self._network.connect(self._me, peer.endpoint.host, partial(self._later, self._connected, peer, peer.attempt))

    def _later(self, action: Callable[..., None], peer: _Peer, attempt: int, sock: SimSocket | None) -> None:
        """It arrives at the kernel now, and at the process with its next turn."""
        if self._is_closed:
            return
        self._arrived.append(lambda: action(peer, attempt, sock))
        self.due = -math.inf
        self._wake()

    def _connected(self, peer: _Peer, attempt: int, sock: SimSocket | None) -> None:
        if self._peers.get(peer.broker) is not peer or attempt != peer.attempt or peer.sock is not None:
            if sock is not None:
                sock.close()
        elif sock is None:
            self._rest(peer)
            self._events.refused(peer.broker)
        else:
            peer.sock = sock
            sock.owner = self
            self._request(peer, _HELLO, lambda body: self._greeted(peer, body))

    def _greeted(self, peer: _Peer, body: memoryview | None) -> None:
        if body is not None:
            peer.is_reached, peer.until, peer.pause = True, math.inf, PAUSE_FIRST
            self._events.reached(peer.broker)

    def _request(self, peer: _Peer, request: PeerRequest, then: Then) -> None:
        assert peer.sock is not None, "connected"
        peer.sent += 1
        peer.waiting.append((peer.sent, request, then, self._clock.monotonic()))
        peer.unsent.append(request_frame(request.api_key, request.version, peer.sent, self._me.encode(), request.body))
        self._transmit(peer, peer.sock)

    def _transmit(self, peer: _Peer, sock: SimSocket) -> None:
        try:
            while peer.unsent:
                sock.send(peer.unsent[0])
                del peer.unsent[0]
        except BlockingIOError:
            pass  # the socket reports when there is room
        except OSError:
            self.readable(sock)

    def readable(self, sock: SimSocket) -> None:
        for peer in self._peers.values():
            if peer.sock is sock:
                self._later(self._read, peer, peer.attempt, sock)

    def writable(self, sock: SimSocket) -> None:
        for peer in self._peers.values():
            if peer.sock is sock:
                self._transmit(peer, sock)

    def _read(self, peer: _Peer, attempt: int, sock: SimSocket | None) -> None:
        if sock is None or peer.sock is not sock:
            return
        if not sock.was_reset:
            peer.inbox += sock.take()
            while len(peer.inbox) >= 4 and len(peer.inbox) >= (size := 4 + int.from_bytes(peer.inbox[:4], "big")):
                frame = memoryview(bytes(peer.inbox[4:size]))
                del peer.inbox[:size]
                number, request, then, _ = peer.waiting.popleft()
                answered, body = read_response(frame, request.api_key, request.version)
                assert answered == number, "answers come in the order of their requests"
                then(body)
                if peer.sock is not sock:
                    return
        if sock.was_reset or sock.has_ended or sock.is_closed:
            self._lost(peer)

    def _lost(self, peer: _Peer) -> None:
        was_reached = peer.is_reached
        left = self._drop(peer)
        if was_reached:
            peer.retry_at = -math.inf
        else:
            self._rest(peer)
        for then in left:
            then(None)
        if was_reached:
            self._events.closed(peer.broker)

    def _rest(self, peer: _Peer) -> None:
        peer.attempt += 1
        peer.until, peer.retry_at = math.inf, self._clock.monotonic() + peer.pause
        peer.pause = min(peer.pause * 2, PAUSE_MAX)

    def _drop(self, peer: _Peer) -> list[Then]:
        sock, peer.sock, peer.is_reached, peer.until = peer.sock, None, False, math.inf
        peer.inbox.clear()
        left = [then for _, _, then, _ in peer.waiting]
        peer.waiting.clear()
        peer.unsent.clear()
        if sock is not None:
            sock.close()
        return left

    def _answer_none(self, waiting: list[Then]) -> None:
        self._arrived += [partial(then, None) for then in waiting]
        self.due = -math.inf
