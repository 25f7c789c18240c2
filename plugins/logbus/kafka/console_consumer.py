"""Reading a topic for a terminal or a pipe: by assignment, or as a member of a group that commits what was printed.

Where to begin and where to end is given in kcat's syntax for `-o`:

    beginning | end | stored | N (an offset) | -N (N records before the end) | s@TIME (begin there) | e@TIME (end before it)

A time is milliseconds since the epoch, as in kcat, or an instant such as 2015-05-17T10:00:00Z. `stored` is the committed offset
of the given group. An offset outside the log is clamped to it, as a broker would.

A `RecordFilter` chooses among the records that are read: no broker can, so all of the stretch is still fetched.

Without a group the offsets to read are fixed when the reading begins, so that it ends although producers continue; when following
there is no end. With a group the partitions are those the group assigns, and an offset is stored for the group's next commit only
after the caller has processed the record: what was not printed is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from logbus import fingerprint, model, waiting
from logbus.errors import AccessDenied, BrokerUnavailable, LogbusError, TopicMissing, UserError
from logbus.kafka.client import READ_COMMITTED, SLOW_SECONDS_MAX, Client
from logbus.kafka.errors import AWAY, MISSING, explain
from logbus.kafka.topics import OffsetLog


class PositionKind(StrEnum):
    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"
    OFFSET = "offset"
    BEFORE_END = "before end"
    SINCE = "since"


# Both spellings of kcat, and those of other tools for the same.
WORDS: Mapping[str, PositionKind] = {
    "beginning": PositionKind.BEGINNING,
    "earliest": PositionKind.BEGINNING,
    "end": PositionKind.END,
    "latest": PositionKind.END,
    "stored": PositionKind.STORED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionSpan:
    """What to read: from where, and up to which time. `number` is an offset, a count or milliseconds, depending on the kind."""

    kind: PositionKind = PositionKind.BEGINNING
    number: int = 0
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBounds:
    """In one partition, the first offset to read and the offset to stop before."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which of the records read are wanted: those for which all that is given holds. `text` occurs in the value, `key` is the
    whole key, and each of `headers` is there, with any content if that is None."""

    text: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @classmethod
    def of(cls, text: str | None, key: str | None, headers: Iterable[str]) -> RecordFilter:
        """As typed; a header is `name=value`, or a name alone."""
        pairs = [header.partition("=") for header in headers]
        return cls(
            text=text.encode() if text else None,
            key=None if key is None else key.encode(),
            headers=tuple((name, content.encode() if equals else None) for name, equals, content in pairs),
        )

    def takes(self, message: Message) -> bool:
        if self.text is not None and self.text not in (message.value() or b""):
            return False
        if self.key is not None and self.key != message.key():
            return False
        if not self.headers:
            return True
        present = fingerprint.headers_of(message)
        return all(any(name == own and content in (None, value) for own, value in present) for name, content in self.headers)


EVERY_RECORD = RecordFilter()


def parse_span(words: Iterable[str]) -> PositionSpan:
    """The meaning of one or two `-o` together: a beginning, `e@TIME`, or both."""
    kind, number, until_ms, has_beginning = PositionKind.BEGINNING, 0, None, False
    for word in words:
        if word.startswith("e@"):
            until_ms = _parse_time(word[2:])
            continue
        if has_beginning:
            raise ValueError(f"{word!r} is a second start position")
        (kind, number), has_beginning = _parse_beginning(word), True
    return PositionSpan(kind=kind, number=number, until_ms=until_ms)


def _parse_beginning(word: str) -> tuple[PositionKind, int]:
    if word in WORDS:
        return WORDS[word], 0
    if word.startswith("s@"):
        return PositionKind.SINCE, _parse_time(word[2:])
    try:
        number = int(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a position in a topic: beginning, end, stored, N, -N, s@TIME or e@TIME") from None
    return (PositionKind.BEFORE_END, -number) if word.startswith("-") else (PositionKind.OFFSET, number)


def _parse_time(text: str) -> int:
    """Milliseconds since the epoch."""
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        return model.milliseconds(model.parse_instant(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write milliseconds since 1970, or an instant like 2015-05-17T10:00:00Z"
        ) from None


def offset_bounds(
    log: OffsetLog, topic: str, partitions: list[int], span: PositionSpan, isolation_level: str, stored: Mapping[int, int]
) -> dict[int, OffsetBounds]:
    """By partition, what to read of the log as it is now. `stored` are the group's committed offsets, if a group was given."""
    starts, ends = log.start_offsets(topic, partitions), log.end_offsets(topic, partitions, isolation_level)
    begins = {
        partition: min(max(offset, starts[partition]), ends[partition])
        for partition, offset in _beginnings(log, topic, partitions, span, (starts, ends), stored).items()
    }
    if span.until_ms is not None:
        behind = log.first_at_or_after(topic, partitions, span.until_ms)
        ends = {partition: min(end, behind[partition].offset) if partition in behind else end for partition, end in ends.items()}
    return {partition: OffsetBounds(start_offset=begins[partition], end_offset=ends[partition]) for partition in partitions}


Limits = tuple[Mapping[int, int], Mapping[int, int]]  # first offsets, end offsets


def _beginnings(
    log: OffsetLog, topic: str, partitions: list[int], span: PositionSpan, limits: Limits, stored: Mapping[int, int]
) -> Mapping[int, int]:
    """Where to begin in each partition, possibly outside the log."""
    starts, ends = limits
    if span.kind is PositionKind.SINCE:
        firsts = log.first_at_or_after(topic, partitions, span.number)
        return {partition: firsts[partition].offset if partition in firsts else ends[partition] for partition in partitions}
    if span.kind is PositionKind.STORED:
        return {partition: stored.get(partition, starts[partition]) for partition in partitions}
    return {
        PositionKind.BEGINNING: starts,
        PositionKind.END: ends,
        PositionKind.OFFSET: dict.fromkeys(partitions, span.number),
        PositionKind.BEFORE_END: {partition: ends[partition] - span.number for partition in partitions},
    }[span.kind]


def chosen_partitions(topic: str, existing: Iterable[int], requested: Iterable[int]) -> list[int]:
    """The requested partitions, or all."""
    partitions, chosen = sorted(existing), sorted(set(requested))
    if unknown := [partition for partition in chosen if partition not in partitions]:
        raise UserError(f"topic {topic} has no partition {', '.join(map(str, unknown))}: it has 0 to {partitions[-1]}")
    return chosen or partitions


BATCH_RECORDS = 1_000
POLL_SECONDS = 0.5  # how long a signal may wait for the client to return
# For a broker that delivers nothing although its end offsets say there are records: it was there a moment ago.
SILENCE_SECONDS_MAX = SLOW_SECONDS_MAX

SETTINGS: Mapping[str, Any] = {
    "enable.partition.eof": True,
    "enable.auto.offset.store": False,  # stored once it is printed
    "fetch.wait.max.ms": 500,
    "fetch.queue.backoff.ms": 10,  # by default the client pauses for a second whenever its queue is full
}


class ReadFailed(LogbusError):
    """The broker stopped delivering records with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What to read and how: at most `count_max` of the records that `filter` takes, either to the end or forever."""

    topic: str
    follows: bool = False
    count_max: int | None = None
    isolation_level: str = READ_COMMITTED
    filter: RecordFilter = EVERY_RECORD


def consumer(
    client_config: Mapping[str, Any],
    request: ReadRequest,
    group: str | None,
    reset: str = "error",
    settings: Mapping[str, Any] | None = None,
) -> Consumer:
    """A client for this reading; it commits offsets only when a group is given."""
    membership = {
        "group.id": group or "logbus-consume",  # the client needs a name even if no group is joined
        "enable.auto.commit": group is not None,
        "auto.offset.reset": reset,
        "isolation.level": request.isolation_level,
    }
    return Client(client_config).consumer({**SETTINGS, **membership, **(settings or {})})


class ConsoleConsumer:
    """One reading; `records` counts those yielded. Uses assignment if offset bounds are given, else a group's membership."""

    def __init__(
        self,
        client: Consumer,
        request: ReadRequest,
        offset_bounds: Mapping[int, OffsetBounds] | None = None,
        group: str | None = None,
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self.client = client
        self.request = request
        self.group = group or ""
        self.offset_bounds = offset_bounds
        self.records = 0
        self._say = waiting.say_nothing if request.follows else say  # at the end of a topic there is nothing to wait for
        self._open: set[int] = set()  # partitions not yet read to their end
        self._left: dict[int, int] = {}  # offsets that are still to be read in each of them, where the end is fixed
        self._has_begun = offset_bounds is not None

    def batches(self, stop: Callable[[], bool] = lambda: False) -> Iterator[list[Message]]:
        """Records as they arrive, in order within each partition; ends where the request does, or when `stop` returns true."""
        self._begin()
        while not self._is_done() and not stop():
            delivered = [message for message in self._consume(stop) if self._takes(message)]
            if batch := list(filter(self.request.filter.takes, delivered)):
                self.records += len(batch)
                yield batch
            self._store(delivered)

    def _consume(self, stop: Callable[[], bool]) -> list[Message]:
        """What the client delivers next: records, errors, ends of partitions; nothing if that ends the reading first."""
        silent_seconds = 0.0
        with waiting.announced(f"records of topic {self.request.topic}", self._say):
            while not (messages := self.client.consume(self._batch_records(), POLL_SECONDS)):
                silent_seconds += POLL_SECONDS
                if silent_seconds >= SILENCE_SECONDS_MAX and not self.request.follows:
                    raise BrokerUnavailable(
                        f"the broker delivered nothing of topic {self.request.topic} for {SILENCE_SECONDS_MAX:.0f} s: "
                        "check that it runs, and read again"
                    )
                if stop() or self._is_done():
                    break
        return list(messages)

    def _begin(self) -> None:
        topic, follows = self.request.topic, self.request.follows
        if self.offset_bounds is None:
            self.client.subscribe([topic], on_assign=self._note_assigned, on_revoke=self._note_revoked)
            return
        starts = {
            part: bounds.start_offset
            for part, bounds in self.offset_bounds.items()
            if follows or bounds.start_offset < bounds.end_offset
        }
        self._open = set(starts)
        if not follows:
            self._left = {part: self.offset_bounds[part].end_offset - start for part, start in starts.items()}
        self.client.assign([TopicPartition(topic, part, start) for part, start in starts.items()])

    def _is_done(self) -> bool:
        if self.request.count_max is not None and self.records >= self.request.count_max:
            return True
        return self._has_begun and not self._open and not self.request.follows

    def _batch_records(self) -> int:
        """No more than there can be: the client waits for all that it is asked for, or for `POLL_SECONDS`."""
        limits = [BATCH_RECORDS]
        if self.request.count_max is not None:
            limits.append(self.request.count_max - self.records)
        if self._left:
            limits.append(max(1, sum(self._left.values())))
        return min(limits)

    def _takes(self, message: Message) -> bool:
        """Whether this is a record to yield; notes the end of a partition."""
        partition, error = message.partition(), message.error()
        if error is not None:
            self._note_error(error, partition, message.offset())
            return False
        if self.offset_bounds is None or self.request.follows:
            return True
        end_offset = self.offset_bounds[partition].end_offset
        self._left[partition] = max(0, end_offset - message.offset() - 1)
        if message.offset() + 1 >= end_offset:
            self._close(partition)
        return bool(message.offset() < end_offset)

    def _note_error(self, error: KafkaError, partition: int, offset: int | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # An acknowledged record may not be visible yet: only the end offset read at the start counts as the end.
            if self.offset_bounds is None or (offset or 0) >= self.offset_bounds[partition].end_offset:
                self._close(partition)
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and self.offset_bounds is not None:
            return  # the client has to name a group, and looks for its coordinator, although it never joins it
        elif error.code() in MISSING:
            raise TopicMissing(f"topic {self.request.topic} no longer exists")
        elif error.fatal() or error.code() not in AWAY:  # the client retries AWAY; what it gives up on is fatal
            about = self.group if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else self.request.topic
            cause = explain(error, about, needs="Read")
            raise (
                cause
                if isinstance(cause, AccessDenied)
                else ReadFailed(f"reading {self.request.topic}-{partition} ended: {cause}")
            )

    def _close(self, partition: int) -> None:
        """The partition is read to its end; a group's member does not pause it, as more may arrive before the others are done."""
        if self.request.follows:
            return
        self._open.discard(partition)
        self._left.pop(partition, None)
        if self.offset_bounds is not None:
            self.client.pause([TopicPartition(self.request.topic, partition)])

    def _store(self, batch: list[Message]) -> None:
        """Stores the offsets after these records for the group's next commit."""
        if self.offset_bounds is not None or not batch:
            return
        ends = {message.partition(): (message.offset() or 0) + 1 for message in batch}
        with suppress(KafkaException):  # the partition was reassigned: its new member reads the records again
            self.client.store_offsets(offsets=[TopicPartition(self.request.topic, part, end) for part, end in ends.items()])

    def _note_assigned(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_begun = True
        self._open |= {part.partition for part in partitions}

    def _note_revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._open -= {part.partition for part in partitions}
