"""How a helper thread or a signal handler wakes the loop: one byte through a socket pair."""

from __future__ import annotations

import contextlib
import socket


class Wakeup:
    """`wake()` may be called from any thread; a full pipe already means that the loop will wake."""

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
