"""Records of a topic: its last ones, those from an instant or an offset on, or those that a filter takes, and as they arrive, for
all pages that follow it: one reading for all of them, and none without them. Commits nothing.

A broker cannot filter, so a search reads all records of its span, in steps: each request reads on from where the one before
it ended, within limits on bytes, records and seconds, and answers with what it has found and where to go on. Nothing is kept
between two steps. The span's end is fixed by the first, so that a search ends although producers continue.

Open to users who may see a pipeline that loads the topic, or who may read the broker's connection in Airflow, with which they
could read the topic themselves. A topic's name (the page of topics) gives nothing away; records may.

A page that follows a topic asks every second. The first one to ask reads what the topic has gained since the reading before
(`Reading`: the others get the same answer), so nothing reads when nobody asks: a page that is stopped, hidden or closed costs no
more than the reading that is under way, `SECONDS_MAX` at most. What a reading takes is bounded: of a topic that gains more, the
newest records are shown and the others passed over. A page says up to which offsets it has seen, so it may be answered by any of
several api-servers.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Any, Protocol

from confluent_kafka import Message
from fastapi import HTTPException

from logbus import errors, fingerprint, formatting, model
from logbus.kafka import console_consumer, console_format, topics
from logbus.kafka.client import LATEST, READ_COMMITTED, Client
from logbus.parsing.decoders import Undecodable
from logbus.web import reading

RECORDS_DEFAULT = 20
RECORDS_MAX = 100  # of a look, and of each partition that is looked at
SECONDS_MAX = 4.0  # the user waits; what has arrived by then is shown, and marked as not all
VALUE_BYTES_MAX = 20_000
BYTES_MAX = 32 * 1024 * 1024  # held at once, in an api-server: a hundred records of many partitions may be gigabytes
SEARCHED_RECORDS_MAX = 200_000  # of a step, as are SECONDS_MAX and BYTES_MAX
SEARCHES_MAX = 4  # at once, of an api-server: each holds one of its threads, and reads as fast as the broker delivers
OFFSETS = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*")
SETTINGS: Mapping[str, Any] = {"fetch.wait.max.ms": 20, "queued.max.messages.kbytes": 16_384}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsLook:
    """Where to look: in `bounds`, offsets by partition, if they are given; otherwise in `span`, in one partition or in all."""

    topic: str
    span: console_consumer.PositionSpan
    count: int = RECORDS_DEFAULT
    partition: int | None = None
    bounds: Mapping[int, console_consumer.OffsetBounds] | None = None
    filter: console_consumer.RecordFilter = console_consumer.EVERY_RECORD


class Readable(Protocol):
    """Values that name their schema (`logbus.parsing.schema_format`)."""

    def of_message(self, message: Any) -> bytes | None:
        """The value as JSON."""


def look_at(client: Client, look: RecordsLook, searches: BoundedSemaphore, readable: Readable | None = None) -> dict[str, Any]:
    """As JSON-ready values. `TopicMissing`, `AccessDenied`, `BrokerUnavailable`; 400: no such partition; 429: as `one_of`."""
    log = topics.Topics(client)
    partition_ids = log.topic(look.topic).partitions
    requested = look.bounds or ([] if look.partition is None else [look.partition])
    try:
        partitions = console_consumer.chosen_partitions(look.topic, partition_ids, requested)
    except errors.UserError as error:
        raise HTTPException(400, str(error)) from None
    bounds = console_consumer.offset_bounds(log, look.topic, partitions, look.span, READ_COMMITTED, {})
    if look.bounds is not None:
        bounds = {part: inside(look.bounds[part], bounds[part]) for part in partitions}
    facts = {"topic": look.topic, "partitions": _partition_facts(log, look.topic, partition_ids)}
    if look.filter != console_consumer.EVERY_RECORD:
        with one_of(searches):
            return {**facts, **search(client, look, bounds, readable)}
    messages, is_whole = read(client, look.topic, {part: bounded(part_bounds, look) for part, part_bounds in bounds.items()})
    is_last = look.span.kind is console_consumer.PositionKind.BEFORE_END
    ordered = in_order_of_time(messages)
    shown = ordered[-look.count :] if is_last else ordered[: look.count]
    return {**facts, "records": [record_json(message, readable) for message in shown], "is_whole": is_whole, "search": None}


def in_order_of_time(messages: list[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: (message.timestamp()[1], message.partition(), message.offset()))


def inside(stretch: console_consumer.OffsetBounds, log_bounds: console_consumer.OffsetBounds) -> console_consumer.OffsetBounds:
    """Without what the log does not hold, or no longer."""
    return console_consumer.OffsetBounds(
        start_offset=max(stretch.start_offset, log_bounds.start_offset), end_offset=min(stretch.end_offset, log_bounds.end_offset)
    )


def bounded(stretch: console_consumer.OffsetBounds, look: RecordsLook) -> console_consumer.OffsetBounds:
    """No more from one partition than is shown from all: each of them may hold all that is wanted."""
    return console_consumer.OffsetBounds(
        start_offset=stretch.start_offset, end_offset=min(stretch.end_offset, stretch.start_offset + look.count)
    )


def read(client: Client, topic: str, bounds: Mapping[int, console_consumer.OffsetBounds]) -> tuple[list[Message], bool]:
    """What arrives of the stretches within the limits on time and memory, and whether that is all."""
    until, bytes_read, messages = time.monotonic() + SECONDS_MAX, 0, list[Message]()

    def is_enough() -> bool:
        return time.monotonic() > until or bytes_read >= BYTES_MAX

    for batch in _batches(client, topic, bounds, is_enough):
        messages += batch
        bytes_read += sum(len(message) + len(message.key() or b"") for message in batch)
    return messages, not is_enough()


def _batches(
    client: Client, topic: str, bounds: Mapping[int, console_consumer.OffsetBounds], is_enough: Callable[[], bool]
) -> Iterator[list[Message]]:
    request = console_consumer.ReadRequest(topic=topic)
    reader = console_consumer.consumer(client.config, request, None, settings=SETTINGS)
    try:
        yield from console_consumer.ConsoleConsumer(reader, request, bounds).batches(is_enough)
    finally:
        reader.close()


@dataclass(slots=True, kw_only=True)
class SearchStep:
    """What one request of a search has read so far, and where it would go on: the next offset by partition."""

    look: RecordsLook
    positions: dict[int, int]
    messages: list[Message] = field(default_factory=list)
    records_read: int = 0
    bytes_read: int = 0

    def take(self, batch: Sequence[Message]) -> None:
        """Ends in the middle of a batch if that holds the last record that is shown."""
        for message in batch:
            if len(self.messages) == self.look.count:
                break
            self.positions[message.partition()] = message.offset() + 1
            self.records_read += 1
            self.bytes_read += len(message) + len(message.key() or b"")
            if self.look.filter.takes(message):
                self.messages.append(message)

    def is_full(self) -> bool:
        limits = (len(self.messages) >= self.look.count, self.bytes_read >= BYTES_MAX, self.records_read >= SEARCHED_RECORDS_MAX)
        return any(limits)


def search(
    client: Client, look: RecordsLook, bounds: Mapping[int, console_consumer.OffsetBounds], readable: Readable | None
) -> dict[str, Any]:
    """One step, as JSON-ready values. `next_offsets` is null where the span is read to its end."""
    step = SearchStep(look=look, positions={part: stretch.start_offset for part, stretch in bounds.items()})
    until = time.monotonic() + SECONDS_MAX

    def is_enough() -> bool:
        return time.monotonic() > until or step.is_full()

    for batch in _batches(client, look.topic, bounds, is_enough):
        step.take(batch)
    ends = {part: stretch.end_offset for part, stretch in bounds.items()}
    # The last offsets of a stretch may hold no record: read to its end is one that ended by itself.
    rest = {part: offset for part, offset in step.positions.items() if offset < ends[part]} if is_enough() else {}
    total = sum(max(0, stretch.end_offset - stretch.start_offset) for stretch in bounds.values())
    left = sum(ends[part] - offset for part, offset in rest.items())
    return {
        "records": [record_json(message, readable) for message in in_order_of_time(step.messages)],
        "is_whole": True,
        "search": {
            "records_read": step.records_read,
            "bytes_read": step.bytes_read,
            "offsets_read": total - left,
            "offsets_left": left,
            "next_offsets": offsets_text(rest) if rest else None,
            "ending_offsets": offsets_text({part: ends[part] for part in rest}),
        },
    }


@contextmanager
def one_of(searches: BoundedSemaphore) -> Iterator[None]:
    """A place among the searches of this process; 429 if all are taken: nobody waits, as that would hold a thread, too."""
    if not searches.acquire(blocking=False):
        raise HTTPException(429, f"{SEARCHES_MAX} searches are running already: continue when one of them has ended")
    try:
        yield
    finally:
        searches.release()


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Offsets by partition as they stand in an address: `0:17,3:5`."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def parsed_offsets(text: str) -> dict[int, int]:
    """The offsets of such a text; 400 for any other."""
    if not OFFSETS.fullmatch(text):
        raise HTTPException(400, f"{text[:100]!r} are not offsets by partition: write them like 0:17,3:5")
    pairs = [pair.split(":") for pair in text.split(",")]
    return {int(partition): int(offset) for partition, offset in pairs}


def _partition_facts(log: topics.Topics, topic: str, partitions: Sequence[int]) -> list[dict[str, Any]]:
    """Where each begins and ends, and the newest timestamp in it: to show a partition that fell silent or takes everything."""
    starts, ends = log.start_offsets(topic, partitions), log.end_offsets(topic, partitions, LATEST)
    newest = log.newest(topic, [part for part in partitions if ends[part] > starts[part]])
    return [
        {
            "partition": part,
            "start_offset": starts[part],
            "end_offset": ends[part],
            "newest_at": model.timestamp_text(newest[part].timestamp_ms) if part in newest else None,
        }
        for part in partitions
    ]


def record_json(message: Message, readable: Readable | None = None) -> dict[str, Any]:
    """`key` and `value` as text, or in base64 next to a null if the bytes are not text; long values are cut. A value that names
    its schema is shown as JSON."""
    kind, stamp = message.timestamp()
    value = message.value()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == console_format.NO_TIMESTAMP else model.timestamp_text(stamp),
        "timestamp_type": console_format.TIMESTAMP_TYPES[kind],
        **named("key", message.key()),
        **named("value", value if readable is None else _readable(message, readable)),
        "value_bytes": None if value is None else len(value),
        "headers": [[name, text_of(content)] for name, content in fingerprint.headers_of(message)],
    }


def _readable(message: Message, readable: Readable) -> bytes | None:
    """As JSON, or as it is: it may be of a schema that no hour was loaded with yet, or be what becomes a dead letter."""
    try:
        return readable.of_message(message)
    except (errors.LogbusError, Undecodable):
        return message.value()


def named(name: str, data: bytes | None) -> dict[str, Any]:
    """A text under its name; bytes that are not text under `..._base64`."""
    is_cut = data is not None and len(data) > VALUE_BYTES_MAX
    shown = formatting.shown_value(formatting.cut(data, VALUE_BYTES_MAX))
    fields = {name: shown.get("value"), f"{name}_is_cut": is_cut}
    return {**fields, f"{name}_base64": shown["value_base64"]} if "value_base64" in shown else fields


def text_of(content: bytes | None) -> str | None:
    return None if content is None else content[:VALUE_BYTES_MAX].decode(errors="backslashreplace")


# A topic's newest records as they arrive, for all pages that follow it: one reading for all of them, and none without them.


TURN_SECONDS = 1.0  # how often a page asks, and how often a topic is read at most
TURN_RECORDS_MAX = 50  # more in a second than anybody reads
KEPT_RECORDS_MAX = 200
KEPT_BYTES_MAX = 4 * 1024 * 1024
PAUSE_SECONDS_MAX = 10.0  # after a longer one a tail begins anew at the topic's end: what arrived meanwhile is not caught up with
TAILS_MAX = 8  # topics that are followed at once, of a broker


@dataclass(frozen=True, slots=True, kw_only=True)
class TailView:
    """What one page gets: records, oldest first, how many more there were, and the ends to ask from the next time."""

    records: list[Message]
    passed_over: int
    ends: Mapping[int, int]

    def summary(self, readable: Readable | None) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "records": [record_json(message, readable) for message in self.records],
            "passed_over": self.passed_over,
            "next_offsets": offsets_text(self.ends),
        }


class LiveTail:
    """The tail of one topic. `clock` counts seconds."""

    def __init__(self, client: Client, topic: str, clock: Callable[[], float]) -> None:
        self.topic = topic
        self._client = client
        self._clock = clock
        self._kept: deque[Message] = deque()
        self._ends: dict[int, int] = {}
        self._read_at: float | None = None
        self._reading = reading.Reading(self._turn, clock, name="logbus-tail", max_age_seconds=TURN_SECONDS)

    def view(self, offsets: Mapping[int, int] | None, chosen: console_consumer.RecordFilter, partition: int | None) -> TailView:
        """What there is from these offsets on; without them the last records. Of one partition, or of all."""
        kept, ends = self._reading.fresh()
        seen_until = {part: offset for part, offset in (offsets or {}).items() if partition in (None, part)}
        # An offset behind the end is of a log that is gone: the topic was recreated, or its end was lost.
        begins = {part: offset if offset <= ends.get(part, offset) else 0 for part, offset in seen_until.items()}
        newer = [
            message
            for message in kept
            if partition in (None, message.partition()) and message.offset() >= begins.get(message.partition(), 0)
        ]
        arrived = sum(max(0, ends[part] - offset) for part, offset in begins.items() if part in ends)
        passed_over = max(0, arrived - sum(message.partition() in begins for message in newer))
        records = [message for message in newer if chosen.takes(message)]
        return TailView(records=records[-RECORDS_MAX:], passed_over=passed_over, ends=ends)

    def _turn(self) -> tuple[list[Message], dict[int, int]]:
        """Runs in one thread at a time."""
        log = topics.Topics(self._client)
        partitions = log.topic(self.topic).partitions
        ends = log.end_offsets(self.topic, partitions, READ_COMMITTED)
        is_shorter = any(end < self._ends.get(part, 0) for part, end in ends.items())
        if is_shorter or self._read_at is None or self._clock() - self._read_at > PAUSE_SECONDS_MAX:
            self._kept.clear()
            begins = {part: end - RECORDS_DEFAULT for part, end in ends.items()}
        else:
            begins = {part: max(self._ends.get(part, 0), end - TURN_RECORDS_MAX) for part, end in ends.items()}
        starts = log.start_offsets(self.topic, [part for part in partitions if begins[part] < ends[part]])
        bounds = {
            part: console_consumer.OffsetBounds(start_offset=max(begins[part], start), end_offset=ends[part])
            for part, start in starts.items()
        }
        messages, _ = read(self._client, self.topic, bounds) if bounds else ([], True)
        self._kept.extend(in_order_of_time(messages)[-TURN_RECORDS_MAX:])
        while len(self._kept) > KEPT_RECORDS_MAX or sum(map(len, self._kept)) > KEPT_BYTES_MAX:
            self._kept.popleft()
        self._ends, self._read_at = ends, self._clock()
        return list(self._kept), ends
