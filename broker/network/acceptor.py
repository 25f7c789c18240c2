"""A listening socket and its limits: connections overall, per address, and by the file descriptors that the log itself needs. At
the limit, another connection may have to be closed (`crowd.py`).

When descriptors run out, accepting pauses and new connections wait in the system's backlog: existing connections are still
served, and the loop does not spin on a socket that stays readable.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

from broker.config.listeners import Listener
from broker.config.settings import BrokerConfig
from broker.counters import NetworkCounters
from broker.errors import StartupError
from broker.network.crowd import Crowd
from broker.network.poller import READ, Poller

logger = logging.getLogger("broker.network")

PAUSE_SECONDS = 0.5
DESCRIPTORS_KEPT = 32  # for new segments, checkpoints and directory flushes: too many clients must not stop the log
_ACCEPTED_PER_TURN_MAX = 64
_BACKLOG = 511
# Linux reports errors of the new connection through accept (listed in accept(2)): the next connection may be fine.
_ERRORS_OF_ONE = frozenset(
    {errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}
    | {errno.ENONET, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM, errno.EPROTO}
)
_KEEPALIVE_IDLE_SECONDS = 300  # a peer that vanished silently is noticed within minutes, even while its fetch waits


def bind(listener: Listener) -> socket.socket:
    """Returns a listening socket. StartupError, whose text says what to do, if the port is in use or the address is not ours."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((listener.host, listener.port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"port {listener.port} on {listener.host or 'all interfaces'} is in use: stop what listens there, or choose "
                f"another ({listener.name}://{listener.host}:PORT)"
            ) from None
        raise StartupError(f"cannot listen on {listener}: {error.strerror or error}") from None
    sock.setblocking(False)
    return sock


class Acceptor:
    """Accepts as many connections as the limits allow. `make_room` closes another connection in favour of a new one from the
    given address, and returns whether it did. `per_ip_max` may change while the broker runs."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        listener: str = "",
        config: BrokerConfig,
        per_ip_max: Callable[[], int],
        network: NetworkCounters,
        descriptors_max: int,
        poller: Poller[Any],
        crowd: Crowd,
        make_room: Callable[[str], bool],
    ) -> None:
        self._listening = sock
        self.listener = listener
        self._config = config
        self._per_ip_max = per_ip_max
        self._network = network
        self._descriptor_last = max(descriptors_max - DESCRIPTORS_KEPT, DESCRIPTORS_KEPT)
        self._poller = poller
        self._crowd = crowd
        self._make_room = make_room
        self._again_at = -math.inf  # when to listen again; infinity while listening

    def accept(self, now: float) -> Iterator[tuple[socket.socket, str]]:
        """Yields the connections within the limits, with their peers' addresses."""
        for _ in range(_ACCEPTED_PER_TURN_MAX):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _ERRORS_OF_ONE:
                    continue
                self._pause(now, "cannot accept connections: %s", error.strerror or error)
                return
            if sock.fileno() > self._descriptor_last and not self._make_room(address[0]):
                sock.close()
                self._pause(now, "no more connections: the last %d file descriptors are the log's", DESCRIPTORS_KEPT)
                return
            host = address[0]
            if self._may_stay(host) and _prepare(sock):
                yield sock, f"{host}:{address[1]}"
            else:
                sock.close()

    def _may_stay(self, host: str) -> bool:
        if self._crowd.count_of(host) >= (per_ip_max := self._per_ip_max()):
            self._network.refused["max.connections.per.ip"] += 1
            logger.warning("refusing %s: it has max.connections.per.ip=%d open", host, per_ip_max)
        elif self._network.connections >= self._config.connections_max and not self._make_room(host):
            self._network.refused["max.connections"] += 1
            logger.warning("refusing %s: max.connections=%d are open", host, self._config.connections_max)
        else:
            return True
        return False

    def _pause(self, now: float, text: str, *details: object) -> None:
        self._network.refused["descriptors"] += 1
        logger.warning(text + "; raise the limit of open files (ulimit -n)", *details)
        self._poller.unregister(self._listening.fileno())
        self._again_at = now + PAUSE_SECONDS

    def resume(self, now: float, ready: Callable[[], None]) -> None:
        """Start listening, initially or once a pause is over; `ready` is called when a connection is waiting."""
        if now >= self._again_at:
            self._poller.register(self._listening.fileno(), READ, ready)
            self._again_at = math.inf

    @property
    def resumes_at(self) -> float:
        """When the pause ends; infinity if there is none."""
        return self._again_at

    def close(self) -> None:
        """Stop accepting."""
        if self._again_at == math.inf:
            self._poller.unregister(self._listening.fileno())
        self._listening.close()


def _prepare(sock: socket.socket) -> bool:
    """Set up a new connection's socket; False if the peer has already disconnected."""
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
    except OSError as error:
        logger.debug("a newcomer is gone: %s", error)
        return False
    return True
