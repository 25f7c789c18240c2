"""The loop: accept, read, end the turn, send, expire. One thread owns all state.

A turn reads every readable connection once, then calls `end_turn` (which writes each partition's staged batches with one
write and completes the requests that this answers), then sends. Flushes and searches run in other threads and report back
through the wake-up pipe. Whatever one peer does ends at most its own connection; the memory that all of them together occupy is
bounded by closing those that have stalled longest.

Each step of a turn is guarded separately, so that the other steps still run. An exception raised while a connection is served
closes that connection; any other is logged as a defect, and the step is retried in the next turn. If this repeats, the loop
pauses between such turns, because epoll immediately reports unhandled events again.

Hot path: epoll is used directly, without the selectors module, which costs 2 us per turn.
"""

from __future__ import annotations

import heapq
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

from logbus_broker.api.produce_fast_path import ProduceFastPath
from logbus_broker.clock import Clock
from logbus_broker.errors import ProtocolError, TlsFailure, UnsupportedVersion
from logbus_broker.health import NetworkCounters
from logbus_broker.log.thread_pool import KernelSync
from logbus_broker.logs import log_bug
from logbus_broker.network.acceptor import Acceptor, ConnectionTable
from logbus_broker.network.buffers import ShortFile
from logbus_broker.network.connection import Connection, Dispatch
from logbus_broker.network.http import HttpEndpoint
from logbus_broker.network.poller import PEER_END, READ, RESET, WRITE, Poller, Wakeup
from logbus_broker.network.throttling import Throttle
from logbus_broker.protocol.framing import Origin
from logbus_broker.settings import BrokerConfig

if TYPE_CHECKING:  # a broker without logins and TLS imports neither
    from logbus_broker.network.gate import Gate
    from logbus_broker.network.tls import TlsConnection

logger = logging.getLogger("broker.network")

_SWEEP_SECONDS = 1.0  # how often to look for idle and slow connections
_BUFFER_IDLE_SECONDS = 5.0  # a grown buffer that stays empty this long is released
_RELIEF_PART = 16  # 1/16 of queued.max.request.bytes is freed at once, or the very next request would exceed it again
_ROUNDS_PER_TURN_MAX = 4  # how often a turn continues with requests already in buffers: other connections wait for that
_REST_SECONDS = 0.05  # between two failed turns: some requests are still answered, with at most twenty log lines a second
_DRAIN_SECONDS = 3.0  # how long a stopping broker waits for flushes and for peers to read their answers

# Why the connection is closed that was being served: the first that fits.
_REASONS: Sequence[tuple[type[Exception], str, str]] = (
    (
        UnsupportedVersion,
        "protocol",
        "closing the connection of a client that is too old, or did not ask which versions are supported: %s",
    ),
    (ProtocolError, "protocol", "closing a connection that does not speak the protocol: %s"),
    (TlsFailure, "tls", "closing a connection whose TLS failed: %s"),
    (ShortFile, "short_file", "a log segment ended while it was being sent: %s"),
    (MemoryError, "memory", "closing a connection: no memory for its request: %s"),
)


class Turn(Protocol):
    """What the loop calls between reading and sending."""

    def end_turn(self) -> None: ...

    def answer_staged(self) -> None: ...

    def next_deadline(self) -> float: ...

    def drain_thread_pool(self) -> None: ...


class Server:
    """Owns the listening sockets, given by listener name, and every connection. `each_sweep` is called about once a second,
    `defect` with failures that belong to no connection, `on_closed` with the origin of a connection that was closed. With
    `is_open=False`, clients are accepted only after `open`. Clients of a listener that has one of the `gates` must log in, and
    `connect` makes the connections of listeners with TLS."""

    def __init__(
        self,
        listening: Mapping[str, socket.socket],
        *,
        dispatch: Dispatch,
        turn: Turn,
        config: BrokerConfig,
        per_ip_max: Callable[[], int],
        clock: Clock,
        wakeup: Wakeup,
        kernel: KernelSync | None = None,
        network: NetworkCounters,
        descriptors_end: int,
        endpoint: HttpEndpoint | None = None,
        each_sweep: Callable[[], None],
        defect: Callable[[str, BaseException], None],
        poller: Poller[Connection],
        on_closed: Callable[[Origin], None] = lambda origin: None,
        is_open: bool = True,
        fast_path: ProduceFastPath | None = None,
        throttle: Throttle | None = None,
        gates: Mapping[str, Gate] = MappingProxyType({}),
        connect: Mapping[str, Callable[..., Connection]] = MappingProxyType({}),
    ) -> None:
        self._dispatch = dispatch
        self._connect = connect
        self._fast_path = fast_path
        self._throttle = throttle
        self._muted: list[tuple[float, int, Connection]] = []  # a heap, by when they may be read from again
        self._turn = turn
        self._config = config
        self._clock = clock
        self._wakeup = wakeup
        self._network = network
        self._endpoint = endpoint
        self._each_sweep = each_sweep
        self._report_defect = defect
        self._on_closed = on_closed
        self._is_open = is_open
        self._gates = gates
        self._poller = poller
        self._connection_table = ConnectionTable(network)
        self._connections = self._connection_table.connections
        self._acceptors = [
            Acceptor(
                sock,
                listener=listener,
                config=config,
                per_ip_max=per_ip_max,
                network=network,
                descriptors_end=descriptors_end,
                poller=self._poller,
                connection_table=self._connection_table,
                make_room=self._make_room,
            )
            for listener, sock in listening.items()
        ]
        self._ready: set[Connection] = set()
        self._next_sweep = 0.0
        self._deadline = 0.0  # until when there is nothing to do but socket events
        self._was_short = False
        self._now = clock.monotonic()  # read once per turn
        self._has_failed = False  # whether this turn had a failure that belongs to no connection
        self._failed_at = -math.inf
        self.stopping = False
        self._poller.register(wakeup.fileno(), READ, wakeup.drain)
        if kernel is not None:
            self._poller.register(kernel.fileno(), READ, kernel.collect)
        self._resume()

    def run(self) -> None:
        """Serve until `stop`; then still send the answers that are ready or that a flush in progress completes."""
        while not self.stopping:
            try:
                self._turn_once(self._timeout())
            except Exception as error:
                self._defect("a turn of the loop", error)
            if self._has_failed:
                self._rest_if_it_repeats()
        self._step("ending", self._drain)
        for connection in list(self._connections):
            self._close(connection, "shutdown")
        self._poller.close()

    def open(self) -> None:
        """Accept connections from now on, if it was not open from the start: earlier clients are still in the backlog."""
        self._is_open = True
        self._resume()

    def stop(self) -> None:
        """End after this turn; safe in a signal handler."""
        self.stopping = True
        self._wakeup.wake()

    def _turn_once(self, timeout: float) -> None:
        ready = self._poller.epoll.poll(timeout)
        self._now = self._clock.monotonic()
        owners = self._poller.owners
        only_clients = bool(ready)
        if self._fast_path is not None:
            self._fast_path.is_alone = len(ready) == 1
        for descriptor, events in ready:
            owner = owners.get(descriptor)  # None if it was closed in this turn to make room for a new connection
            try:
                if isinstance(owner, Connection):
                    self._serve(owner, events)
                elif owner is not None:
                    only_clients = False
                    owner()
            except Exception as error:
                self._defect("what the loop was woken for", error)
        self._was_short = only_clients and self._fast_path is not None and self._may_be_short(self._fast_path)
        if not self._was_short:
            self._end_turn()

    def _may_be_short(self, fast_path: ProduceFastPath) -> bool:
        """Whether a turn that served only clients may end here: the fast path has handled every request, no connection has
        anything left to do, and no timer is due yet. Measured: the rest of a turn, finding nothing to do, costs as much as
        handling a batch."""
        return (
            fast_path.took_all()
            and not self._ready
            and not self._has_failed
            and self._now < self._deadline
            and self._network.held_bytes <= self._config.held_bytes_max
        )

    def _step(self, what: str, action: Callable[[], None]) -> None:
        """A step of a turn: if it fails, the others still run."""
        try:
            action()
        except Exception as error:
            self._defect(what, error)

    def _defect(self, what: str, error: BaseException) -> None:
        self._has_failed = True
        self._report_defect(what, error)

    def _rest_if_it_repeats(self) -> None:
        self._has_failed = False
        if self._clock.monotonic() - self._failed_at < _REST_SECONDS:
            self._poller.rest(_REST_SECONDS)
        self._failed_at = self._clock.monotonic()

    def _timeout(self) -> float:
        """How long there is nothing to do. Called once per turn, so the loop's busy time is measured here as well."""
        now = self._clock.monotonic()
        self._network.busy_seconds += now - self._now
        if self._was_short:
            return max(self._deadline - now, 0.0)
        if self._ready:
            self._deadline = now
            return 0.0
        try:
            deadline = self._turn.next_deadline()
        except Exception as error:
            self._defect("finding the next deadline", error)
            deadline = now
        self._deadline = min(deadline, self._next_sweep)
        if self._muted:
            self._deadline = min(self._deadline, self._muted[0][0])
        return max(self._deadline - now, 0.0)

    def _drain(self) -> None:
        """Accept no new connections and read nothing more."""
        until = self._clock.monotonic() + _DRAIN_SECONDS
        self._was_short = False
        for acceptor in self._acceptors:
            acceptor.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._end_turn()
        for connection in list(self._connections):
            try:
                self._watch(connection, WRITE if connection.output else 0)
            except Exception as error:
                self._fail(connection, error)
        while self._now < until and any(connection.drains for connection in self._connections):
            self._turn_once(min(self._timeout(), until - self._now))

    # -- events ----------------------------------------------------------------------------------------------------------------

    def _accept(self, acceptor: Acceptor) -> None:
        gate = self._gates.get(acceptor.listener)
        connect = partial(
            self._connect.get(acceptor.listener, Connection),
            dispatch=self._dispatch,
            config=self._config,
            now=self._now,
            on_ready=self._ready.add,
            network=self._network,
            settle=self._turn.answer_staged,
            monotonic=self._clock.monotonic,
            listener=acceptor.listener,
            throttle=self._throttle,
            on_throttled=self._mute,
        )
        fast_path = self._fast_path if gate is None else None
        for sock, peer in acceptor.accept(self._now):
            self._network.accepted += 1
            try:
                connection = connect(sock, peer, fast_path=None if fast_path is None else fast_path.connect())
            except OSError as error:  # TLS looks at the socket, whose peer may have gone
                logger.debug("%s: %s", peer, error)
                sock.close()
                self._network.closed["network"] += 1
                continue
            if gate is not None:
                gate.guard(connection)
            try:
                self._connection_table.add(connection)
                self._poller.register(connection.descriptor, READ, connection)
                connection.interest = READ
                if self._throttle is not None and self._throttle.is_active:
                    self._throttle_newcomer(self._throttle, connection)
            except Exception as error:
                self._fail(connection, error)
                connection.close()  # even if the table does not have it yet
        self._next_sweep = min(self._next_sweep, acceptor.again_at)

    def _throttle_newcomer(self, throttle: Throttle, connection: Connection) -> None:
        if seconds := throttle.quotas.connected(connection.host, self._now):
            connection.is_muted = True
            self._mute(connection, seconds)
            self._watch(connection, 0)

    def _mute(self, connection: Connection, seconds: float) -> None:
        connection.muted_until = max(connection.muted_until, self._now + seconds)
        heapq.heappush(self._muted, (connection.muted_until, id(connection), connection))

    def _unmute(self) -> None:
        while self._muted and self._muted[0][0] <= self._now:
            _, _, connection = heapq.heappop(self._muted)
            if connection in self._connections and connection.muted_until <= self._now:
                connection.unmute(self._now)

    def _make_room(self, host: str) -> bool:
        connection = self._connection_table.gives_way(host, self._now)
        if connection is None:
            return False
        reason = "crowded" if connection.has_asked else "silent"
        self._complain(
            connection, reason, "closing it to make room for a new connection (max.connections=%d)", self._config.connections_max
        )
        return True

    def _serve(self, connection: Connection, events: int) -> None:
        # Neither a reset nor the peer's end is a read or write event: the read or write that is waited for reports it.
        if events & ~WRITE and connection.interest & READ:
            self._guard(connection, connection.receive)
        elif events & PEER_END:
            connection.closing = "peer"  # watched for only after a parked request: the client no longer waits for it
        elif events & RESET and not connection.output:
            connection.closing = "network"  # with output, sending reports it
        if events & ~READ or connection.closing:
            self._ready.add(connection)

    def _guard(self, connection: Connection, action: Callable[[float], None]) -> None:
        """Whatever one peer does ends at most its own connection."""
        try:
            action(self._now)
        except Exception as error:
            self._blame(connection, error)
        if connection.closing:
            self._ready.add(connection)

    def _blame(self, connection: Connection, error: Exception) -> None:
        """Decide from the exception why the connection that was being served is closed."""
        for kind, reason, text in _REASONS:
            if isinstance(error, kind):
                connection.closing = reason
                logger.warning(text, error, extra={"peer": connection.peer})
                return
        if isinstance(error, OSError):
            connection.closing = "network"
            logger.debug("%s: %s", connection.peer, error)
        else:
            connection.closing = "defect"
            log_bug("handling a request failed", error=error, extra={"peer": connection.peer})

    def _fail(self, connection: Connection, error: Exception) -> None:
        """The same, but close it here: the connection is not visited again in this turn."""
        self._blame(connection, error)
        self._close(connection, connection.closing or "defect")

    # -- the end of a turn -----------------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        self._step("the outcome of a background job", self._turn.drain_thread_pool)
        self._step("the end of a turn", self._turn.end_turn)
        if self._muted:
            self._unmute()
        for _ in range(_ROUNDS_PER_TURN_MAX):  # an answer may unblock requests in a buffer; only TLS is read from here
            if not self._ready:
                break
            ready = list(self._ready)
            self._ready.clear()
            for connection in ready:
                try:
                    self._finish(connection)
                except Exception as error:
                    self._fail(connection, error)
            self._step("answering what was staged", self._turn.answer_staged)
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
        if connection.has_unread_requests and reads and connection.frame_since is None:  # else it is an incomplete request
            self._guard(connection, connection.process)
            reads = connection.wants_to_read
        if connection.is_tls and reads and cast("TlsConnection", connection).reads_ahead:
            self._guard(connection, connection.receive)
            reads = connection.wants_to_read
        interest = (READ if reads else PEER_END if connection.is_parked else 0) | (WRITE if connection.output else 0)
        if connection.is_tls:
            interest = cast("TlsConnection", connection).events(interest)
        if interest != connection.interest:
            self._watch(connection, interest)
        if connection.output_held != connection.output.bytes_queued:
            connection.count_output()

    def _watch(self, connection: Connection, interest: int) -> None:
        self._poller.modify(connection.descriptor, interest)
        connection.interest = interest

    def _close(self, connection: Connection, reason: str) -> None:
        """Raises nothing, and takes effect once. Whatever happens, the descriptor is unregistered: without an owner it would be
        reported as ready in every turn."""
        if connection not in self._connections:
            return
        try:
            self._connection_table.remove(connection)
            self._ready.discard(connection)
            self._network.closed[reason] += 1
        finally:
            self._poller.unregister(connection.descriptor)
            connection.close()
            self._on_closed(connection.origin)
        logger.debug("%s: closed (%s)", connection.peer, reason)

    # -- limits ----------------------------------------------------------------------------------------------------------------

    def _relieve(self) -> None:
        """Too much memory is held: release empty buffers, then close the connections that have stalled longest until it fits
        with some room to spare, because each check costs time. Connections within their share are spared: others hold more."""
        for connection in self._connections:
            connection.give_back()
        config = self._config
        share = config.held_bytes_max // config.connections_max
        if self._network.held_bytes <= config.held_bytes_max:
            return
        stalled = sorted(
            (connection for connection in self._connections if connection.held_bytes > share),
            key=lambda connection: connection.stalled_since,
        )
        enough = config.held_bytes_max - config.held_bytes_max // _RELIEF_PART
        for connection in stalled:
            if self._network.held_bytes <= enough:
                return
            self._complain(
                connection,
                "memory",
                "closing the connection that has stalled longest: queued.max.request.bytes=%d is exceeded",
                config.held_bytes_max,
            )

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + _SWEEP_SECONDS
        self._step("accepting again", self._resume)
        if self._endpoint is not None:
            self._step("the sweep of the metrics port", partial(self._endpoint.sweep, now))
        self._step("what is done each second", self._each_sweep)
        config = self._config
        for connection in self._connection_table.silent_since(now - config.first_request_ms_max / 1000):
            if connection.session is None or not connection.session.is_held_back:  # else it is closed with its answer
                self._close(connection, "silent")
        if self._throttle is not None:
            self._throttle.refresh()
        if self._muted:
            self._muted = [row for row in self._muted if row[2] in self._connections]
            heapq.heapify(self._muted)
        idle_before = now - config.connections_idle_ms_max / 1000
        slow_before = now - config.frame_read_ms_max / 1000
        for connection in list(self._connections):
            try:
                if connection.is_muted:
                    continue
                if connection.frame_since is not None and connection.frame_since < slow_before:
                    self._complain(connection, "slow_frame", "closing: a frame took longer than %d ms", config.frame_read_ms_max)
                elif connection.last_active < idle_before and not connection.waits_for_us:
                    self._close(connection, "idle")
                elif connection.last_active < now - _BUFFER_IDLE_SECONDS:
                    connection.give_back()
            except Exception as error:
                self._fail(connection, error)

    def _resume(self) -> None:
        for acceptor in self._acceptors if self._is_open else ():
            acceptor.resume(self._now, partial(self._accept, acceptor))

    def _complain(self, connection: Connection, reason: str, text: str, *details: object) -> None:
        logger.warning(text, *details, extra={"peer": connection.peer})
        self._close(connection, reason)
