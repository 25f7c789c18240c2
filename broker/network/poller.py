"""Who is told when a descriptor is ready: epoll, and a table from descriptor to owner.

The selectors module would do the same and costs 2 us a turn. The server's loop reads `epoll` and `owners` directly. epoll
reports errors and resets whatever was asked for, also where nothing was.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from typing import Generic, TypeVar

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
PEER_END = select.EPOLLRDHUP  # the peer has ended its side; seen without reading what it sent before
RESET = select.EPOLLERR | select.EPOLLHUP  # never asked for, and always told

Owner = TypeVar("Owner")


class Poller(Generic[Owner]):
    """An owner is whatever the loop knows to serve, or a function to call."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.owners: dict[int, Owner | Callable[[], None]] = {}

    def register(self, descriptor: int, events: int, owner: Owner | Callable[[], None]) -> None:
        """Raises OSError: the kernel's table of what is watched may be full."""
        self.epoll.register(descriptor, events)
        self.owners[descriptor] = owner

    def modify(self, descriptor: int, events: int) -> None:
        """Raises OSError."""
        self.epoll.modify(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Before the descriptor is closed: its number may be another's soon. Raises nothing: what is closed, the kernel
        forgets."""
        self.owners.pop(descriptor, None)
        with contextlib.suppress(OSError, ValueError):
            self.epoll.unregister(descriptor)

    def rest(self, seconds: float) -> None:
        """Let time pass, whatever is ready."""
        select.poll().poll(seconds * 1000)

    def close(self) -> None:
        self.owners.clear()
        self.epoll.close()
