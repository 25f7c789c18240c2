"""epoll, and a table from descriptor to the owner to call when it is ready.

The selectors module would do the same and costs 2 us per turn. The server's loop reads `epoll` and `owners` directly. epoll
reports errors and resets whatever events were requested, even if none were.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from typing import Generic, TypeVar

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
PEER_END = select.EPOLLRDHUP  # the peer has shut down its side; reported without reading what it sent before
RESET = select.EPOLLERR | select.EPOLLHUP  # never requested, and always reported

Owner = TypeVar("Owner")


class Poller(Generic[Owner]):
    """An owner is an object that the loop can serve, or a function to call."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.owners: dict[int, Owner | Callable[[], None]] = {}

    def register(self, descriptor: int, events: int, owner: Owner | Callable[[], None]) -> None:
        """Raises OSError: the kernel's watch table may be full."""
        self.epoll.register(descriptor, events)
        self.owners[descriptor] = owner

    def modify(self, descriptor: int, events: int) -> None:
        """Raises OSError."""
        self.epoll.modify(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Call this before closing the descriptor: its number may be reused soon. Raises nothing: the kernel drops closed
        descriptors itself."""
        self.owners.pop(descriptor, None)
        with contextlib.suppress(OSError, ValueError):
            self.epoll.unregister(descriptor)

    def rest(self, seconds: float) -> None:
        """Sleep, whatever is ready."""
        select.poll().poll(seconds * 1000)

    def close(self) -> None:
        self.owners.clear()
        self.epoll.close()
