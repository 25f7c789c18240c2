"""Fetch requests to two brokers, one with the fast path and one without (two_paths.py): mostly what consumers usually send, and
now and then anything else that a broker may receive instead. Between requests, records are written, flushed or not, topics change
and time passes, so that fetches find records, wait, wake and expire.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.settings import LogConfig

from tests.support.two_paths import PARTITIONS, Clients, Rivals, count_of, head_of, play, produce_frame, string_of

_FLEXIBLE_FROM, _IDS_FROM, _REPLICA_TAGGED_FROM = 12, 13, 15
_PRODUCER = 0  # the number of the writing connection; readers have higher ones
WAIT_MS = 500
PLENTY = 1 << 20  # bytes
Topics = list[tuple[bytes, list[tuple[int, int, int, int]]]]  # by name: (partition, leader epoch, offset, maximum bytes)


def fetch_frame(
    version: int,
    correlation_id: int,
    topics: Topics,
    id_of: Callable[[bytes], bytes],
    *,
    client: bytes | None = b"client",
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    rack: bytes = b"",
    tags: bytes = b"\0",
    partition_tags: bytes = b"\0",
    topic_tags: bytes = b"\0",
    request_tags: bytes = b"\0",
    forgotten: Topics = [],  # noqa: B006
    behind: bytes = b"",
) -> bytes:
    """A Fetch request as a client writes it, with its length. Tags are written in flexible versions; `partition_tags` are those
    of each topic's last partition, `topic_tags` of each topic. `behind` follows the request's proper end."""
    flexible = version >= _FLEXIBLE_FROM

    def name(topic: bytes) -> bytes:
        return id_of(topic) if version >= _IDS_FROM else string_of(topic, flexible)

    out = head_of(ApiKey.FETCH, version, correlation_id, client, tags if flexible else b"")
    if version < _REPLICA_TAGGED_FROM:
        out += struct.pack(">i", -1)
    out += struct.pack(">iiib", wait_ms, bytes_min, bytes_max, isolation)
    if version >= 7:
        out += struct.pack(">ii", *session)
    out += count_of(len(topics), flexible)
    for topic, partitions in topics:
        out += name(topic) + count_of(len(partitions), flexible)
        for number, (index, epoch, offset, size) in enumerate(partitions, start=1):
            out += struct.pack(">i", index)
            out += struct.pack(">i", epoch) if version >= 9 else b""
            out += struct.pack(">q", offset)
            out += struct.pack(">i", -1) if flexible else b""
            out += struct.pack(">q", -1) if version >= 5 else b""
            out += struct.pack(">i", size)
            if flexible:
                out += partition_tags if number == len(partitions) else b"\0"
        if flexible:
            out += topic_tags
    if version >= 7:
        out += count_of(len(forgotten), flexible)
        for topic, partitions in forgotten:
            out += name(topic) + count_of(len(partitions), flexible)
            out += b"".join(struct.pack(">i", row[0]) for row in partitions)
            out += b"\0" if flexible else b""
    if version >= 11:
        out += string_of(rack, flexible)
    if flexible:
        out += request_tags
    out += behind
    return struct.pack(">i", len(out)) + bytes(out)


class Reader:
    """The client of one connection: version, settings and topics, drawn once and kept."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.number = number
        self.version = chance.choice((4, 8, 9, 10, 11, 11, 12, 12, 13, 14, 15, 16, 17, 17, 17))
        self.settings: dict[str, Any] = {
            "client": chance.choice((b"consumer-1", b"rdkafka", b"", None)),
            "wait_ms": chance.choice((0, 1, WAIT_MS, WAIT_MS)),
            "bytes_min": chance.choice((0, 1, 1, 1, 400, 5_000)),
            "bytes_max": chance.choice((1 << 20, 1 << 20, 300, 0)),
            "isolation": chance.choice((0, 0, 1)),
            "session": chance.choice(((0, 0), (0, -1))),
            "rack": chance.choice((b"", b"", b"rack-1")),
        }
        self.topics = chance.sample((b"plain", b"second", b"keyed"), chance.choice((1, 1, 2, 3)))
        self.partitions = chance.choice((1, 1, 2, PARTITIONS))
        self.correlation_id = 0


class Readers(Clients):
    """Makes Fetch requests for `rivals`."""

    changes = (
        *({"session": session} for session in ((1, 1), (0, 3))),
        {"forgotten": [(b"plain", [(0, 0, 0, 0)])]},
        *({"client": client} for client in (b"another", b"\xff\xfe", b"c" * 700)),
        {"rack": b"r" * 600},
        {"wait_ms": -1},
        {"wait_ms": WAIT_MS, "bytes_min": 1 << 20},
        {"bytes_min": -1},
        {"bytes_max": -1},
        {"isolation": 2},
        *({"version": version} for version in (3, 18, 11, 17)),
    )

    def __init__(self, seed: str, rivals: Rivals, *, strange: float) -> None:
        super().__init__(seed, strange)
        self._rivals = rivals

    def new_client(self, number: int) -> Reader:
        return Reader(number, self.chance)

    def topics(self, reader: Reader) -> Topics:
        topics: Topics = []
        for topic in reader.topics:
            indexes = self.chance.sample(range(PARTITIONS), min(reader.partitions, PARTITIONS))
            topics.append((topic, [self._row(topic, index) for index in indexes]))
        return topics

    def _row(self, topic: bytes, index: int) -> tuple[int, int, int, int]:
        """Most consumers are at the high watermark, or on their way to it."""
        chance, partition = self.chance, self._rivals.off.engine.partitions.get(topic.decode(), index)
        start, visible, end = partition.log_start_offset, partition.visible_offset, partition.end_offset
        offset = chance.choice((visible, visible, visible, end, start, chance.randint(start, end)))
        epoch = chance.choice((-1, partition.leader_epoch))
        return index, epoch, offset, chance.choice((PLENTY, PLENTY, PLENTY, 500, 1, 0))

    def frame(self, reader: Reader, topics: Topics, **changes: Any) -> bytes:
        version = changes.pop("version", reader.version)
        return fetch_frame(version, reader.correlation_id, topics, self._id_of, **{**reader.settings, **changes})

    def _id_of(self, topic: bytes) -> bytes:
        found = self._rivals.off.engine.partitions.led_by_name.get((topic.decode(), 0))
        return found.topic_id.bytes if found is not None else topic.ljust(16, b"?")[:16]

    # What is unusual

    def _elsewhere(self, reader: Reader, topics: Topics) -> bytes:
        name, index = (
            self.chance.choice((b"none", b"plain", b"__consumer_offsets", b"")),
            self.chance.choice((PARTITIONS, -1, 1 << 30)),
        )
        return self.frame(reader, [*topics, (name, [(index, -1, 0, PLENTY)])])

    def _out_of_range(self, reader: Reader, topics: Topics) -> bytes:
        (name, [(index, epoch, _, size), *more]), *others = topics
        partition = self._rivals.off.engine.partitions.get(name.decode(), index)
        offset = self.chance.choice((-1, -2, 1 << 62, partition.end_offset + 1, partition.log_start_offset - 1))
        return self.frame(reader, [(name, [(index, epoch, offset, size), *more]), *others])

    def _other_epoch(self, reader: Reader, topics: Topics) -> bytes:
        (name, [(index, _, offset, size), *more]), *others = topics
        epoch = self.chance.choice((-2, 1, 1 << 30, -(1 << 31)))
        return self.frame(reader, [(name, [(index, epoch, offset, size), *more]), *others])

    def _twice(self, reader: Reader, topics: Topics) -> bytes:
        """A partition, or its topic, twice; neighbours or not."""
        (name, rows), *others = topics
        twice = self.chance.choice(([(name, [*rows, rows[0]]), *others], [(name, rows), (name, rows)], [*topics, (name, rows)]))
        return self.frame(reader, twice)

    def _nothing(self, reader: Reader, topics: Topics) -> bytes:
        return self.frame(reader, self.chance.choice(([], [(topics[0][0], [])], [*topics, (b"plain", [])])))

    def _many(self, reader: Reader, topics: Topics) -> bytes:
        """Around the number of partitions whose count no longer fits in one byte of a varint."""
        (name, [(index, epoch, offset, _), *_]), *others = topics
        return self.frame(reader, [(name, [(index, epoch, offset, 1)] * self.chance.choice((60, 126, 127, 130))), *others])

    def _cut(self, reader: Reader, topics: Topics) -> bytes:
        """A request cut short, in a frame of that length."""
        content = self.frame(reader, topics)[4:]
        content = content[: self.chance.randrange(len(content))]
        return struct.pack(">i", len(content)) + content

    def _pipelined(self, reader: Reader, topics: Topics) -> bytes:
        """Several requests at once, or one and a part of the next."""
        frames = [self.frame(reader, topics) for _ in range(self.chance.choice((2, 3)))]
        return (
            b"".join(frames) if self.chance.random() < 0.7 else frames[0] + frames[1][: self.chance.randrange(1, len(frames[1]))]
        )

    strange = (
        *(Clients.spoiled, Clients.spoiled),
        _elsewhere,
        _out_of_range,
        _other_epoch,
        _twice,
        _nothing,
        _many,
        *(Clients.other_settings, Clients.other_settings),
        *(Clients.tagged, Clients.tagged),
        _cut,
        _pipelined,
        Clients.something_else,
    )


def run(
    directory: Path,
    seed: str,
    count: int,
    *,
    readers: int,
    strange: float = 0.25,
    administration: float = 0.03,
    writes: float = 0.5,
) -> Rivals:
    """Send `count` requests. In each turn some readers fetch; records may be written first, and may not be flushed yet."""
    rivals = Rivals(directory, log=replace(LogConfig(index_interval_bytes=500), segment_bytes=6_000, roll_ms=5_000))
    requests = Readers(seed, rivals, strange=strange)
    chance = requests.chance

    def in_turn() -> int:
        if chance.random() < writes:
            rivals.feed(_PRODUCER, _written(chance, rivals.on.harness.clock.now_ms()))
            rivals.turn(settles=chance.random() < 0.5)
        return chance.choice((1, 1, 1, 3))

    play(
        rivals,
        requests,
        count,
        clients=readers,
        in_turn=in_turn,
        share_cut=0.05,
        turn=lambda: rivals.turn(settles=chance.random() < 0.7),
        administration=administration,
    )
    answer_all(rivals)
    return rivals


def _written(chance: random.Random, now_ms: int) -> bytes:
    """A Produce request that takes the ordinary path on both sides: the fast path would write sooner, and a flush would include it."""
    indexes = chance.sample(range(PARTITIONS), chance.choice((1, 1, PARTITIONS)))
    record = NewRecord(timestamp=now_ms, key=b"%d" % chance.randrange(5), value=bytes(chance.randrange(200)))
    batch = bytes(build_batch([record] * chance.choice((1, 3))))
    topic = chance.choice((b"plain", b"second", b"keyed"))
    return produce_frame(9, 1, [(topic, [(index, batch) for index in indexes])], tags=b"\x01\x09\x01x")


def answer_all(rivals: Rivals) -> None:
    """Let waiting fetches expire, so that the requests queued after them are answered too."""
    for _ in range(20):
        rivals.do(lambda harness: harness.clock.advance_ms(WAIT_MS))
        rivals.turn()
