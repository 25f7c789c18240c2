"""The selector loop: accept, read, end the turn, send, expire. One thread owns all state.

A turn reads every readable connection once, then calls `end_turn` (which writes each partition's staged batches with one
write and completes what that answers), then sends. Flushes and searches run beside the loop and come back through the wake-up
pipe.

Hot path: epoll is used directly, without the selectors module, which costs 2 us a turn.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections.abc import Callable
from typing import Protocol

from broker.clock import Clock
from broker.config import BrokerConfig, Listener
from broker.errors import ProtocolError, StartupError
from broker.network.connection import Connection, Dispatch
from broker.network.output import ShortFile
from broker.network.wakeup import Wakeup

logger = logging.getLogger("broker.network")

_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_SWEEP_SECONDS = 1.0  # how often idle and slow connections are looked for
_LOG_LINES_PER_SWEEP = 5  # complaints about peers, so that a hostile one cannot fill the disk
_ACCEPT_PAUSE_SECONDS = 0.5  # after running out of file descriptors


class Turn(Protocol):
    """What the loop calls between reading and sending."""

    def end_turn(self) -> None: ...

    def answer_staged(self) -> None: ...

    def next_deadline(self) -> float: ...

    def drain_helpers(self) -> None: ...


def bind(listener: Listener) -> socket.socket:
    """A listening socket; StartupError says what to do when the port is taken or the address is not ours."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((listener.host, listener.port))
        sock.listen(511)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"port {listener.port} on {listener.host or 'all interfaces'} is in use: stop what listens there, or choose "
                f"another with --override listeners=PLAINTEXT://{listener.host}:PORT"
            ) from None
        raise StartupError(f"cannot listen on {listener}: {error.strerror or error}") from None
    sock.setblocking(False)
    return sock


class Server:
    """Owns the listening socket and every connection."""

    def __init__(
        self, sock: socket.socket, *, dispatch: Dispatch, turn: Turn, config: BrokerConfig, clock: Clock, wakeup: Wakeup
    ) -> None:
        self._listening = sock
        self._dispatch = dispatch
        self._turn = turn
        self._config = config
        self._clock = clock
        self._wakeup = wakeup
        self._epoll = select.epoll()
        self._owners: dict[int, Connection | Callable[[], None]] = {sock.fileno(): self._accept, wakeup.fileno(): wakeup.drain}
        self._epoll.register(sock, _READ)
        self._epoll.register(wakeup, _READ)
        self._connections: set[Connection] = set()
        self._ready: set[Connection] = set()
        self._next_sweep = 0.0
        self._now = clock.monotonic()  # read once a turn
        self._accept_again_at: float | None = None
        self._log_lines_left = _LOG_LINES_PER_SWEEP
        self.stopping = False

    def run(self) -> None:
        """Serve until `stop`; then every answer that is ready is still sent."""
        owners = self._owners
        while not self.stopping:
            ready = self._epoll.poll(self._timeout())
            self._now = self._clock.monotonic()
            for descriptor, events in ready:
                owner = owners[descriptor]
                if isinstance(owner, Connection):
                    self._serve(owner, events)
                else:
                    owner()
            self._end_turn()
        self._end_turn()
        for connection in list(self._connections):
            self._close(connection, None)
        self._epoll.close()

    def stop(self) -> None:
        """End after this turn; safe in a signal handler."""
        self.stopping = True
        self._wakeup.wake()

    def _timeout(self) -> float:
        until = min(self._turn.next_deadline(), self._next_sweep)
        return max(until - self._clock.monotonic(), 0.0)

    # -- events ----------------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            if len(self._connections) >= self._config.connections_max:
                self._complain(f"refusing {address[0]}: {self._config.connections_max} connections are open (max.connections)")
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = f"{address[0]}:{address[1]}"
            connection = Connection(
                sock, peer, dispatch=self._dispatch, config=self._config, now=self._now, on_ready=self._mark_ready
            )
            self._connections.add(connection)
            self._watch(connection, _READ)

    def _mark_ready(self, connection: Connection) -> None:
        self._ready.add(connection)

    def _pause_accepting(self, error: OSError) -> None:
        """Out of descriptors: those already connected are served on, new ones wait in the backlog."""
        self._complain(f"cannot accept: {error.strerror}; raise the open-files limit (ulimit -n)")
        self._epoll.unregister(self._listening)
        self._accept_again_at = self._clock.monotonic() + _ACCEPT_PAUSE_SECONDS
        self._next_sweep = min(self._next_sweep, self._accept_again_at)

    def _serve(self, connection: Connection, events: int) -> None:
        # An error or the peer's end comes as neither: whichever of the two is waited for finds out.
        if events & ~_WRITE and connection.interest & _READ:
            self._guard(connection, connection.receive)
        if events & ~_READ or connection.closing:
            self._ready.add(connection)

    def _guard(self, connection: Connection, action: Callable[[float], None]) -> None:
        """Whatever one peer does ends at most its own connection."""
        try:
            action(self._now)
        except ProtocolError as error:
            connection.closing = str(error)
            self._complain(f"closing {connection.peer}: {error}")
        except ShortFile as error:
            connection.closing = str(error)
            logger.warning("closing %s: a log segment ended while it was being sent: %s", connection.peer, error)
        except OSError as error:
            connection.closing = error.strerror or str(error)
        except Exception:
            connection.closing = "internal error"
            logger.exception("closing %s: a request could not be handled; this is a defect of the broker", connection.peer)
        if connection.closing:
            self._ready.add(connection)

    # -- the end of a turn -----------------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        self._turn.drain_helpers()
        self._turn.end_turn()
        while self._ready:  # an answer may let pipelined requests go on that are already in a buffer; no socket is read here
            ready, self._ready = self._ready, set()
            for connection in ready:
                self._finish(connection)
            self._turn.answer_staged()
        if self._now >= self._next_sweep:
            self._sweep(self._now)

    def _finish(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        if connection.output:
            self._guard(connection, connection.send)
        if connection.closing:
            self._close(connection, connection.closing)
            return
        if connection.has_unread_requests and connection.wants_to_read:
            self._guard(connection, connection.process)
        wanted = (_READ if connection.wants_to_read else 0) | (_WRITE if connection.output else 0)
        if wanted != connection.interest:
            self._watch(connection, wanted)

    def _watch(self, connection: Connection, wanted: int) -> None:
        descriptor = connection.sock.fileno()
        if connection.interest and wanted:
            self._epoll.modify(descriptor, wanted)
        elif wanted:
            self._epoll.register(descriptor, wanted)
            self._owners[descriptor] = connection
        elif connection.interest:
            self._forget(descriptor)
        connection.interest = wanted

    def _forget(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        del self._owners[descriptor]

    def _close(self, connection: Connection, why: str | None) -> None:
        if connection.interest:
            self._forget(connection.sock.fileno())
        self._connections.discard(connection)
        self._ready.discard(connection)
        connection.close()
        logger.debug("%s: %s", connection.peer, why)

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + _SWEEP_SECONDS
        self._log_lines_left = _LOG_LINES_PER_SWEEP
        if self._accept_again_at is not None and now >= self._accept_again_at:
            self._accept_again_at = None
            self._epoll.register(self._listening, _READ)
        idle_before = now - self._config.connections_idle_ms_max / 1000
        slow_before = now - self._config.frame_read_ms_max / 1000
        for connection in [c for c in self._connections if c.last_active < idle_before and not c.waits_for_us]:
            self._close(connection, "idle")
        for connection in [c for c in self._connections if c.frame_since is not None and c.frame_since < slow_before]:
            self._complain(f"closing {connection.peer}: a frame did not arrive within {self._config.frame_read_ms_max} ms")
            self._close(connection, "slow frame")

    def _complain(self, text: str) -> None:
        if self._log_lines_left > 0:
            self._log_lines_left -= 1
            logger.warning("%s", text)
