"""A proxy in front of a broker that records which versions of which APIs clients actually send.

The broker must advertise the proxy's address, or clients bypass the proxy after their first answer.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Iterator

from tests.support.link import HEADER, Gates, Link


class WireTap(Link):
    """Keeps every byte that passes in either direction: what anybody on the way could read."""

    def __init__(self) -> None:
        self.seen = bytearray()
        super().__init__(target_port=0)

    def _forward(
        self, source: socket.socket, sink: socket.socket, pieces: Iterator[bytes], gates: Gates, gate: threading.Event
    ) -> None:
        super()._forward(source, sink, self._noted(pieces), gates, gate)

    def _noted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for data in pieces:
            self.seen += data
            yield data


class RecordingProxy(Link):
    """Listens at once; the test sets `target_port` before a client connects. `sent`: by API key, the versions."""

    def __init__(self) -> None:
        self.sent: dict[int, set[int]] = defaultdict(set)
        super().__init__(target_port=0)

    def take(self) -> dict[int, set[int]]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, defaultdict(set)
        return dict(sent)

    def _requests(self, client: socket.socket) -> Iterator[bytes]:
        stream = client.makefile("rb")
        while len(length := stream.read(4)) == 4:
            frame = length + stream.read(int.from_bytes(length, "big"))
            if len(frame) < 4 + int.from_bytes(length, "big"):
                return  # it ended in the middle of a request
            _, api_key, version, _, _ = HEADER.unpack_from(frame)
            self.sent[api_key].add(version)
            yield frame
