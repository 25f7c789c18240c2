"""A client of Kafka's protocol that itself costs next to nothing: requests are built once and sent again and again, answers are
read only for their error and their records.

On two cores a client's own work would be measured together with the broker's. Produce 7, Fetch 4 and Metadata 7 are the latest
versions without optional parts that current brokers still support.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, LENGTH_END, Buffer, read_header
from logbus_broker.protocol.codec import request_class, response_class

PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 7, 4, 7
_CLIENT_ID = b"upkeep"
_READ_UNCOMMITTED = 0


class Refused(Exception):
    """The broker answered with an error, or closed the connection."""


def produce_frame(topic: str, batch: Buffer, *, acks: int = 1) -> bytes:
    """One batch for partition 0, as it goes over the wire."""
    head = struct.pack(">hhi", -1, acks, 30_000)
    return _frame(ApiKey.PRODUCE, PRODUCE_VERSION, head + _one_partition(topic) + struct.pack(">i", len(batch)) + bytes(batch))


def versions_frame() -> bytes:
    """The request that every client sends first."""
    return _frame(ApiKey.API_VERSIONS, 0, b"")


def fetch_frame(topic: str, offset: int, *, wait_ms: int, bytes_max: int = 1 << 20) -> bytes:
    """A fetch from `offset` on in partition 0; the broker may wait for records."""
    head = struct.pack(">iiiib", -1, wait_ms, 1, bytes_max, _READ_UNCOMMITTED)
    return _frame(ApiKey.FETCH, FETCH_VERSION, head + _one_partition(topic) + struct.pack(">qi", offset, bytes_max))


def metadata_frame(*topics: str) -> bytes:
    """Which brokers there are, and what they know of these topics; of all topics if none is named."""
    kind = request_class(ApiKey.METADATA)
    rows = [kind.MetadataRequestTopic(name=topic) for topic in topics] or None
    body = kind(topics=rows, allow_auto_topic_creation=False).encode(version=METADATA_VERSION)
    return _frame(ApiKey.METADATA, METADATA_VERSION, bytes(body))


def metadata(answer: Buffer) -> Any:
    """The MetadataResponse."""
    return response_class(ApiKey.METADATA).decode(memoryview(answer)[4:], version=METADATA_VERSION)


def check_produced(answer: Buffer, topic: str) -> None:
    """Raises Refused unless the answer is that the batch was appended."""
    (error,) = struct.unpack_from(">h", answer, 4 + _partition_bytes(topic))
    if error:
        raise Refused(f"{topic}: Produce was answered with error {error}")


def fetched(answer: Buffer, topic: str) -> memoryview:
    """The batches in an answer, the last one perhaps incomplete."""
    place = 4 + 4 + _partition_bytes(topic)
    error, _, _, aborted, length = struct.unpack_from(">hqqii", answer, place)
    if error or aborted > 0:
        raise Refused(f"{topic}: Fetch was answered with error {error}")
    return memoryview(answer)[len(answer) - max(length, 0) :]


def whole_batches(records: Buffer) -> Iterator[memoryview]:
    """Each batch that `records` contains completely."""
    view, place = memoryview(records), 0
    while place + BATCH_HEADER_BYTES <= len(view):
        end = place + read_header(view, place).length + LENGTH_END
        if end > len(view):
            return
        yield view[place:end]
        place = end


class Connection:
    """One connection; answers come in the order of the requests."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming = self.socket.makefile("rb", buffering=1 << 16)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._incoming.close()
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def receive(self) -> bytes:
        """The next answer, without its length prefix."""
        head = self._incoming.read(4)
        answer = self._incoming.read(int.from_bytes(head)) if len(head) == 4 else b""
        if not answer or len(answer) < int.from_bytes(head):
            raise Refused("the broker has ended the connection")
        return answer

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, 0, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


def _one_partition(topic: str) -> bytes:
    """An array of one topic with an array of one partition, up to that partition's number."""
    return struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">ii", 1, 0)


def _partition_bytes(topic: str) -> int:
    return len(_one_partition(topic))
