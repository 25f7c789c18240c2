"""Kafka's wire protocol as the simulation's clients speak it, without I/O: requests to bytes, answers to values.

Written apart from the broker's codecs, so that a mistake on both sides does not cancel out. Covers only what these clients
send.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 19, 20, 22
VERSIONS = {PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 1, METADATA: 7, CREATE_TOPICS: 2, DELETE_TOPICS: 1, INIT_PRODUCER_ID: 0}
FLEXIBLE = {PRODUCE, FETCH}  # in these versions

NONE, OFFSET_OUT_OF_RANGE, REQUEST_TIMED_OUT, OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 0, 1, 7, 45, 47
# After these the records are in no log. Any other error leaves it open: it may answer a retry of an attempt that was stored.
REFUSED = {
    2: "CORRUPT_MESSAGE",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC",
    19: "NOT_ENOUGH_REPLICAS",
    21: "INVALID_REQUIRED_ACKS",
}

_HEADER = Struct(">ihhih")
_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_NAME = b"sim"


@dataclass(frozen=True, slots=True)
class ProduceResult:
    error: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class FetchResult:
    error: int
    high_watermark: int
    log_start: int
    records: bytes


@dataclass(frozen=True, slots=True)
class Metadata:
    """Hosts by broker id, and for each partition (error, leader, leader epoch)."""

    hosts: dict[int, str]
    partitions: dict[tuple[str, int], tuple[int, int, int]]


def frame(api_key: int, correlation_id: int, body: bytes) -> bytes:
    tags = b"\0" if api_key in FLEXIBLE else b""
    size = _HEADER.size - 4 + len(_NAME) + len(tags) + len(body)
    return _HEADER.pack(size, api_key, VERSIONS[api_key], correlation_id, len(_NAME)) + _NAME + tags + body


def body_of(api_key: int, answer: bytes) -> bytes:
    """An answer without its header."""
    return answer[5:] if api_key in FLEXIBLE else answer[4:]


def _string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _INT16.pack(len(text)) + text.encode()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _compact(data: bytes) -> bytes:
    return _varint(len(data) + 1) + data


class Reader:
    """Reads values off an answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, form: Struct) -> int:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return int(value)

    def int8(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def int16(self) -> int:
        return self._take(_INT16)

    def int32(self) -> int:
        return self._take(_INT32)

    def int64(self) -> int:
        return self._take(_INT64)

    def octets(self, count: int) -> bytes:
        self._at += max(count, 0)
        return self._data[self._at - count : self._at] if count > 0 else b""

    def string(self) -> str:
        return self.octets(self.int16()).decode()

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.int8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact(self) -> bytes:
        return self.octets(self.varint() - 1)

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.octets(self.varint())


def produce(topic: str, partition: int, records: bytes, *, acks: int, timeout_ms: int) -> bytes:
    head = b"\0" + _INT16.pack(acks) + _INT32.pack(timeout_ms)
    return head + b"\x02" + _compact(topic.encode()) + b"\x02" + _INT32.pack(partition) + _compact(records) + b"\0\0\0"


def read_produce(body: bytes) -> ProduceResult:
    """The result for the one requested partition."""
    reader = Reader(body)
    reader.varint(), reader.compact(), reader.varint(), reader.int32()
    return ProduceResult(reader.int16(), reader.int64())


def fetch(topic: str, partition: int, offset: int, *, leader_epoch: int = -1, wait_ms: int, bytes_max: int) -> bytes:
    head = (
        _INT32.pack(-1) + _INT32.pack(wait_ms) + _INT32.pack(1) + _INT32.pack(1 << 20) + b"\0" + _INT32.pack(0) + _INT32.pack(-1)
    )
    part = _INT32.pack(partition) + _INT32.pack(leader_epoch) + _INT64.pack(offset) + _INT32.pack(-1) + _INT64.pack(-1)
    return (
        head + b"\x02" + _compact(topic.encode()) + b"\x02" + part + _INT32.pack(bytes_max) + b"\0\0" + b"\x01" + b"\x01" + b"\0"
    )


def read_fetch(body: bytes) -> FetchResult:
    """The result for the one requested partition."""
    reader = Reader(body)
    reader.int32()
    error = reader.int16()
    reader.int32()
    if reader.varint() < 2:
        return FetchResult(error or -1, -1, -1, b"")
    reader.compact(), reader.varint(), reader.int32()
    error, high_watermark, _, log_start = reader.int16(), reader.int64(), reader.int64(), reader.int64()
    for _ in range(reader.varint() - 1):
        reader.int64(), reader.int64()
        reader.tags()
    reader.int32()
    return FetchResult(error, high_watermark, log_start, reader.compact())


def list_offsets(topic: str, partition: int, timestamp: int) -> bytes:
    one = _INT32.pack(1)
    return _INT32.pack(-1) + one + _string(topic) + one + _INT32.pack(partition) + _INT64.pack(timestamp)


def read_list_offsets(body: bytes) -> tuple[int, int]:
    """Error and offset."""
    reader = Reader(body)
    reader.int32(), reader.string(), reader.int32(), reader.int32()
    error, _ = reader.int16(), reader.int64()
    return error, reader.int64()


def metadata(topics: list[str]) -> bytes:
    return _INT32.pack(len(topics)) + b"".join(map(_string, topics)) + b"\0"


def read_metadata(body: bytes) -> Metadata:
    reader = Reader(body)
    reader.int32()
    hosts: dict[int, str] = {}
    for _ in range(reader.int32()):
        broker_id = reader.int32()
        hosts[broker_id] = reader.string()
        reader.int32(), reader.string()
    reader.string(), reader.int32()
    partitions: dict[tuple[str, int], tuple[int, int, int]] = {}
    for _ in range(reader.int32()):
        reader.int16()
        topic = reader.string()
        reader.int8()
        for _ in range(reader.int32()):
            error, index, leader, epoch = reader.int16(), reader.int32(), reader.int32(), reader.int32()
            partitions[topic, index] = error, leader, epoch
            for _ in range(3):  # replicas, in-sync, offline
                for _ in range(reader.int32()):
                    reader.int32()
    return Metadata(hosts, partitions)


def create_topic(topic: str, partitions: int, replicas: int, configs: dict[str, str]) -> bytes:
    rows = b"".join(_string(name) + _string(value) for name, value in configs.items())
    head = _INT32.pack(1) + _string(topic) + _INT32.pack(partitions) + _INT16.pack(replicas) + _INT32.pack(0)
    return head + _INT32.pack(len(configs)) + rows + _INT32.pack(5_000) + b"\0"


def read_create_topic(body: bytes) -> int:
    """The error."""
    reader = Reader(body)
    reader.int32(), reader.int32(), reader.string()
    return reader.int16()


def delete_topic(topic: str) -> bytes:
    return _INT32.pack(1) + _string(topic) + _INT32.pack(5_000)


read_delete_topic = read_create_topic  # the same shape


def init_producer_id() -> bytes:
    return _string(None) + _INT32.pack(0)


def read_init_producer_id(body: bytes) -> tuple[int, int, int]:
    """Error, id and epoch."""
    reader = Reader(body)
    reader.int32()
    return reader.int16(), reader.int64(), reader.int16()
