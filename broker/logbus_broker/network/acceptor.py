"""A listening socket and its limits: connections overall, per address, and by the file descriptors that the log itself needs;
and the table of all connections, with what is closed when there is no room for a new one.

When descriptors run out, accepting pauses and new connections wait in the system's backlog: existing connections are still
served, and the loop does not spin on a socket that stays readable.

When `max.connections` are open, refusing the new connection would reserve the broker for the earliest clients, whatever they
do: clients that never send anything would lock everyone else out. So two kinds of connections give way:

- the one that has been open longest without a request, if it has had a second: a Kafka client asks for the API versions
  immediately;
- the longest idle one of the address with the most connections, if that address has at least twice as many as the new
  connection's address would then have. So an address gains nothing by reconnecting, and behind one gateway, where all clients
  share an address, the new connection is refused.

The cost of a new connection does not grow with the number of connections: those without a request are kept in order of arrival,
and the idle ones of the largest address are collected once a second and then used up.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from logbus_broker.errors import StartupError
from logbus_broker.health import NetworkCounters
from logbus_broker.network.connection import Connection
from logbus_broker.network.poller import READ, Poller
from logbus_broker.setting_parsers import Listener
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.network")

PAUSE_SECONDS = 0.5
_ACCEPTED_PER_TURN_MAX = 64
_BACKLOG = 511
_MAPPED = "::ffff:"  # before the IPv4 address of a peer on a socket for both families
# Linux reports errors of the new connection through accept (listed in accept(2)): the next connection may be fine.
_ERRORS_OF_ONE = frozenset(
    {errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}
    | {errno.ENONET, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM, errno.EPROTO}
)
_KEEPALIVE_IDLE_SECONDS = 300  # a peer that vanished silently is noticed within minutes, even while its fetch waits


def bind(listener: Listener, resolve: Callable[..., Sequence[Any]] = socket.getaddrinfo) -> socket.socket:
    """Returns a listening socket. StartupError, whose text says what to do, if the port is in use or the address is not ours."""
    sock: socket.socket | None = None
    try:
        family, address = _address_of(listener, resolve)
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not listener.is_every_interface)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"port {listener.port} on {listener.host or 'all interfaces'} is in use: stop what listens there, or choose "
                f"another for {listener}"
            ) from None
        raise StartupError(
            f"cannot listen on {listener}: {error.strerror or error}; name an address of this machine, or none for all of them"
        ) from None
    sock.setblocking(False)
    return sock


def _address_of(listener: Listener, resolve: Callable[..., Sequence[Any]]) -> tuple[int, Any]:
    """Address family and what `bind` takes. One IPv6 socket serves every interface for both families. Of the addresses of a name
    the first IPv4 one is taken, as by Kafka's JVM."""
    if not listener.host and socket.has_dualstack_ipv6():
        return socket.AF_INET6, ("::", listener.port)
    rows = resolve(listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(rows, key=lambda row: row[0] != socket.AF_INET)
    return family, address


class Acceptor:
    """Accepts as many connections as the limits allow. `make_room` closes another connection in favour of a new one from the
    given address, and returns whether it did. `per_ip_max` may change while the broker runs."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        listener: str = "",
        config: BrokerConfig,
        per_ip_max: Callable[[], int],
        network: NetworkCounters,
        descriptors_end: int,
        poller: Poller[Any],
        connection_table: ConnectionTable,
        make_room: Callable[[str], bool],
    ) -> None:
        self._listening = sock
        self.listener = listener
        self._config = config
        self._per_ip_max = per_ip_max
        self._network = network
        self._descriptors_end = descriptors_end  # connections have lower numbers: the others are the log's
        self._poller = poller
        self._connection_table = connection_table
        self._make_room = make_room
        self.again_at = -math.inf  # when to listen again, after a pause; infinity while listening

    def accept(self, now: float) -> Iterator[tuple[socket.socket, str]]:
        """Yields the connections within the limits, with their peers' addresses."""
        for _ in range(_ACCEPTED_PER_TURN_MAX):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _ERRORS_OF_ONE:
                    continue
                self._pause(now, "cannot accept connections: %s", error.strerror or error)
                return
            host = address[0].removeprefix(_MAPPED)
            if sock.fileno() >= self._descriptors_end:
                lower = self._below_the_end(sock, host)
                if lower is None:
                    self._pause(now, "refusing connections: the remaining file descriptors are reserved for the log")
                    return
                sock = lower
            if self._may_stay(host) and _prepare(sock):
                yield sock, f"{host}:{address[1]}"
            else:
                sock.close()

    def _below_the_end(self, sock: socket.socket, host: str) -> socket.socket | None:
        """The same connection with the descriptor of one that was closed for it; None if it had to be closed itself."""
        lower = sock.dup() if self._make_room(host) else None
        sock.close()
        if lower is not None and lower.fileno() >= self._descriptors_end:
            lower.close()
            return None
        return lower

    def _may_stay(self, host: str) -> bool:
        if self._connection_table.count_of(host) >= (per_ip_max := self._per_ip_max()):
            self._network.refused["max.connections.per.ip"] += 1
            logger.warning("refusing %s: it has max.connections.per.ip=%d open", host, per_ip_max)
        elif self._network.connections >= self._config.connections_max and not self._make_room(host):
            self._network.refused["max.connections"] += 1
            logger.warning("refusing %s: max.connections=%d are open", host, self._config.connections_max)
        else:
            return True
        return False

    def _pause(self, now: float, text: str, *details: object) -> None:
        self._network.refused["descriptors"] += 1
        logger.warning(text + "; raise the limit of open files (ulimit -n)", *details)
        self._poller.unregister(self._listening.fileno())
        self.again_at = now + PAUSE_SECONDS

    def resume(self, now: float, ready: Callable[[], None]) -> None:
        """Start listening, initially or once a pause is over; `ready` is called when a connection is waiting."""
        if now >= self.again_at:
            self._poller.register(self._listening.fileno(), READ, ready)
            self.again_at = math.inf

    def close(self) -> None:
        """Stop accepting."""
        if self.again_at == math.inf:
            self._poller.unregister(self._listening.fileno())
        self._listening.close()


def _prepare(sock: socket.socket) -> bool:
    """Set up a new connection's socket; False if the peer has already disconnected."""
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
    except OSError as error:
        logger.debug("a new connection is closed already: %s", error)
        return False
    return True


_GIVES_WAY_SECONDS = 1.0  # one that has been quiet for less may be about to send a request
_SCAN_SECONDS = 1.0
_CLEARLY_MORE = 2


class ConnectionTable:
    """All methods run on the loop's thread."""

    def __init__(self, network: NetworkCounters) -> None:
        self.connections: set[Connection] = set()
        self._network = network
        self._by_host: Counter[str] = Counter()
        self._silent: OrderedDict[Connection, None] = OrderedDict()  # oldest first; removed later, once it has sent a request
        self._largest = ""  # the address with the most connections at the last check
        self._idle: list[Connection] = []  # its idle connections at that time, the longest idle last
        self._scan_at = 0.0

    def add(self, connection: Connection) -> None:
        self.connections.add(connection)
        self._silent[connection] = None
        self._by_host[connection.host] += 1
        self._network.connections += 1

    def remove(self, connection: Connection) -> None:
        self.connections.remove(connection)
        self._silent.pop(connection, None)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        self._network.connections -= 1

    def count_of(self, host: str) -> int:
        """How many connections the address has."""
        return self._by_host[host]

    def silent_since(self, moment: float) -> Iterator[Connection]:
        """Connections opened before `moment` that have not sent a request yet; oldest first, each once."""
        while (connection := self._longest_silent()) is not None and connection.opened_at < moment:
            del self._silent[connection]
            yield connection

    def _longest_silent(self) -> Connection | None:
        while self._silent:
            connection = next(iter(self._silent))
            if not connection.has_asked:
                return connection
            del self._silent[connection]
        return None

    def gives_way(self, host: str, now: float) -> Connection | None:
        """The connection to close in favour of a new one from that address; None if the new one is refused."""
        connection = self._longest_silent()
        if connection is not None and connection.opened_at <= now - _GIVES_WAY_SECONDS:
            return connection
        if now >= self._scan_at:
            self._scan(now)
        if self._by_host[self._largest] < _CLEARLY_MORE * (self._by_host[host] + 1):
            return None
        while self._idle:
            connection = self._idle.pop()
            if connection in self.connections and self._is_idle(connection, now):
                return connection
        return None

    def _scan(self, now: float) -> None:
        self._scan_at = now + _SCAN_SECONDS
        self._largest = max(self._by_host, key=self._by_host.__getitem__, default="")
        self._idle = [
            connection for connection in self.connections if connection.host == self._largest and self._is_idle(connection, now)
        ]
        self._idle.sort(key=lambda connection: connection.last_active, reverse=True)

    @staticmethod
    def _is_idle(connection: Connection, now: float) -> bool:
        return connection.is_idle and connection.last_active <= now - _GIVES_WAY_SECONDS
