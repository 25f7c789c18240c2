"""All connections, and which of them is closed when there is no room for a new one.

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

from collections import Counter, OrderedDict
from collections.abc import Iterator

from broker.counters import NetworkCounters
from broker.network.connection import Connection

_GIVES_WAY_SECONDS = 1.0  # one that has been quiet for less may be about to send a request
_SCAN_SECONDS = 1.0
_CLEARLY_MORE = 2


class ConnectionTable:
    """All methods run on the loop's thread."""

    def __init__(self, network: NetworkCounters) -> None:
        self.connections: set[Connection] = set()
        self._network = network
        self._by_host: Counter[str] = Counter()
        self._silent: OrderedDict[Connection, None] = (
            OrderedDict()
        )  # oldest first; one that has sent a request is removed when encountered
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
