"""A socket that sends and receives Kafka frames, for requests that no client library would send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class, response_class


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class RawClient:
    """One connection. Requests get correlation ids 1, 2, 3 ..."""

    def __init__(self, bootstrap: str, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_seconds)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def send_bytes(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def send_frame(self, payload: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def send_request(self, api_key: int, version: int, body: bytes, *, flexible: bool) -> int:
        """Sends it with header version 1, or 2 if the API version is flexible; returns the correlation id."""
        self._correlation_id += 1
        header = struct.pack(">hhih4s", api_key, version, self._correlation_id, 4, b"test") + (b"\0" if flexible else b"")
        self.send_frame(header + body)
        return self._correlation_id

    def receive_frame(self) -> bytes:
        """The next response without its length; raises Closed if there is none."""
        (length,) = struct.unpack(">i", self._receive(4))
        return self._receive(length)

    def request(self, api_key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
        """The response's body."""
        sent = self.send_request(api_key, version, body, flexible=flexible)
        frame = self.receive_frame()
        assert struct.unpack_from(">i", frame)[0] == sent
        return frame[5 if flexible else 4 :]

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; False if bytes arrive instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                piece = self._socket.recv(count - len(received))
            except ConnectionError:
                piece = b""
            if not piece:
                raise Closed(f"after {len(received)} of {count} bytes")
            received += piece
        return bytes(received)


def limit(bootstrap: str, client_id: str, **limits: float) -> None:
    """Sets quotas of a client id, which no stock client in Python can."""
    kind, entry = request_class(ApiKey.ALTER_CLIENT_QUOTAS), request_class(ApiKey.ALTER_CLIENT_QUOTAS).EntryData
    row = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[entry.OpData(key=key, value=value) for key, value in limits.items()],
    )
    body = kind(entries=[row], validate_only=False).encode(version=1)
    with RawClient(bootstrap) as client:
        answer = client.request(ApiKey.ALTER_CLIENT_QUOTAS, 1, body, flexible=True)
    assert response_class(ApiKey.ALTER_CLIENT_QUOTAS).decode(answer, version=1).entries[0].error_code == 0
