"""A TCP link that can be disturbed: a proxy in user space, one for each pair of client and target.

A connection to `port` reaches the target. Each direction can be slowed, or held: data then waits, as on a network that drops
packets, and is passed on once the direction is released. `reset` breaks every connection, `refuse` also closes the port, until
`accept`. A `PeerLink` is one port for several clients, which it tells apart and disturbs separately.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from logbus.cli.processes import ReservedPorts

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CHUNK_BYTES = 1 << 16
HEADER = struct.Struct(">ihhih")  # of a Kafka request: length, API, version, correlation id, length of the client's id


class Gates:
    """Both directions of one link."""

    def __init__(self) -> None:
        self.to_target = threading.Event()
        self.to_client = threading.Event()
        self.delay_seconds = 0.0  # for each chunk passed on
        self.let_go()

    def hold(self, *, to_target: bool = True, to_client: bool = True) -> None:
        for is_held, gate in ((to_target, self.to_target), (to_client, self.to_client)):
            if is_held:
                gate.clear()

    def let_go(self) -> None:
        """Release both directions, at full speed."""
        self.delay_seconds = 0.0
        self.to_target.set()
        self.to_client.set()


class Link:
    """Works from its construction on, at a port that it keeps reserved."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.attempts = 0  # to connect, whether the target was up or not
        self._reserved = ReservedPorts(1)  # also while connections are refused
        (self.port,) = self._reserved.numbers
        self._listening = listen(self.port)
        self._gates = Gates()
        self._sockets: dict[socket.socket, Gates] = {}
        self._lock = threading.Lock()
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.refuse()
        self.let_go()
        self._reserved.release()

    def hold(self, *, to_target: bool = True, to_client: bool = True) -> None:
        """Nothing passes in these directions; new connections are accepted and held too."""
        self._gates.hold(to_target=to_target, to_client=to_client)

    def slow_down(self, delay_seconds: float) -> None:
        """Every chunk of at most 64 KiB arrives `delay_seconds` later."""
        self._gates.delay_seconds = delay_seconds

    def let_go(self) -> None:
        self._gates.let_go()

    def reset(self) -> None:
        """Break every connection; data held is lost."""
        self._break(lambda _: True)

    def _break(self, is_meant: Callable[[Gates], bool]) -> None:
        with self._lock:
            sockets = [sock for sock, gates in self._sockets.items() if is_meant(gates)]
            for sock in sockets:
                del self._sockets[sock]
        for sock in sockets:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                sock.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
            sock.close()

    def refuse(self) -> None:
        """Break every connection, and refuse further attempts."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.reset()

    def accept(self) -> None:
        """Accept connections again."""
        self._listening = listen(self.port)
        self._start(self._accept)

    def send_to_clients(self, data: bytes) -> None:
        """Insert bytes into every connection's answers."""
        with self._lock:
            sockets = list(self._sockets)
        for client in sockets[::2]:
            with suppress(OSError):
                client.sendall(data)

    def _accept(self) -> None:
        listening = self._listening
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            self.attempts += 1
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        self._join(client, self._gates)

    def _join(self, client: socket.socket, gates: Gates) -> None:
        try:
            target = socket.create_connection(("127.0.0.1", self.target_port))
        except OSError:
            client.close()
            return
        with self._lock:
            self._sockets |= {client: gates, target: gates}
        self._start(lambda: self._forward(client, target, self._requests(client), gates, gates.to_target))
        self._start(lambda: self._forward(target, client, chunks(target), gates, gates.to_client))

    def _requests(self, client: socket.socket) -> Iterator[bytes]:
        """What the client sends, in the pieces that are passed on."""
        return chunks(client)

    def _forward(
        self, source: socket.socket, sink: socket.socket, pieces: Iterator[bytes], gates: Gates, gate: threading.Event
    ) -> None:
        with suppress(OSError):
            for data in pieces:
                if gates.delay_seconds:
                    time.sleep(gates.delay_seconds)
                gate.wait()
                sink.sendall(data)
        gate.wait()
        with self._lock:
            for sock in (source, sink):
                self._sockets.pop(sock, None)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _start(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, daemon=True).start()


class PeerLink(Link):
    """For Kafka requests from several clients: each has separate gates, by the client id in its first request.

    A client that is held before it has sent its id is held as soon as it has: nothing of it passes before.
    """

    def __init__(self, target_port: int) -> None:
        self._of_client: dict[str, Gates] = {}
        super().__init__(target_port)

    def gates_of(self, client_id: str) -> Gates:
        return self._of_client.setdefault(client_id, Gates())

    def let_go(self) -> None:
        """Release all clients."""
        for gates in list(self._of_client.values()):
            gates.let_go()

    def _connect(self, client: socket.socket) -> None:
        self._start(lambda: self._identify(client))

    def _identify(self, client: socket.socket) -> None:
        try:
            client_id = client_id_of(client)
        except OSError:
            client.close()
            return
        self._join(client, self.gates_of(client_id))


def chunks(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(CHUNK_BYTES):
        yield data


def client_id_of(sock: socket.socket) -> str:
    """The client id in the first request, which stays unread. OSError if there is none."""
    header = sock.recv(HEADER.size, socket.MSG_PEEK | socket.MSG_WAITALL)
    if len(header) < HEADER.size:
        raise ConnectionResetError("nothing was asked")
    length = HEADER.unpack(header)[-1]
    return sock.recv(HEADER.size + length, socket.MSG_PEEK | socket.MSG_WAITALL)[HEADER.size :].decode()


def listen(port: int) -> socket.socket:
    """On loopback, on a port that may have been used a moment ago."""
    return socket.create_server(("127.0.0.1", port))
