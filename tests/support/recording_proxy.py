"""A proxy in front of a broker that records which versions of which APIs clients actually send.

The broker must advertise the proxy's address, or clients bypass the proxy after their first answer.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from types import TracebackType
from typing import Self

_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id


class RecordingProxy:
    """Listens at once; connects to `target_port` when a client connects. `seen`: by API key, the versions."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.target_port = 0
        self.seen: dict[int, set[int]] = defaultdict(set)
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for sock in (self._listening, *self._sockets):
            _end(sock)

    def take(self) -> dict[int, set[int]]:
        """What was seen since the last call."""
        seen, self.seen = self.seen, defaultdict(set)
        return dict(seen)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:  # the broker is down, so the client gets no connection
                _end(client)
                continue
            self._sockets += [client, broker]
            threading.Thread(target=self._forward_requests, args=(client, broker), daemon=True).start()
            threading.Thread(target=_forward, args=(broker, client), daemon=True).start()

    def _forward_requests(self, client: socket.socket, broker: socket.socket) -> None:
        stream = client.makefile("rb")
        with suppress(OSError):  # a reset by client or broker ends the connection too
            while len(length := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(length, "big"))
                if len(frame) < int.from_bytes(length, "big"):
                    break  # it ended in the middle of a request
                api_key, version, _, _ = _HEADER.unpack_from(frame)
                self.seen[api_key].add(version)
                broker.sendall(length + frame)
        _end(broker)


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    _end(target)


def _end(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
