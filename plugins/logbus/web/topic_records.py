"""Records of a topic: its last ones, those from an instant on, or those from an offset on. Commits nothing.

Open to users who may see a pipeline that loads the topic, or who may read the broker's connection in Airflow, with which they
could read the topic themselves. A topic's name (the page of topics) gives nothing away; records may.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message
from fastapi import HTTPException

from logbus import errors, fingerprint, model
from logbus.formatting import cut, shown_value
from logbus.kafka import console_consumer, console_format, topics
from logbus.kafka.client import LATEST, READ_COMMITTED, Client

RECORDS_DEFAULT = 20
RECORDS_MAX = 100  # of a look, and of each partition that is looked at
SECONDS_MAX = 4.0  # the user waits; what has arrived by then is shown, and marked as not all
VALUE_BYTES_MAX = 20_000
BYTES_MAX = 32 * 1024 * 1024  # held at once, in an api-server: a hundred records of many partitions may be gigabytes
SETTINGS: Mapping[str, Any] = {"fetch.wait.max.ms": 20, "queued.max.messages.kbytes": 16_384}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsLook:
    """Where to look: at the last records unless `span` says otherwise, in one partition or in all."""

    topic: str
    span: console_consumer.PositionSpan
    count: int = RECORDS_DEFAULT
    partition: int | None = None


def look_at(client: Client, look: RecordsLook) -> dict[str, Any]:
    """As JSON-ready values. `TopicMissing`, `AccessDenied`, `BrokerUnavailable`; 400: no such partition."""
    log = topics.Topics(client)
    partition_ids = log.topic(look.topic).partitions
    try:
        partitions = console_consumer.chosen_partitions(
            look.topic, partition_ids, [] if look.partition is None else [look.partition]
        )
    except errors.UserError as error:
        raise HTTPException(400, str(error)) from None
    bounds = console_consumer.offset_bounds(log, look.topic, partitions, look.span, READ_COMMITTED, {})
    messages, is_whole = read(client, look.topic, {part: bounded(part_bounds, look) for part, part_bounds in bounds.items()})
    ordered = sorted(messages, key=lambda message: (message.timestamp()[1], message.partition(), message.offset()))
    is_last = look.span.kind is console_consumer.PositionKind.BEFORE_END
    return {
        "topic": look.topic,
        "partitions": _partition_facts(log, look.topic, partition_ids),
        "records": [record_json(message) for message in (ordered[-look.count :] if is_last else ordered[: look.count])],
        "is_whole": is_whole,
    }


def bounded(stretch: console_consumer.OffsetBounds, look: RecordsLook) -> console_consumer.OffsetBounds:
    """No more from one partition than is shown from all: each of them may hold all that is wanted."""
    return console_consumer.OffsetBounds(
        start_offset=stretch.start_offset, end_offset=min(stretch.end_offset, stretch.start_offset + look.count)
    )


def read(client: Client, topic: str, bounds: Mapping[int, console_consumer.OffsetBounds]) -> tuple[list[Message], bool]:
    """What arrives of the stretches within the limits on time and memory, and whether that is all."""
    until, bytes_read, messages = time.monotonic() + SECONDS_MAX, 0, list[Message]()

    def is_enough() -> bool:
        return time.monotonic() > until or bytes_read > BYTES_MAX

    request = console_consumer.ReadRequest(topic=topic)
    reader = console_consumer.consumer(client.config, request, None, settings=SETTINGS)
    try:
        for batch in console_consumer.ConsoleConsumer(reader, request, bounds).batches(is_enough):
            messages += batch
            bytes_read += sum(len(message.value() or b"") + len(message.key() or b"") for message in batch)
        return messages, not is_enough()
    finally:
        reader.close()


def _partition_facts(log: topics.Topics, topic: str, partitions: Sequence[int]) -> list[dict[str, Any]]:
    """Where each begins and ends, and the newest timestamp in it: to show a partition that fell silent or takes everything."""
    starts, ends = log.start_offsets(topic, partitions), log.end_offsets(topic, partitions, LATEST)
    newest = log.newest(topic, [part for part in partitions if ends[part] > starts[part]])
    return [
        {
            "partition": part,
            "start_offset": starts[part],
            "end_offset": ends[part],
            "newest_at": model.instant_text(model.instant(newest[part].timestamp_ms)) if part in newest else None,
        }
        for part in partitions
    ]


def record_json(message: Message) -> dict[str, Any]:
    """`key` and `value` as text, or in base64 next to a null if the bytes are not text; long values are cut."""
    kind, stamp = message.timestamp()
    value = message.value()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == console_format.NO_TIMESTAMP or stamp < 0 else model.instant_text(model.instant(stamp)),
        "timestamp_type": console_format.TIMESTAMP_TYPES[kind],
        **named("key", message.key()),
        **named("value", value),
        "value_bytes": None if value is None else len(value),
        "headers": [[name, text_of(content)] for name, content in fingerprint.headers_of(message)],
    }


def named(name: str, data: bytes | None) -> dict[str, Any]:
    """A text under its name; bytes that are not text under `..._base64`."""
    is_cut = data is not None and len(data) > VALUE_BYTES_MAX
    shown = shown_value(cut(data, VALUE_BYTES_MAX))
    fields = {name: shown.get("value"), f"{name}_is_cut": is_cut}
    return {**fields, f"{name}_base64": shown["value_base64"]} if "value_base64" in shown else fields


def text_of(content: bytes | None) -> str | None:
    return None if content is None else content[:VALUE_BYTES_MAX].decode(errors="backslashreplace")
