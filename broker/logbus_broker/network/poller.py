"""epoll, and a table from descriptor to the owner to call when it is ready; and how other threads wake the loop.

The selectors module would do the same and costs 2 us per turn. The server's loop reads `epoll` and `owners` directly. epoll
reports errors and resets whatever events were requested, even if none were.
"""

from __future__ import annotations

import contextlib
import select
import socket
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


class Wakeup:
    """How a pool thread or a signal handler wakes the loop: one byte through a socket pair. `wake()` may be called from any
    thread; a full pipe already means that the loop will wake."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._sender.send(b"\0")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._receiver.recv(4096)) == 4096:
                pass

    def wait(self, seconds: float) -> None:
        """Block until `wake` is called or `seconds` have passed; for use when the loop has ended."""
        self._receiver.settimeout(max(seconds, 0.001))
        with contextlib.suppress(TimeoutError):
            self._receiver.recv(4096)
        self._receiver.setblocking(False)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
