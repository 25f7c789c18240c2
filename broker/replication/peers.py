"""What replication needs of the connections to other brokers: `network/peer.py` implements it over sockets, tests over a network
of their own.

There is one connection to each known broker, made and kept open without being requested: a connection that closes, followed by
one that is refused, shows within milliseconds that a process has died, without waiting for a session to expire.

Everything is called on the loop's thread. No method calls back before it has returned: answers and events come from `work`, or
when the loop finds something on a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.coordination.image import Endpoint

Then = Callable[[memoryview | None], None]


class PeerRequest(NamedTuple):
    """A request without its header, which the connection adds."""

    api_key: int
    version: int
    body: bytes


class PeerEvents(Protocol):
    """What happens to connections."""

    def reached(self, broker: int) -> None:
        """There is a connection, and a broker has answered on it."""

    def closed(self, broker: int) -> None:
        """The connection is lost, and with it every outstanding answer; another connection is tried at once."""

    def refused(self, broker: int) -> None:
        """Its machine refused the connection: the process is gone. Called again for each attempt."""


class Peers(Protocol):
    """See the module docstring."""

    due: float  # when, on the monotonic clock, `work` has something to do

    def know(self, addresses: Mapping[int, Endpoint]) -> None:
        """These are the other brokers: a connection to each is wanted, and no others. A new address for a known broker means
        another process: its old connection is dropped without an event."""

    def is_reached(self, broker: int) -> bool:
        """Whether there is a connection to it that takes requests."""

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        """`then(body)` is called once with the answer, which may be kept; with None if there is no connection, or it is lost
        before the answer. Answers of one broker arrive in the order of their requests."""

    def work(self, now: float) -> None:
        """Send what is queued, end what has waited too long, reconnect."""
