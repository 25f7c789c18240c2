"""One run of sending: from merged lines to records, with a checkpoint every so many lines.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import fsencode
from pathlib import Path
from typing import Any

from logbus.errors import DeliveryFailed
from logbus.kafka.client import Client
from logbus.kafka.producing import CLIENTS_CHOICE, DEFAULTS, SETTINGS, Delivery
from logbus.loads.read_tally import SENT_HEADER
from logbus.shipper.line_reader import text_bytes
from logbus.shipper.merged_lines import LineReading, ReadingNotes, TimeOf, TimestampedLine, day_text, merged, months_away
from logbus.shipper.sources import FilePart, Fingerprint, Source
from logbus.shipper.topic_client import position_header
from logbus.waiting import Say, say_nothing

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
