"""One run of sending: from merged lines to records, with a checkpoint every so many lines; and what it needs from its topic:
create it, where it ends, which lines it holds, and which it has lost.

A broker that has answered before is given time to come back, as the producer does: a restart during a run costs time and nothing
else. One that is away and never answered fails the run at once.

A topic that ends before the recorded offsets has lost lines that it had acknowledged, by a restore or an unclean election. Each
record names its line and file, so the topic itself shows what it still holds; lines that a file has and the topic lacks are sent
again. That works only if nothing else explains why a line is missing: if retention has deleted records that may be among the lost
ones, the two cannot be told apart, and nothing is sent.

The hot loop of the shipper: about six microseconds a line on one core of 2020, half of which goes to recognising its time. A
producer's callback runs only for a record that fails, not for one that arrives; lines are acknowledged all together, at a
checkpoint.

Records are numbered, so that the audit can check whether all of them arrived (docs/producer-counts.md). The numbers of a stream
run within one partition, so the partition must be known before the record is sent: it is chosen here, by the hash that the Java
client and librdkafka use. A run is one stream per partition, numbered from 1; the next run has another name. Lines that an
interrupted run did not deliver either have no number yet, or get a new one under the next run's name.
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import fsencode
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from logbus.errors import DeliveryFailed, TopicShortened
from logbus.fingerprint import headers_of
from logbus.kafka.client import ANSWER_SECONDS_MAX, LATEST, Client
from logbus.kafka.producing import CLIENTS_CHOICE, DEFAULTS, DELIVERY_SECONDS_MAX, SETTINGS, Delivery
from logbus.kafka.topics import Topics
from logbus.loads.read_tally import SENT_HEADER
from logbus.shipper.line_reader import text_bytes
from logbus.shipper.merged_lines import LineReading, ReadingNotes, TimeOf, TimestampedLine, day_text, merged, months_away
from logbus.shipper.sources import FilePart, Fingerprint, Source
from logbus.waiting import Say, announced, say_nothing

TIMEOUT_SECONDS = 15.0  # between two attempts while the broker is away
POLL_SECONDS = 1.0
POSITION_HEADER = "position"

READING: Mapping[str, Any] = {
    "group.id": "logbus-ship",  # required by the client, never joined: partitions are assigned
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": LATEST,
    "auto.offset.reset": "earliest",  # retention may have passed the last checkpoint
}


class TopicClient:
    """One topic of one cluster."""

    def __init__(self, topic: str, client_config: Mapping[str, Any], say: Say = say_nothing) -> None:
        self.topic = topic
        self._client = Client(
            client_config,
            timeout_seconds=TIMEOUT_SECONDS,
            away_seconds_max=DELIVERY_SECONDS_MAX,
            first_answer_seconds_max=ANSWER_SECONDS_MAX,
            say=say,
        )
        self._topics = Topics(self._client)

    def exists(self) -> bool:
        """Whether the topic exists. Asks for all topics, because asking for one by name may create it."""
        return self.topic in self._client.metadata().topics

    def create(self, *, partitions: int, settings: Mapping[str, str]) -> None:
        """Create the topic; it is fine if another client has just created it."""
        self._topics.create(self.topic, partitions=partitions, settings=settings, if_not_exists=True)

    def topic_id(self) -> str:
        """The id that the broker gave the topic when it was created; a recreated topic has another one."""
        return self._topics.topic(self.topic).topic_id

    def end_offsets(self) -> dict[int, int]:
        """The offset after the last record of each partition."""
        return self._topics.end_offsets(self.topic, self._topics.topic(self.topic).partitions, LATEST)

    def start_offsets(self) -> dict[int, int]:
        """The offset of the first record that each partition still holds."""
        return self._topics.start_offsets(self.topic, self._topics.topic(self.topic).partitions)

    def positions(self, start_offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> dict[str, dict[int, set[int]]]:
        """For each source, by partition, the positions of its lines in the records from `start_offsets` up to `end_offsets`."""
        pending = {partition: end for partition, end in end_offsets.items() if start_offsets.get(partition, 0) < end}
        positions: dict[str, dict[int, set[int]]] = {}
        consumer = self._client.consumer(READING)
        try:
            consumer.assign([TopicPartition(self.topic, partition, start_offsets.get(partition, 0)) for partition in pending])
            while pending:
                self._take(consumer.poll(POLL_SECONDS) or self._awaited(consumer), pending, positions)
        finally:
            consumer.close()
        return positions

    def _awaited(self, consumer: Consumer) -> Message:
        began_at = time.monotonic()
        with announced(f"records of topic {self.topic}", self._client.say):
            while (message := consumer.poll(POLL_SECONDS)) is None:
                self._client.raise_if_silent(began_at, f"topic {self.topic}")
        return message

    def _take(self, message: Message, pending: dict[int, int], positions: dict[str, dict[int, set[int]]]) -> None:
        partition, error = message.partition(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._client.explain(error, self.topic, needs="Read")
        if error is None:
            source_id, position = _source_and_position(message)
            if source_id:
                positions.setdefault(source_id, {}).setdefault(partition, set()).add(position)
        if error is not None or (message.offset() or 0) + 1 >= pending.get(partition, 0):
            pending.pop(partition, None)


def position_header(source_id: bytes, position: int) -> tuple[str, bytes]:
    """In which file and where a record's line began: a run after a crash looks for this header."""
    return POSITION_HEADER, b"%b:%d" % (source_id, position)


def _source_and_position(message: Message) -> tuple[str, int]:
    """The reverse of position_header; an empty id for a record that we did not send."""
    for name, value in reversed(headers_of(message)):
        if name == POSITION_HEADER and isinstance(value, bytes):
            source_id, _, position = value.decode("utf-8", "replace").partition(":")
            if position.isdecimal():
                return source_id, int(position)
    return "", 0


# If an interrupted run was resumed, the topic may hold a file's lines in another order than the file, but only within what was
# sent since a checkpoint. So this many lines before the last one stored are checked again.
LINES_LOOKED_BACK = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTruncation:
    """For each partition that ends too early, its end and the recorded offset; if there are none, nothing is lost."""

    topic: str
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: str, recorded: Mapping[int, int], end_offsets: Mapping[int, int]) -> TopicTruncation:
        short = {part: (end_offsets[part], offset) for part, offset in recorded.items() if end_offsets.get(part, offset) < offset}
        return cls(topic=topic, ends=short)

    @property
    def records(self) -> int:
        return sum(recorded - end for end, recorded in self.ends.values())

    def __str__(self) -> str:
        return ", ".join(
            f"{self.topic}-{part} ends at {end} and had reached {recorded}" for part, (end, recorded) in self.ends.items()
        )


def rewound(
    source: Source, truncation: TopicTruncation, stored: Mapping[int, set[int]], start_offsets: Mapping[int, int]
) -> Source:
    """The source, set back to a position before the first lost line, with the later lines that the topic still holds; `stored`
    are, by partition, the positions of its lines in the topic."""
    if not source.position:
        return source
    positions = sorted(position for in_partition in stored.values() for position in in_partition)
    last_stored = min(max(stored.get(partition, {0}), default=0) for partition in truncation.ends)
    index = max(0, bisect_left(positions, last_stored) - LINES_LOOKED_BACK)
    position = positions[index] if index else 0
    for partition, start in start_offsets.items():
        if start and min(stored.get(partition, ()), default=source.position) > position:
            raise TopicShortened(
                f"topic {truncation.topic} has lost records that it had acknowledged ({truncation}), and retention has deleted "
                f"others, so it is unknown which lines of {source.path} to send again. To send all of them, move the state file "
                "away; to go on without the lost records, --accept-loss"
            )
    return replace(source, position=position, timestamp_ms=None, ahead=tuple(positions[index:]))


# One run of sending: from merged lines to records, with a checkpoint every so many lines.


KEYS_REMEMBERED = 100_000  # hosts, usually few; the hash of a new one takes microseconds

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with Kafka's seed."""
    state = (SEED ^ len(data)) & MASK
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        state = (state * MULTIPLIER & MASK) ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    state = (state ^ state >> 13) * MULTIPLIER & MASK
    return state ^ state >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition to which Kafka's clients send a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Numbering:
    """One run's streams over the partitions of a topic, with a name of its own."""

    def __init__(self, partition_count: int, name: str | None = None) -> None:
        name = name or f"ship-{secrets.token_hex(6)}"
        self._prefixes = [f"{name}-{partition}:".encode() for partition in range(partition_count)]
        self._sent = [0] * partition_count
        self._partitions: dict[bytes, int] = {}

    def next(self, key: bytes) -> tuple[int, tuple[str, bytes]]:
        """The partition of a record with this key, and the header with its number."""
        partition = self._partitions.get(key)
        if partition is None:
            if len(self._partitions) >= KEYS_REMEMBERED:
                self._partitions.clear()
            partition = self._partitions[key] = partition_of(key, len(self._sent))
        self._sent[partition] += 1
        return partition, (SENT_HEADER, self._prefixes[partition] + b"%d" % self._sent[partition])


PROGRESS_EVERY_LINES = 10_000

Progress = Callable[[int, int, int], None]  # bytes of the files done, bytes in all (on disk), lines sent
Checkpoint = Callable[[Sequence[Source], bool], None]


@dataclass(slots=True, kw_only=True)
class Sent:
    """Counts of one run so far."""

    lines: int = 0
    bytes: int = 0
    skipped: int = 0  # longer than line_bytes_max
    undated: int = 0  # without a credible time: they get that of the line before
    undated_before_any: int = 0  # of these, before any line with a time: they get that of the first such line
    undated_by_file: int = 0  # of these, with the time at which the file was last written: no line near them has one
    ahead: int = 0  # of the undated, with a time that is not believed because it is ahead of the clock
    zoneless: int = 0  # with a time written without a zone
    recovered: int = 0  # found in the topic after an interrupted run, so not sent again
    unfinished: int = 0  # last lines that have no newline yet, so not sent
    waiting: int = 0  # last records not sent yet, because the file was just written and its next line may belong to them
    months_away: int = 0  # with a time of their own that lies months away from those of the file's other lines
    months_away_day: str | None = None  # the first day of these, such as 2015-01-01
    holes: tuple[FilePart, ...] = ()  # runs of zero bytes that were passed over, by file
    carriage_returns: tuple[str, ...] = ()  # files whose unfinished last line has "\\r" in it, which may end its lines


@dataclass(kw_only=True)
class Shipment:
    """Sends the lines of some sources; calls `checkpoint(sources, clean)` once everything before their positions is acknowledged.

    `stop` is called after each line: a stopped run ends like one that has sent everything, only earlier.
    """

    sources: Mapping[str, Source]  # by id
    delivery: Delivery
    checkpoint: Checkpoint
    server_name: bytes
    progress: Progress
    checkpoint_lines: int
    numbering: Numbering | None = None
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        server = ("server", self.server_name)
        self._headers = {name: [server, ("file", fsencode(source.path))] for name, source in self.sources.items()}
        self._ahead = {name: set(source.ahead) for name, source in self.sources.items()}
        self._group: dict[str, set[int]] = {name: set() for name in self.sources}  # sent, but the file cannot go on after them
        self._last: dict[str, TimestampedLine] = {}
        self._dated = {name for name, source in self.sources.items() if source.timestamp_ms is not None}
        self._sent = Sent()

    def run(self, reading: LineReading) -> Sent:
        """Send everything, or what precedes the stop; return once all of it is acknowledged and recorded. Then raise
        UnreadableLog if a file is damaged: what precedes the damage is sent, and the other files."""
        notes = ReadingNotes()
        try:
            self._send_all(reading, notes)
        except BaseException:
            self.delivery.finish()
            raise
        self._settle(clean=True)
        self._sent.unfinished, self._sent.waiting = len(notes.unfinished), len(notes.waiting)
        self._sent.carriage_returns = tuple(self.sources[name].path for name, has_them in notes.unfinished.items() if has_them)
        by_day = [{day: count for day, (count,) in of_source.items()} for of_source in notes.days.values()]
        few = [day_and_count for counts in by_day for day_and_count in months_away(counts).items()]
        if few:
            self._sent.months_away, self._sent.months_away_day = sum(count for _, count in few), day_text(min(few)[0])
        self._sent.holes = tuple(
            FilePart(path=self.sources[name].path, position=min(runs), pieces=len(runs), bytes=sum(runs.values()))
            for name, runs in notes.holes.items()
            if runs
        )
        if notes.damaged:
            raise notes.damaged[0]
        return self._sent

    def _send_all(self, reading: LineReading, notes: ReadingNotes) -> None:
        bytes_in_all = sum(max(0, text_bytes(Path(source.path)) - source.position) for source in self.sources.values())
        bytes_done = 0
        for number, line in enumerate(merged(self.sources.values(), reading, notes), 1):
            self._take(line)
            bytes_done += line.end - line.position
            if number % PROGRESS_EVERY_LINES == 0:
                self.progress(bytes_done, bytes_in_all, self._sent.lines)
            if number % self.checkpoint_lines == 0:
                self._settle(clean=False)
            if self.stop() or self.delivery.failure is not None:
                break
        self.progress(bytes_done, bytes_in_all, self._sent.lines)

    def _take(self, line: TimestampedLine) -> None:
        sent, name = self._sent, line.source_id
        if line.time_of is TimeOf.LINE:
            self._dated.add(name)
        if line.position in self._ahead[name]:
            self._ahead[name].discard(line.position)
            sent.recovered += 1
        elif line.text is None:
            sent.skipped += 1
        else:
            self._send(line, line.text)
            sent.lines += 1
            sent.bytes += len(line.text)
            sent.zoneless += line.is_zoneless
            if line.time_of is not TimeOf.LINE:
                sent.undated += 1
                sent.undated_before_any += line.time_of is TimeOf.LINE_AFTER
                sent.undated_by_file += line.time_of is TimeOf.FILE
                sent.ahead += line.is_ahead
        if line.is_followed:
            self._group[name].add(line.position)
        else:
            self._group[name].clear()
            self._last[name] = line

    def _send(self, line: TimestampedLine, text: bytes) -> None:
        key, partition = line.host or self.server_name, CLIENTS_CHOICE
        headers = [*self._headers[line.source_id], position_header(line.source_id.encode(), line.position)]
        if self.numbering is not None:
            partition, number = self.numbering.next(key)
            headers.append(number)
        self.delivery.send(text, key, partition, timestamp=line.timestamp_ms, headers=headers)

    def _settle(self, *, clean: bool) -> None:
        settle(self.delivery)
        self.checkpoint([self._position(source) for source in self.sources.values()], clean)

    def _position(self, source: Source) -> Source:
        """The source at its current position."""
        line = self._last.get(source.source_id)
        ahead = tuple(sorted(self._ahead[source.source_id] | self._group[source.source_id]))
        if line is None:
            return replace(source, ahead=ahead)
        text = line.first_text or line.text
        last_line = Fingerprint.of(text, position=line.position) if text else source.last_line
        timestamp_ms = line.timestamp_ms if source.source_id in self._dated else None
        return replace(source, position=line.end, last_line=last_line, timestamp_ms=timestamp_ms, ahead=ahead)


PRODUCER_DEFAULTS: Mapping[str, Any] = {
    **SETTINGS,
    **DEFAULTS,
    "linger.ms": 50,  # full batches
    "delivery.report.only.error": True,
}


def open_delivery(topic: str, client_config: Mapping[str, Any], *, queued_lines_max: int, say: Say = say_nothing) -> Delivery:
    defaults = {**PRODUCER_DEFAULTS, "queue.buffering.max.messages": queued_lines_max}
    return Delivery(Client(client_config, say=say), topic, {}, defaults)


def settle(delivery: Delivery) -> None:
    """Returns when every line sent so far is acknowledged; `DeliveryFailed` otherwise."""
    delivery.settle()
    if delivery.failure is not None:
        delivery.finish()
        raise DeliveryFailed(
            f"topic {delivery.topic}: {delivery.cause()}. Then run again: what was acknowledged is not sent twice"
        )
