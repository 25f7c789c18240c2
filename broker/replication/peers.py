"""What replication asks of the connections to other brokers: `network/peer.py` offers it over sockets, tests over a network of
their own.

There is one connection to each broker that is known, made and kept without being asked for: who is told at once that it closed,
and that the next one was refused, knows within milliseconds that a process has died, and need not wait for a session to expire.

Everything is called on the loop's thread. No call calls back from inside of itself: answers and events come from `work`, or when
the loop finds something on a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.coordination.image import Endpoint

Then = Callable[[memoryview | None], None]


class PeerRequest(NamedTuple):
    """A request without its header, which is the connection's."""

    api_key: int
    version: int
    body: bytes


class PeerEvents(Protocol):
    """What happens to connections."""

    def reached(self, broker: int) -> None:
        """There is a connection, and a broker has answered on it."""

    def closed(self, broker: int) -> None:
        """The connection is lost, and with it every answer that was still to come; another is tried at once."""

    def refused(self, broker: int) -> None:
        """Its machine says that nobody listens there: the process is gone. Said again with each attempt."""


class Peers(Protocol):
    """See the file's theory."""

    due: float  # when, on the monotonic clock, `work` has something to do

    def know(self, addresses: Mapping[int, Endpoint]) -> None:
        """These are the other brokers: a connection to each is wanted, and to nobody else. Another address of a broker that is
        known already is another process: its old connection is given up without an event."""

    def is_reached(self, broker: int) -> bool:
        """Whether requests to it have somewhere to go."""

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        """`then(body)` is called once with the answer, which may be kept; with None where there is, or comes, no connection that
        could bring it. Answers of one broker come in the order of their requests."""

    def work(self, now: float) -> None:
        """Send what is to be sent, end what waits too long, connect anew."""
