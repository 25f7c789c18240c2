"""The loop: accept, read, end the turn, send, expire. One thread owns all state.

A turn reads every readable connection once, then calls `end_turn` (which writes each partition's staged batches with one
write and completes what that answers), then sends. Flushes and searches run beside the loop and come back through the wake-up
pipe. Whatever one peer does ends at most its own connection; what all of them make the broker hold together is bounded by
closing those who stall longest.

Hot path: epoll is used directly, without the selectors module, which costs 2 us a turn.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Protocol

from broker.clock import Clock
from broker.config import BrokerConfig
from broker.counters import NetworkCounters
from broker.errors import ProtocolError
from broker.network.acceptor import Acceptor
from broker.network.connection import Connection, Dispatch
from broker.network.http import HttpEndpoint
from broker.network.output import ShortFile
from broker.network.poller import READ, WRITE, Poller
from broker.network.wakeup import Wakeup
from broker.storage.kernel_sync import KernelSync

logger = logging.getLogger("broker.network")

_SWEEP_SECONDS = 1.0  # how often idle and slow connections are looked for
_BUFFER_IDLE_SECONDS = 5.0  # a grown buffer that stays empty this long is given back
_ROUNDS_PER_TURN_MAX = 4  # how often a turn goes on with requests that lie in buffers already: others wait meanwhile
_DRAIN_SECONDS = 3.0  # how long a stopping broker waits for flushes and for peers to take their answers


class Turn(Protocol):
    """What the loop calls between reading and sending."""

    def end_turn(self) -> None: ...

    def answer_staged(self) -> None: ...

    def next_deadline(self) -> float: ...

    def drain_helpers(self) -> None: ...


class Server:
    """Owns the listening socket and every connection. `each_sweep` is called about once a second."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        dispatch: Dispatch,
        turn: Turn,
        config: BrokerConfig,
        clock: Clock,
        wakeup: Wakeup,
        kernel: KernelSync | None = None,
        network: NetworkCounters,
        descriptors_max: int,
        endpoint: HttpEndpoint | None = None,
        each_sweep: Callable[[], None] = lambda: None,
    ) -> None:
        self._dispatch = dispatch
        self._turn = turn
        self._config = config
        self._clock = clock
        self._wakeup = wakeup
        self._network = network
        self._endpoint = endpoint
        self._each_sweep = each_sweep
        self._poller: Poller[Connection] = Poller()
        self._acceptor = Acceptor(sock, config=config, network=network, descriptors_max=descriptors_max, poller=self._poller)
        self._connections: set[Connection] = set()
        self._ready: set[Connection] = set()
        self._next_sweep = 0.0
        self._now = clock.monotonic()  # read once a turn
        self.stopping = False
        self._poller.register(wakeup.fileno(), READ, wakeup.drain)
        if kernel is not None:
            self._poller.register(kernel.fileno(), READ, kernel.collect)
        self._acceptor.resume(self._now, self._accept)
        if endpoint is not None:
            endpoint.attach(self._poller, lambda: self._now)

    def run(self) -> None:
        """Serve until `stop`; then what is answered, or will be by a flush under way, is still sent."""
        while not self.stopping:
            self._turn_once(self._timeout())
        self._drain()
        for connection in list(self._connections):
            self._close(connection, "shutdown")
        self._poller.close()

    def stop(self) -> None:
        """End after this turn; safe in a signal handler."""
        self.stopping = True
        self._wakeup.wake()

    def _turn_once(self, timeout: float) -> None:
        ready = self._poller.epoll.poll(timeout)
        self._now = self._clock.monotonic()
        owners = self._poller.owners
        for descriptor, events in ready:
            owner = owners[descriptor]
            if isinstance(owner, Connection):
                self._serve(owner, events)
            else:
                owner()
        self._end_turn()

    def _timeout(self) -> float:
        """How long there is nothing to do. Called once a turn, so the loop's working time is read off here as well."""
        now = self._clock.monotonic()
        self._network.busy_seconds += now - self._now
        if self._ready:
            return 0.0
        return max(min(self._turn.next_deadline(), self._next_sweep) - now, 0.0)

    def _drain(self) -> None:
        """Nobody new, nothing more read."""
        until = self._clock.monotonic() + _DRAIN_SECONDS
        self._acceptor.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._end_turn()
        for connection in list(self._connections):
            self._watch(connection, WRITE if connection.output else 0)
        while self._now < until and any(connection.drains for connection in self._connections):
            self._turn_once(min(self._timeout(), until - self._now))

    # -- events ----------------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for sock, peer in self._acceptor.accept(self._now):
            connection = Connection(
                sock,
                peer,
                dispatch=self._dispatch,
                config=self._config,
                now=self._now,
                on_ready=self._ready.add,
                network=self._network,
            )
            self._connections.add(connection)
            self._watch(connection, READ)
        self._next_sweep = min(self._next_sweep, self._acceptor.resumes_at)

    def _serve(self, connection: Connection, events: int) -> None:
        # An error or the peer's end comes as neither: whichever of the two is waited for finds out.
        if events & ~WRITE and connection.interest & READ:
            self._guard(connection, connection.receive)
        if events & ~READ or connection.closing:
            self._ready.add(connection)

    def _guard(self, connection: Connection, action: Callable[[float], None]) -> None:
        """Whatever one peer does ends at most its own connection."""
        try:
            action(self._now)
        except ProtocolError as error:
            connection.closing = "protocol"
            logger.warning("closing a connection that does not speak the protocol: %s", error, extra={"peer": connection.peer})
        except ShortFile as error:
            connection.closing = "short_file"
            logger.warning("a log segment ended while it was being sent: %s", error, extra={"peer": connection.peer})
        except OSError as error:
            connection.closing = "network"
            logger.debug("%s: %s", connection.peer, error)
        except Exception:
            connection.closing = "defect"
            logger.exception("a request could not be handled; this is a defect of the broker", extra={"peer": connection.peer})
        if connection.closing:
            self._ready.add(connection)

    # -- the end of a turn -----------------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        self._turn.drain_helpers()
        self._turn.end_turn()
        for _ in range(_ROUNDS_PER_TURN_MAX):  # an answer may let requests go on that are in a buffer; no socket is read here
            if not self._ready:
                break
            ready = list(self._ready)
            self._ready.clear()
            for connection in ready:
                self._finish(connection)
            self._turn.answer_staged()
        if self._network.held_bytes > self._config.held_bytes_max:
            self._relieve()
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
        reads = connection.wants_to_read and not self.stopping
        if connection.has_unread_requests and reads:
            self._guard(connection, connection.process)
            reads = connection.wants_to_read
        wanted = (READ if reads else 0) | (WRITE if connection.output else 0)
        if wanted != connection.interest:
            self._watch(connection, wanted)
        if connection.output_held != connection.output.bytes_queued:
            connection.count_output()

    def _watch(self, connection: Connection, wanted: int) -> None:
        descriptor = connection.sock.fileno()
        if connection.interest and wanted:
            self._poller.modify(descriptor, wanted)
        elif wanted:
            self._poller.register(descriptor, wanted, connection)
        elif connection.interest:
            self._poller.unregister(descriptor)
        connection.interest = wanted

    def _close(self, connection: Connection, reason: str) -> None:
        if connection.interest:
            self._poller.unregister(connection.sock.fileno())
        self._connections.discard(connection)
        self._ready.discard(connection)
        self._acceptor.left(connection.host)
        self._network.closed[reason] += 1
        connection.close()
        logger.debug("%s: closed (%s)", connection.peer, reason)

    # -- limits ----------------------------------------------------------------------------------------------------------------

    def _relieve(self) -> None:
        """Too much is held: give back what is empty, then close whoever stalls longest, until it fits."""
        for connection in self._connections:
            connection.give_back()
        stalled = sorted((c for c in self._connections if c.held_bytes), key=lambda connection: connection.stalled_since)
        for connection in stalled:
            if self._network.held_bytes <= self._config.held_bytes_max:
                return
            self._complain(
                connection,
                "memory",
                "closing who stalls longest: queued.max.request.bytes=%d are held",
                self._config.held_bytes_max,
            )

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + _SWEEP_SECONDS
        if self._acceptor.resumes_at <= now:
            self._acceptor.resume(now, self._accept)
        if self._endpoint is not None:
            self._endpoint.sweep(now)
        self._each_sweep()
        config = self._config
        idle_before = now - config.connections_idle_ms_max / 1000
        slow_before = now - config.frame_read_ms_max / 1000
        for connection in list(self._connections):
            if connection.frame_since is not None and connection.frame_since < slow_before:
                self._complain(connection, "slow_frame", "closing: a frame took longer than %d ms", config.frame_read_ms_max)
            elif connection.last_active < idle_before and not connection.waits_for_us:
                self._close(connection, "idle")
            elif connection.last_active < now - _BUFFER_IDLE_SECONDS:
                connection.give_back()

    def _complain(self, connection: Connection, reason: str, text: str, *details: object) -> None:
        logger.warning(text, *details, extra={"peer": connection.peer})
        self._close(connection, reason)
