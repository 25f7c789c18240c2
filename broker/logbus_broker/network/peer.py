"""Connections to the other brokers, in the same loop as clients' connections: one to each broker, made and kept.

A connection begins with ApiVersions, like every client's: a broker closes a connection that stays silent, and the answer proves
that a broker is there, not only an open port. Before that come TLS and a login, if the others' listener asks for them
(`PeerSecurity`), and the login is repeated before it expires.

A lost connection is retried at once, because that attempt shows whether the process is gone (refused) or only the connection was
lost; after that, with growing pauses.

Refused means that all addresses of the broker's host name refused. A connection to a local port without a listener may connect to
itself (TCP's simultaneous open): that counts as refused, too.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any

from logbus_broker.clock import Clock
from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.errors import AuthenticationError, ConfigError, ProtocolError, TlsFailure
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.logs import log_bug
from logbus_broker.network.peer_connection import OPEN, Login, PeerConnection, PeerSecurity
from logbus_broker.network.poller import READ, WRITE, Poller
from logbus_broker.protocol.api import ApiKey
from logbus_broker.replication.interfaces import PeerEvents, PeerRequest, Then
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.peers")

Addresses = Sequence[tuple[int, tuple[Any, ...]]]  # address family and what `connect` takes
Resolve = Callable[[Endpoint, Callable[[Addresses], None]], None]

CONNECT_SECONDS_MAX = 2.0  # a dead machine answers nothing: its network may be back before TCP's third attempt
_RETRY_SECONDS_FIRST = 0.05
RETRY_SECONDS_MAX = 1.0
_LOOK_SECONDS = 1.0  # how often to look for overdue answers
# How much of a login's time is used before the next one. Kafka's clients use 85 to 95 % of it, and send nothing else meanwhile.
# Here each of three answers may be behind that to a fetch, which waits (replica.fetch.wait.max.ms).
_LOGIN_USED = 0.7
_LISTENS_SECONDS_MAX = 1.0
_HELLO = PeerRequest(int(ApiKey.API_VERSIONS), 0, b"")


def resolver(thread_pool: ThreadPool) -> Resolve:
    """Host names are resolved on a pool thread: a name server may take seconds."""

    def resolve(endpoint: Endpoint, then: Callable[[Addresses], None]) -> None:
        def found(result: Any, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("could not resolve %s: %s", endpoint.host, error)
            then([(family, address) for family, _, _, _, address in result or ()])

        thread_pool.submit(lambda: socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM), found)

    return resolve


def listens_at(endpoint: Endpoint) -> bool:
    """Whether a process listens there. It blocks, for a second at most."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=_LISTENS_SECONDS_MAX).close()
    except OSError:
        return False
    return True


class _Peer:
    """One broker: at most one link to it, or a time at which to retry."""

    __slots__ = (
        "addresses",
        "all_refused",
        "broker",
        "endpoint",
        "interest",
        "is_reached",
        "link",
        "login_at",
        "pause",
        "retry_at",
        "until",
    )

    def __init__(self, broker: int, endpoint: Endpoint) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.link: PeerConnection | None = None
        self.is_reached = False
        self.interest = 0
        self.addresses: Addresses = ()  # not tried yet in this attempt
        self.all_refused = False  # whether every address tried in this attempt refused
        self.pause = _RETRY_SECONDS_FIRST
        self.retry_at = -math.inf  # infinity while an attempt is in progress, or has succeeded
        self.until = math.inf  # when the attempt times out
        self.login_at = math.inf  # when to log in again, on the open connection


class PeerConnections:
    """Implements `replication.peers.Peers`. `jitter` returns numbers from 0 to 1: brokers that lost the same peer at the same
    moment should not all reconnect at the same moment."""

    def __init__(
        self,
        me: int,
        *,
        events: PeerEvents,
        poller: Poller[Any],
        clock: Clock,
        resolve: Resolve,
        jitter: Callable[[], float],
        config: BrokerConfig,
        security: PeerSecurity = OPEN,
    ) -> None:
        self.due = math.inf
        self._me = me
        self._events = events
        self._poller = poller
        self._clock = clock
        self._resolve = resolve
        self._jitter = jitter
        self._security = security
        self._answer_seconds_max = config.replica_socket_ms_max / 1000
        self._client_id = f"broker-{me}".encode()
        self._peers: dict[int, _Peer] = {}
        self._unsent: dict[_Peer, None] = {}  # peers with something to send
        self._unread: dict[_Peer, None] = {}  # peers with something to receive, although their sockets do not say so
        self._unanswerable: list[Then] = []
        self._look_at = math.inf

    # -- called by replication -------------------------------------------------------------------------------------------------

    def know(self, addresses: Mapping[int, Endpoint]) -> None:
        for broker, peer in list(self._peers.items()):
            if addresses.get(broker) != peer.endpoint:
                del self._peers[broker]
                self._unsent.pop(peer, None)
                self._unread.pop(peer, None)
                self._unanswerable += self._drop(peer)
        for broker, endpoint in addresses.items():
            if broker != self._me and broker not in self._peers:
                self._peers[broker] = _Peer(broker, endpoint)
        self._look_at = self._clock.monotonic() + _LOOK_SECONDS if self._peers else math.inf
        self.due = -math.inf

    def is_reached(self, broker: int) -> bool:
        peer = self._peers.get(broker)
        return peer is not None and peer.is_reached

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        peer = self._peers.get(broker)
        if peer is None or peer.link is None or not peer.is_reached:
            self._unanswerable.append(then)
        else:
            peer.link.request(request, then, self._clock.monotonic())
            self._unsent[peer] = None
        self.due = -math.inf

    def work(self, now: float) -> None:
        unanswerable, self._unanswerable = self._unanswerable, []
        for then in unanswerable:
            self._tell("a request that was not sent", partial(then, None))
        for peer in list(self._peers.values()):
            if now >= peer.retry_at:
                self._begin(peer)
            elif now >= peer.until:
                self._attempt_failed(peer, "connection attempt timed out")
            elif now >= peer.login_at:
                self._guard(peer, self._log_in)
        unread, self._unread = self._unread, {}
        for peer in unread:
            self._guard(peer, self._ready)
        unsent, self._unsent = self._unsent, {}
        for peer in unsent:
            self._guard(peer, self._send)
        if now >= self._look_at:
            self._look(now)
        self._set_due()

    # -- connecting ------------------------------------------------------------------------------------------------------------

    def _begin(self, peer: _Peer) -> None:
        peer.retry_at, peer.all_refused = math.inf, True
        try:
            family = socket.AF_INET6 if ip_address(peer.endpoint.host).version == 6 else socket.AF_INET
        except ValueError:
            self._resolve(peer.endpoint, lambda addresses: self._resolved(peer, addresses))
        else:
            self._resolved(peer, [(family, (peer.endpoint.host, peer.endpoint.port))])

    def _resolved(self, peer: _Peer, addresses: Addresses) -> None:
        if self._peers.get(peer.broker) is not peer or peer.link is not None or peer.retry_at != math.inf:
            return  # removed, or given up, while the name was being resolved
        peer.addresses = addresses
        if not addresses:
            peer.all_refused = False
        self._try_next(peer)

    def _try_next(self, peer: _Peer) -> None:
        """Try one address after another until a connection attempt is in progress."""
        while peer.addresses:
            (family, address), *peer.addresses = peer.addresses
            sock = None
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = sock.connect_ex(address)
                if code in (0, errno.EINPROGRESS):
                    self._poller.register(sock.fileno(), READ | WRITE, partial(self._guard, peer, self._ready))
                    peer.interest, peer.until = READ | WRITE, self._clock.monotonic() + CONNECT_SECONDS_MAX
                    self.due = min(self.due, peer.until)
                    peer.link = PeerConnection(sock, self._client_id)
                    return
            except OSError as error:  # out of descriptors, no such family: no evidence about the peer
                code = error.errno or errno.EIO
            if sock is not None:
                sock.close()
            peer.all_refused &= code == errno.ECONNREFUSED
        self._attempt_failed(peer, "refused" if peer.all_refused else "unreachable")
        if peer.all_refused:
            self._tell("a refused connection", partial(self._events.refused, peer.broker))

    def _attempt_failed(self, peer: _Peer, why: str) -> None:
        self._drop(peer)
        delay = peer.pause * (0.5 + 0.5 * self._jitter())
        peer.retry_at = self._clock.monotonic() + delay
        peer.pause = min(peer.pause * 2, RETRY_SECONDS_MAX)
        self.due = min(self.due, peer.retry_at)
        logger.debug("broker %d at %s:%d: %s", peer.broker, peer.endpoint.host, peer.endpoint.port, why)

    def _connected(self, peer: _Peer, link: PeerConnection) -> None:
        """The attempt on one address has succeeded or failed."""
        code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            try:
                if link.sock.getpeername() == link.sock.getsockname():
                    code = errno.ECONNREFUSED
            except OSError as error:
                if error.errno == errno.ENOTCONN:
                    return  # not yet: we were woken for something else
                code = error.errno or errno.EIO
        if code:
            peer.all_refused &= code == errno.ECONNREFUSED
            self._drop(peer)
            self._try_next(peer)
            return
        if self._security.context is not None:
            link.encrypt(self._security.context(), peer.endpoint.host)
        self._secure(peer, link)

    def _secure(self, peer: _Peer, link: PeerConnection) -> None:
        """Encrypt, then log in, then greet."""
        if link.tls is not None and not link.tls.handshake():
            self._watch(peer, link)
            return
        link.is_open = True
        if self._security.account is None:
            self._greet(peer, link)
        else:
            self._log_in(peer, link)

    def _log_in(self, peer: _Peer, link: PeerConnection) -> None:
        assert self._security.account is not None
        peer.login_at = math.inf
        self._continue_login(peer, link, self._security.account.log_in(), None)

    def _continue_login(self, peer: _Peer, link: PeerConnection, login: Login, body: memoryview | None) -> None:
        if peer.link is not link:
            return
        try:
            request = login.send(body) if body is not None else next(login)
        except StopIteration as done:
            if done.value:
                peer.login_at = self._clock.monotonic() + _LOGIN_USED * done.value / 1000
                self.due = min(self.due, peer.login_at)
            if not peer.is_reached:
                self._greet(peer, link)
        else:
            link.request(request, partial(self._continue_login, peer, link, login), self._clock.monotonic())
            self._send(peer, link)

    def _greet(self, peer: _Peer, link: PeerConnection) -> None:
        link.request(_HELLO, lambda body: self._greeted(peer, link, body), self._clock.monotonic())
        self._send(peer, link)

    def _greeted(self, peer: _Peer, link: PeerConnection, body: memoryview | None) -> None:
        if body is None or peer.link is not link:
            return
        if bytes(body[:2]) != b"\0\0":
            raise ProtocolError("it rejected ApiVersions")
        peer.is_reached, peer.until, peer.pause = True, math.inf, _RETRY_SECONDS_FIRST
        logger.debug("broker %d is reached at %s:%d", peer.broker, peer.endpoint.host, peer.endpoint.port)
        self._tell("an established connection", partial(self._events.reached, peer.broker))

    # -- a connection ----------------------------------------------------------------------------------------------------------

    def _ready(self, peer: _Peer, link: PeerConnection) -> None:
        if not link.is_open:
            step = self._connected if link.tls is None else self._secure
            step(peer, link)
            return
        link.receive()
        if link.tls is not None and link.tls.has_more and peer.link is link:
            self._unread[peer] = None
            self.due = -math.inf
        if peer.link is link and link.output:
            self._send(peer, link)

    def _send(self, peer: _Peer, link: PeerConnection) -> None:
        link.send()
        self._watch(peer, link)

    def _watch(self, peer: _Peer, link: PeerConnection) -> None:
        interest = link.interest
        if interest != peer.interest:
            self._poller.modify(link.sock.fileno(), interest)
            peer.interest = interest

    def _guard(self, peer: _Peer, action: Callable[[_Peer, PeerConnection], None]) -> None:
        """Any failure costs this connection, and no other."""
        link = peer.link
        if link is None:
            return
        try:
            action(peer, link)
        except (AuthenticationError, ConfigError, TlsFailure) as error:
            logger.error("cannot connect to broker %d at %s:%d: %s", peer.broker, peer.endpoint.host, peer.endpoint.port, error)
            self._lost(peer, link, str(error))
        except (OSError, ProtocolError) as error:
            self._lost(peer, link, str(error))
        except Exception as error:
            log_bug("handling a response of broker %d failed", peer.broker, error=error)
            self._lost(peer, link, "a defect")

    def _lost(self, peer: _Peer, link: PeerConnection, why: str) -> None:
        if peer.link is not link:
            return
        was_reached = peer.is_reached
        left = self._drop(peer)
        if was_reached:
            peer.retry_at = self.due = -math.inf
            logger.info("the connection to broker %d is lost: %s", peer.broker, why)
        else:
            self._attempt_failed(peer, why)
        for then in left:
            self._tell("a lost response", partial(then, None))
        if was_reached:
            self._tell("a lost connection", partial(self._events.closed, peer.broker))

    def _drop(self, peer: _Peer) -> list[Then]:
        link, peer.link, peer.is_reached, peer.interest = peer.link, None, False, 0
        peer.until = peer.login_at = math.inf
        if link is None:
            return []
        self._poller.unregister(link.sock.fileno())
        return link.close()

    # -- time ------------------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        self._look_at = now + _LOOK_SECONDS
        before = now - self._answer_seconds_max
        for peer in list(self._peers.values()):
            link = peer.link
            if link is not None and link.waiting and link.waiting[0].since < before:
                self._lost(peer, link, f"no answer for {self._answer_seconds_max:g} s (replica.socket.timeout.ms)")

    def _set_due(self) -> None:
        if self._unanswerable or self._unsent or self._unread:
            self.due = -math.inf
        else:
            self.due = min((min(peer.retry_at, peer.until, peer.login_at) for peer in self._peers.values()), default=math.inf)
            self.due = min(self.due, self._look_at)

    def _tell(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log_bug("the callback for %s failed", what)
