"""The same requests to two brokers in one process, one with the fast path and one without: any difference is a fault of the fast path.

Each side is a whole broker below its sockets (`Side`): connections, engine, files. `Rivals` feeds both the same bytes in the same
turns and compares what clients can see and, at the end, what the disk holds. `Senders` makes the requests: mostly what producers
usually send, and now and then anything else that a broker may receive instead.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from logbus_broker.errors import ProtocolError
from logbus_broker.filesystem import FileSystem
from logbus_broker.health import NetworkCounters
from logbus_broker.network.connection import Connection
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Origin
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.settings import LogConfig

from tests.support.admin import SET, TOPIC, alter
from tests.support.batches import altered
from tests.support.engine import Harness
from tests.support.fuzzing import UnsyncedFileSystem
from tests.support.sockets import ScriptedOutput, ScriptedSocket

COMPARED = (".log", ".index", ".timeindex", ".indexnote")
PARTITIONS = 4
TOPICS = {
    "plain": {},
    "second": {},  # its settings change, and it is deleted and recreated
    "limited": {"max_message_bytes": "400", "message_timestamp_after_max_ms": "100", "message_timestamp_before_max_ms": "900"},
    "keyed": {"cleanup_policy": "compact"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "safe": {"logbus.acks.all.waits.for.flush": "true"},
}
REPLICA_TAGS = b"\x01\x01\x0d" + struct.pack(">iq", 2, 7) + b"\0"  # a request's tags when a replica sends it
_FLEXIBLE_FROM = 9
_ROUNDS = 4


class Side:
    """One broker, and its connections by number."""

    def __init__(self, directory: Path, *, fast_path: bool, filesystem: FileSystem | None = None, **settings: Any) -> None:
        self.directory = directory
        self.harness = Harness(
            directory,
            filesystem=filesystem or UnsyncedFileSystem(),
            fast_path=fast_path,
            partitions_max=200,
            ids=count(1),  # the same on both sides: requests name topics by id
            **settings,
        )
        self.engine = self.harness.engine
        self.sockets: dict[int, ScriptedSocket] = {}
        self.closed: dict[int, str] = {}
        self.principals: dict[int, str] = {}  # of connections that have logged in
        self._connections: dict[int, Connection] = {}
        self._ready: dict[Connection, None] = {}
        self._network = NetworkCounters()

    def feed(self, number: int, data: bytes) -> None:
        if number in self.closed:
            return
        if number not in self._connections:
            self._connect(number)
        self.sockets[number].incoming += data

    def _connect(self, number: int) -> None:
        sock, fast_path = ScriptedSocket(), self.engine.fast_path
        self.sockets[number] = sock
        self._connections[number] = Connection(
            sock,  # type: ignore[arg-type]
            f"127.0.0.1:{number}",
            dispatch=self.engine.dispatch,
            config=self.engine.config,
            now=0.0,
            on_ready=lambda connection: self._ready.setdefault(connection),
            network=self._network,
            settle=self.engine.answer_staged,
            fast_path=None if fast_path is None else fast_path.connect(),
        )
        self._connections[number].output = ScriptedOutput()
        if number in self.principals:
            self._connections[number].origin = Origin("127.0.0.1", "", self.principals[number])

    def turn(self, settles: bool = True) -> None:
        """Read each connection once, as the loop does, and end the turn."""
        now = self.harness.clock.monotonic()
        for number, connection in list(self._connections.items()):
            if self.sockets[number].incoming:
                self._guarded(number, lambda connection=connection: connection.receive(now))  # type: ignore[misc]
        self.harness.turn()
        for _ in range(_ROUNDS):
            ready, self._ready = self._ready, {}
            for number, connection in [(n, one) for n, one in self._connections.items() if one in ready]:
                self._finish(number, connection, now)
            self.engine.answer_staged()
        if settles:
            self.harness.settle()
        for number, connection in list(self._connections.items()):
            self._finish(number, connection, now)

    def _finish(self, number: int, connection: Connection, now: float) -> None:
        if connection.output:
            self._guarded(number, lambda: connection.send(now))
        if connection.has_unread_requests and connection.frame_since is None and not connection.closing:
            self._guarded(number, lambda: connection.process(now))
        if connection.closing and number in self._connections:
            self._close(number, connection.closing)

    def _guarded(self, number: int, action: Callable[[], None]) -> None:
        try:
            action()
        except ProtocolError:
            self._close(number, "protocol")

    def _close(self, number: int, reason: str) -> None:
        self.closed[number] = reason
        self._connections.pop(number).close()

    def is_over(self, number: int) -> bool:
        connection = self._connections.get(number)
        return number in self.closed or (connection is not None and connection.frame_since is not None)

    @property
    def has_unread(self) -> bool:
        return any(self.sockets[number].incoming for number in self._connections)

    def seen(self) -> dict[int, tuple[bytes, str]]:
        """What each client has been sent, and why its connection was closed."""
        return {number: (bytes(sock.sent), self.closed.get(number, "")) for number, sock in self.sockets.items()}

    def counted(self) -> dict[str, Any]:
        """What the metrics show."""
        traffic = {p.name: (p.traffic.messages_in, p.traffic.bytes_in, p.traffic.bytes_out) for p in self.engine.partitions}
        counters = self.engine.counters
        return {"traffic": traffic, "requests": list(counters.requests), "errors": dict(counters.errors)}

    def ends(self) -> dict[str, tuple[int, int, int]]:
        return {p.name: (p.log.log_start_offset, p.end_offset, len(p.log.segments)) for p in self.engine.partitions}

    @property
    def taken(self) -> int:
        """How many Produce requests took the fast path."""
        return self.engine.counters.fast_path

    @property
    def fetches_taken(self) -> int:
        """How many Fetch requests took the fetch fast path."""
        return self.engine.counters.fetch_fast_path

    def close(self) -> dict[str, bytes]:
        """Stop, and return what the disk holds."""
        for number in list(self._connections):
            self._close(number, "end")
        assert self._network.held_bytes == 0
        self.harness.close()
        files = sorted(path for path in self.directory.rglob("*") if path.suffix in COMPARED)
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in files}


class Rivals:
    """Both sides."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.on = Side(directory / "on", fast_path=True, **settings)
        self.off = Side(directory / "off", fast_path=False, **settings)
        self.sides = (self.on, self.off)
        for side in self.sides:
            for name, configs in TOPICS.items():
                side.harness.create(name, PARTITIONS, **configs)

    def feed(self, number: int, data: bytes, *, cut: int = 0) -> None:
        """What follows after `cut` bytes comes in another turn."""
        if cut:
            self.feed(number, data[:cut])
            self.turn()
        for side in self.sides:
            side.feed(number, data[cut:])

    def turn(self, settles: bool = True) -> None:
        for side in self.sides:
            side.turn(settles)

    def drain(self) -> None:
        while any(side.has_unread for side in self.sides):
            self.turn()

    def compare(self) -> None:
        """Assert that clients and metrics see the same on both sides."""
        on, off = self.on.seen(), self.off.seen()
        for number in off:
            if on[number] != off[number]:
                place = next((n for n, (a, b) in enumerate(zip(on[number][0], off[number][0], strict=False)) if a != b), -1)
                shown = [(one[0][max(place - 40, 0) :][:200], len(one[0]), one[1]) for one in (on[number], off[number])]
                raise AssertionError(f"connection {number}, byte {place}: {shown[0]} with the fast path, {shown[1]} without")
        assert self.on.ends() == self.off.ends()
        assert self.on.counted() == self.off.counted()
        assert self.off.taken == 0

    def due(self, topic: bytes, index: int, producer: int) -> tuple[int, int]:
        """The epoch and sequence that the producer must send next."""
        partition = self.off.engine.partitions.led_by_name.get((topic.decode("utf-8", "replace"), index))
        state = None if partition is None else partition.producers.get(producer)
        return (0, 0) if state is None else (state.epoch, (state.batches[-1].last_sequence + 1) & 0x7FFFFFFF)

    def is_over(self, number: int) -> bool:
        """Whether nothing more can be sent: the connection is closed, or waits for the rest of a frame with a wrong length."""
        states = [side.is_over(number) for side in self.sides]
        assert states[0] == states[1]
        return states[0]

    def do(self, action: Callable[[Harness], Any]) -> None:
        for side in self.sides:
            action(side.harness)

    def close(self) -> None:
        """Stop both and compare what they stored, byte for byte."""
        self.compare()
        on, off = self.on.close(), self.off.close()
        assert on.keys() == off.keys()
        for name in off:
            assert on[name] == off[name], name
        assert sum(map(len, off.values()))


def produce_frame(
    version: int,
    correlation_id: int,
    topics: list[tuple[bytes, list[tuple[int, bytes | None]]]],
    *,
    acks: int = 1,
    client: bytes | None = b"client",
    transactional_id: bytes | None = None,
    tags: bytes = b"\0",
    partition_tags: bytes = b"\0",
    topic_tags: bytes = b"\0",
    request_tags: bytes = b"\0",
    behind: bytes = b"",
) -> bytes:
    """A Produce request as a client writes it, with its length. Tags are written in flexible versions; `partition_tags` are those
    of the first partition, `topic_tags` of each topic.
    `behind` follows the request's proper end."""
    flexible = version >= _FLEXIBLE_FROM
    out = head_of(ApiKey.PRODUCE, version, correlation_id, client, tags if flexible else b"")
    out += string_of(transactional_id, flexible) + struct.pack(">hi", acks, 30_000) + count_of(len(topics), flexible)
    for name, partitions in topics:
        out += string_of(name, flexible) + count_of(len(partitions), flexible)
        for index, records in partitions:
            out += struct.pack(">i", index)
            if flexible:
                out += b"\0" if records is None else uvarint(len(records) + 1) + records
                out += partition_tags
                partition_tags = b"\0"
            else:
                out += struct.pack(">i", -1 if records is None else len(records)) + (records or b"")
        if flexible:
            out += topic_tags
    if flexible:
        out += request_tags
    out += behind
    return struct.pack(">i", len(out)) + bytes(out)


def head_of(api_key: ApiKey, version: int, correlation_id: int, client: bytes | None, tags: bytes) -> bytearray:
    name = b"\xff\xff" if client is None else struct.pack(">h", len(client)) + client
    return bytearray(struct.pack(">hhi", int(api_key), version, correlation_id) + name + tags)


def string_of(text: bytes | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    return (uvarint(len(text) + 1) if flexible else struct.pack(">h", len(text))) + text


def count_of(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else struct.pack(">i", count)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


_ALTERED_FIELDS = (
    *("attributes", "last_offset_delta", "base_timestamp", "max_timestamp", "record_count", "record_count", "base_sequence"),
    *("producer_epoch", "producer_id", "base_offset", "leader_epoch", "length", "magic"),
)


class Sender:
    """The client of one connection: version, client id, acks and topic, drawn once and kept."""

    def __init__(self, number: int, chance: random.Random, topics: Sequence[bytes]) -> None:
        self.number = number
        self.version = chance.choice((3, 5, 7, 8, 9, 10, 11, 12, 12, 9, 8))
        self.client = chance.choice((b"producer-1", b"rdkafka", b"aiokafka-0.12.0", b"", None))
        self.acks = chance.choice((1, 1, -1, -1, 0))
        self.topic = chance.choice(topics)
        self.correlation_id = 0


class Clients:
    """Some clients and their requests, as a function of the seed and of what both sides have stored, not of their answers."""

    strange: tuple[Callable[[Any, Any, Any], bytes], ...]  # what a client may send instead of what is usual
    changes: tuple[dict[str, Any], ...]  # of settings, for one request

    def __init__(self, seed: str, share_strange: float) -> None:
        self.chance = random.Random(seed)
        self.clients: list[Any] = []
        self._share_strange = share_strange
        self._connections = 0

    def new_client(self, number: int) -> Any:
        raise NotImplementedError

    def topics(self, client: Any) -> Any:
        """What its next request is about."""
        raise NotImplementedError

    def frame(self, client: Any, topics: Any, **changes: Any) -> bytes:
        raise NotImplementedError

    def client(self, count: int) -> Any:
        """One of `count`."""
        while len(self.clients) < count:
            self._connections += 1
            self.clients.append(self.new_client(self._connections))
        return self.chance.choice(self.clients)

    def request(self, client: Any) -> bytes:
        client.correlation_id += 1
        topics = self.topics(client)
        if self.chance.random() >= self._share_strange:
            return self.frame(client, topics)
        return self.chance.choice(self.strange)(self, client, topics)

    def arrived(self) -> None:
        """Everything sent so far has been processed."""

    def spoiled(self, client: Any, topics: Any) -> bytes:
        frame = bytearray(self.frame(client, topics))
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            octets = (0, 1, 2, 0x7F, 0x80, 0xFF, self.chance.randrange(256))
            frame[self.chance.randrange(4, len(frame))] = self.chance.choice(octets)
        return bytes(frame)

    def other_settings(self, client: Any, topics: Any) -> bytes:
        return self.frame(client, topics, **self.chance.choice(self.changes))

    def tagged(self, client: Any, topics: Any) -> bytes:
        """Tags that are legal, that lie, or whose varints are longer than needed; or bytes after the request's end."""
        name = self.chance.choice(("tags", "partition_tags", "topic_tags", "request_tags", "behind"))
        value = self.chance.choice((b"\x01\x09\x01x", b"\x01", b"\x05", b"\x80\x00", b"\xff", b"\0\0", b"", REPLICA_TAGS))
        return self.frame(client, topics, **{name: value})

    def something_else(self, client: Any, topics: Any) -> bytes:
        """A request of another kind, alone, or next to a usual one."""
        other = head_of(ApiKey.API_VERSIONS, 2, client.correlation_id, b"x", b"")
        other = bytearray(struct.pack(">i", len(other)) + other)
        frame = self.frame(client, topics)
        return bytes(self.chance.choice((other, other + frame, frame + other)))


class Senders(Clients):
    """Makes Produce requests."""

    changes = (
        *({"acks": acks} for acks in (2, -2, 0, 1, -1)),
        *({"version": version} for version in (2, 13, 3, 12)),
        *({"client": client} for client in (b"another", b"\xff\xfe", b"c" * 700)),
        *({"transactional_id": name} for name in (b"t", b"")),
        {"tags": b"\x01\x09\x01x"},
    )

    def __init__(
        self,
        seed: str,
        *,
        strange: float,
        topics: Sequence[bytes],
        now_ms: Callable[[], int],
        stored: Callable[[bytes, int, int], tuple[int, int]],
    ) -> None:
        """`stored` returns the epoch and sequence that a producer of a partition must send next."""
        super().__init__(seed, strange)
        self._stored = stored
        self._topics = topics
        self._now_ms = now_ms
        self._next: dict[tuple[bytes, int, int], tuple[int, int]] = {}  # the same, counting batches in flight
        self._sent: list[bytes] = []

    def arrived(self) -> None:
        self._next.clear()

    def _due(self, topic: bytes, index: int, producer: int) -> tuple[int, int]:
        return self._next.get((topic, index, producer)) or self._stored(topic, index, producer)

    def new_client(self, number: int) -> Sender:
        return Sender(number, self.chance, self._topics)

    def topics(self, sender: Sender) -> list[tuple[bytes, list[tuple[int, bytes | None]]]]:
        partitions = self.chance.sample(range(PARTITIONS), self.chance.choice((1, 1, 1, 2, PARTITIONS)))
        return [(sender.topic, [(index, self._batch(sender.topic, index)) for index in partitions])]

    def frame(self, sender: Sender, topics: list[tuple[bytes, list[tuple[int, bytes | None]]]], **changes: Any) -> bytes:
        settings = {"acks": sender.acks, "client": sender.client, **changes}
        return produce_frame(settings.pop("version", sender.version), sender.correlation_id, topics, **settings)

    def _batch(self, topic: bytes, index: int, **fields: Any) -> bytes:
        chance, now = self.chance, self._now_ms()
        count = chance.choice((1, 1, 2, 5, 20))
        keys = b"key" if topic == b"keyed" else None
        records = [
            NewRecord(timestamp=now + chance.randrange(-1000, 150), key=keys, value=chance.randbytes(3) * chance.randrange(1, 40))
            for _ in range(count)
        ]
        codec = chance.choice((0, 0, 0, 0, 1, 2, 3, 4))
        if chance.random() < 0.5:
            producer = chance.randrange(1, 4)
            epoch, sequence = self._due(topic, index, producer)
            fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence, **fields}
            self._next[topic, index, producer] = epoch, (sequence + count) & 0x7FFFFFFF
        batch = bytes(build_batch(records, codec=codec, **fields))
        self._sent = [*self._sent[-19:], batch]
        return batch

    # Strange requests

    def _spoiled_head(self, sender: Sender, topics: Any) -> bytes:
        frame = bytearray(self.frame(sender, topics))
        frame[self.chance.randrange(0, min(len(frame), 80))] = self.chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        return bytes(frame)

    def _altered(self, sender: Sender, topics: Any) -> bytes:
        """A wrong field under a correct checksum."""
        chance, now = self.chance, self._now_ms()
        numbers = (0, 1, -1, -2, 0x7FFF, -0x8000, 0x7FFFFFFF, -0x80000000)
        field = chance.choice(_ALTERED_FIELDS)
        value = chance.choice(numbers)
        if field in ("attributes", "producer_epoch"):
            value = chance.randrange(-0x8000, 0x8000) if chance.random() < 0.3 else chance.randrange(0, 0x80)
        elif field == "length":
            value = len(topics[-1][1][-1][1]) - 12 + chance.choice((-1, 1, 12, -13))
        elif field == "magic":
            value = chance.randrange(0, 4)
        elif field.endswith("timestamp"):
            value = chance.choice((-1, -2, 0, now, now + 3_600_000, now + 3_600_001, now + 10**12, 1 << 62))
        (name, partitions), *rest = topics
        index, raw = partitions[-1]
        changes = {field: value}
        if field == "record_count" and value > -0x80000000:
            changes = {"record_count": value, "last_offset_delta": value - chance.choice((0, 1, 1, 1))}
        changed = bytes(altered(bytearray(raw), **changes))
        return self.frame(sender, [(name, [*partitions[:-1], (index, changed)]), *rest])

    def _again(self, sender: Sender, topics: Any) -> bytes:
        """A batch that was sent before: a duplicate, or to another partition."""
        return self.frame(sender, [(sender.topic, [(self.chance.randrange(PARTITIONS), self.chance.choice(self._sent))])])

    def _out_of_order(self, sender: Sender, topics: Any) -> bytes:
        """A gap in the sequence, an old epoch, a new epoch, or a new epoch that does not begin at 0."""
        chance, producer, index = self.chance, self.chance.randrange(1, 4), self.chance.randrange(PARTITIONS)
        epoch, sequence = self._due(sender.topic, index, producer)
        next_epoch = epoch + 1
        changed = chance.choice(
            ((epoch, sequence + chance.randrange(1, 9)), (max(epoch - 1, 0), sequence), (next_epoch, 7), None)
        )
        if changed is None:
            self._next[sender.topic, index, producer] = next_epoch, 0
            return self.frame(sender, [(sender.topic, [(index, self._of(sender.topic, index, producer))])])
        fields = {"producer_id": producer, "producer_epoch": changed[0], "base_sequence": changed[1]}
        batch = bytes(build_batch([NewRecord(timestamp=self._now_ms(), value=b"v")], **fields))
        return self.frame(sender, [(sender.topic, [(index, batch)])])

    def _of(self, topic: bytes, index: int, producer: int) -> bytes:
        epoch, sequence = self._due(topic, index, producer)
        self._next[topic, index, producer] = epoch, sequence + 1
        record = NewRecord(timestamp=self._now_ms(), value=b"v")
        return bytes(build_batch([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence))

    def _wrapping(self, sender: Sender, topics: Any) -> bytes:
        """Sequences that wrap around to 0."""
        producer, index = self.chance.randrange(10, 10_000_000), self.chance.randrange(PARTITIONS)
        self._next[sender.topic, index, producer] = 0, 0x7FFFFFFF
        first, self._next[sender.topic, index, producer] = self._of(sender.topic, index, producer), (0, 0)
        sender.correlation_id += 1
        second = self._of(sender.topic, index, producer)
        return b"".join(self.frame(sender, [(sender.topic, [(index, one)])]) for one in (first, second))

    def _elsewhere(self, sender: Sender, topics: Any) -> bytes:
        """Another topic: one with other settings, or one that does not exist."""
        name = self.chance.choice((b"keyed", b"stamped", b"safe", b"plain", b"second", b"none", b"__consumer_offsets", b""))
        index = self.chance.choice((0, 1, PARTITIONS, -1, 1 << 30))
        return self.frame(sender, [(name, [(index, self._batch(name, 0))])])

    def _several_topics(self, sender: Sender, topics: Any) -> bytes:
        return self.frame(sender, [*topics, (b"stamped", [(0, self._batch(b"stamped", 0))])])

    def _same_partition_twice(self, sender: Sender, topics: Any) -> bytes:
        index = self.chance.randrange(PARTITIONS)
        return self.frame(sender, [(sender.topic, [(index, self._batch(sender.topic, index)) for _ in range(2)])])

    def _nothing(self, sender: Sender, topics: Any) -> bytes:
        partitions = self.chance.choice(([], [(0, None)], [(0, b"")], [(0, self._batch(sender.topic, 0)), (1, None)]))
        return self.frame(sender, self.chance.choice(([], [(sender.topic, partitions)])))

    def _joined(self, sender: Sender, topics: Any) -> bytes:
        """Two batches where one belongs, or one and a half."""
        (name, ((index, raw), *_)), *_ = topics
        more = raw[: self.chance.choice((1, 30, 61, len(raw)))]
        return self.frame(sender, [(name, [(index, raw + more)])])

    def _cut(self, sender: Sender, topics: Any) -> bytes:
        (name, ((index, raw), *_)), *_ = topics
        return self.frame(sender, [(name, [(index, raw[: self.chance.randrange(len(raw))])])])

    def _large(self, sender: Sender, topics: Any) -> bytes:
        record = NewRecord(timestamp=self._now_ms(), value=bytes(self.chance.choice((20_000, 70_000))))
        return self.frame(sender, [(sender.topic, [(0, bytes(build_batch([record])))])])

    def _not_compressed(self, sender: Sender, topics: Any) -> bytes:
        """The header names a codec, but the records are not compressed."""
        record = NewRecord(timestamp=self._now_ms(), value=self.chance.randbytes(30))
        batch = bytes(altered(build_batch([record]), attributes=self.chance.randrange(1, 8)))
        return self.frame(sender, [(sender.topic, [(0, batch)])])

    strange = (
        Clients.spoiled,
        _spoiled_head,
        *(_altered, _altered),
        *(_again, _again),
        *(_out_of_order, _out_of_order),
        _wrapping,
        _elsewhere,
        _several_topics,
        _same_partition_twice,
        _nothing,
        Clients.other_settings,
        *(Clients.tagged, Clients.tagged),
        _joined,
        _cut,
        _large,
        _not_compressed,
        Clients.something_else,
    )


# What happens to the brokers themselves, between two turns

_SETTINGS = {
    "max.message.bytes": ("30000", "300", "1048588"),
    "message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "message.timestamp.after.max.ms": ("0", "3600000"),
    "message.timestamp.before.max.ms": ("500", "9223372036854775807"),
    "logbus.acks.all.waits.for.flush": ("true", "false"),
}


def _settings(chance: random.Random) -> Callable[[Harness], None]:
    key = chance.choice(list(_SETTINGS))
    value = chance.choice(_SETTINGS[key])

    def action(harness: Harness) -> None:
        assert alter(harness, TOPIC, "second", (key, SET, value)) == (0, None)

    return action


def _delete_records(chance: random.Random) -> Callable[[Harness], None]:
    index, share = chance.randrange(PARTITIONS), chance.random()

    def action(harness: Harness) -> None:
        harness.flush()
        log = harness.engine.partitions.get("plain", index).log
        log.delete_before(max(log.log_start_offset, int(log.flushed_offset * share)))

    return action


def _new_topic(chance: random.Random) -> Callable[[Harness], None]:
    def action(harness: Harness) -> None:
        harness.delete("second")
        harness.settle()
        harness.create("second", PARTITIONS)
        harness.settle()

    return action


def _time(chance: random.Random) -> Callable[[Harness], None]:
    milliseconds = chance.choice((1, 100, 1_500, 20_000))

    def action(harness: Harness) -> None:
        harness.clock.advance_ms(milliseconds)
        harness.settle()

    return action


ADMINISTRATION = (_settings, _settings, _delete_records, _new_topic, _time, _time)


def run(
    directory: Path,
    seed: str,
    count: int,
    *,
    senders: int,
    pipelined: int,
    strange: float = 0.25,
    topics: Sequence[bytes] = (b"plain", b"plain", b"second", b"limited", b"safe"),
    administration: float = 0.02,
) -> Rivals:
    """Send `count` requests, up to `pipelined` of them in a turn. With more than one, the ordinary path writes together what
    the fast path writes connection by connection, so that logs could roll at different offsets: segments are large then."""
    log = LogConfig(index_interval_bytes=500)
    if pipelined == 1:
        log = replace(log, segment_bytes=6_000, roll_ms=5_000)
    rivals = Rivals(directory, log=log)
    requests = Senders(seed, strange=strange, topics=topics, now_ms=rivals.on.harness.clock.now_ms, stored=rivals.due)

    def turn() -> None:
        rivals.turn()
        rivals.drain()

    play(
        rivals,
        requests,
        count,
        clients=senders,
        in_turn=lambda: requests.chance.randrange(1, pipelined + 1),
        share_cut=0.1 if pipelined > 1 else 0.0,
        turn=turn,
        administration=administration,
    )
    return rivals


def play(
    rivals: Rivals,
    requests: Clients,
    count: int,
    *,
    clients: int,
    in_turn: Callable[[], int],
    share_cut: float,
    turn: Callable[[], None],
    administration: float,
) -> None:
    """Send `count` requests of `clients` clients, `in_turn` of them before each turn; some arrive in two pieces."""
    chance, done = requests.chance, 0
    while done < count:
        before = done
        for _ in range(in_turn()):
            client = requests.client(clients)
            frame = requests.request(client)
            done += 1
            rivals.feed(client.number, frame, cut=chance.randrange(1, len(frame)) if chance.random() < share_cut else 0)
        turn()
        requests.arrived()
        requests.clients = [client for client in requests.clients if not rivals.is_over(client.number)]
        if chance.random() < administration:
            rivals.do(chance.choice(ADMINISTRATION)(chance))
        if before // 50 < done // 50:
            rivals.compare()
