"""Who is told when a descriptor is ready: epoll, and a table from descriptor to owner.

The selectors module would do the same and costs 2 us a turn. The server's loop reads `epoll` and `owners` directly.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Generic, TypeVar

READ, WRITE = select.EPOLLIN, select.EPOLLOUT

Owner = TypeVar("Owner")


class Poller(Generic[Owner]):
    """An owner is whatever the loop knows to serve, or a function to call."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.owners: dict[int, Owner | Callable[[], None]] = {}

    def register(self, descriptor: int, events: int, owner: Owner | Callable[[], None]) -> None:
        self.epoll.register(descriptor, events)
        self.owners[descriptor] = owner

    def modify(self, descriptor: int, events: int) -> None:
        self.epoll.modify(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Before the descriptor is closed: its number may be another's soon."""
        self.epoll.unregister(descriptor)
        del self.owners[descriptor]

    def close(self) -> None:
        self.owners.clear()
        self.epoll.close()
