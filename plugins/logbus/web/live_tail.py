"""A topic's newest records as they arrive, for all pages that follow it: one reading for all of them, and none without them.

A page asks every second. The first one to ask reads what the topic has gained since the reading before (`Reading`: the others get
the same answer), so nothing reads when nobody asks: a page that is stopped, hidden or closed costs no more than the reading that
is under way, `SECONDS_MAX` at most. What a reading takes is bounded: of a topic that gains more, the newest records are shown and
the others passed over. A page says up to which offsets it has seen, so it may be answered by any of several api-servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from logbus.kafka import console_consumer, topics
from logbus.kafka.client import READ_COMMITTED, Client
from logbus.web import reading, topic_records

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

    def summary(self, readable: topic_records.Readable | None) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "records": [topic_records.record_json(message, readable) for message in self.records],
            "passed_over": self.passed_over,
            "next_offsets": topic_records.offsets_text(self.ends),
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
        return TailView(records=records[-topic_records.RECORDS_MAX :], passed_over=passed_over, ends=ends)

    def _turn(self) -> tuple[list[Message], dict[int, int]]:
        """Runs in one thread at a time."""
        log = topics.Topics(self._client)
        partitions = log.topic(self.topic).partitions
        ends = log.end_offsets(self.topic, partitions, READ_COMMITTED)
        is_shorter = any(end < self._ends.get(part, 0) for part, end in ends.items())
        if is_shorter or self._read_at is None or self._clock() - self._read_at > PAUSE_SECONDS_MAX:
            self._kept.clear()
            begins = {part: end - topic_records.RECORDS_DEFAULT for part, end in ends.items()}
        else:
            begins = {part: max(self._ends.get(part, 0), end - TURN_RECORDS_MAX) for part, end in ends.items()}
        starts = log.start_offsets(self.topic, [part for part in partitions if begins[part] < ends[part]])
        bounds = {
            part: console_consumer.OffsetBounds(start_offset=max(begins[part], start), end_offset=ends[part])
            for part, start in starts.items()
        }
        messages, _ = topic_records.read(self._client, self.topic, bounds) if bounds else ([], True)
        self._kept.extend(topic_records.in_order_of_time(messages)[-TURN_RECORDS_MAX:])
        while len(self._kept) > KEPT_RECORDS_MAX or sum(map(len, self._kept)) > KEPT_BYTES_MAX:
            self._kept.popleft()
        self._ends, self._read_at = ends, self._clock()
        return list(self._kept), ends
