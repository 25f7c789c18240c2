"""The records of the ingest benchmark: web events as JSON of about 200 bytes, and the same as Avro; and how a benchmark's records
get into a topic."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from logbus.parsing.decoders import AVRO, Schema, reference_to_id

STARTED = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOUR_MS = 3_600_000
COLUMNS = {"ts": "bigint", "host": "text", "path": "text", "status": "integer", "bytes": "bigint", "agent": "text"}
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/42.0.2311.135 Safari/537"
WAIT_SECONDS = 60.0


AVRO_FIELDS = {"ts": "long", "host": "string", "path": "string", "status": "int", "bytes": "long", "agent": "string"}
AVRO_RECORD = {"type": "record", "name": "Event", "fields": [{"name": name, "type": kind} for name, kind in AVRO_FIELDS.items()]}
AVRO_SCHEMA = Schema(reference=reference_to_id(1), type=AVRO, text=json.dumps(AVRO_RECORD))
PARSED_RECORD = fastavro.parse_schema(AVRO_RECORD)


def as_avro(event: str) -> bytes:
    """As a serializer with a registry writes it."""
    file = io.BytesIO()
    file.write(AVRO_SCHEMA.reference)
    fastavro.schemaless_writer(file, PARSED_RECORD, json.loads(event))
    return file.getvalue()


def events(count: int, hours: int) -> Iterator[tuple[int, str]]:
    """Timestamps in milliseconds and events, spread evenly over the hours."""
    chance = Random(2011).random
    start_ms, span_ms = int(STARTED.timestamp() * 1000), hours * HOUR_MS
    for number in range(count):
        stamp = start_ms + number * span_ms // count
        host = f"10.0.{int(chance() * 40)}.{int(chance() * 250)}"
        yield (
            stamp,
            f'{{"ts": {stamp}, "host": "{host}", "path": "/articles/{int(chance() * 5000)}", "status": 200, '
            f'"bytes": {int(chance() * 60_000)}, "agent": "{AGENT}"}}',
        )


def write_events(path: Path, count: int, hours: int) -> None:
    with path.open("w") as file:
        file.writelines(f"{event}\n" for _, event in events(count, hours))


def produce_events(
    client: Mapping[str, str],
    topic: str,
    stamped: Iterable[tuple[int, str]],
    partitions: int,
    encode: Callable[[str], bytes] = str.encode,
) -> None:
    """Produces events, each with its timestamp in milliseconds, into a new topic, to the partitions in turn."""
    admin = AdminClient(dict(client))
    admin.create_topics([NewTopic(topic, partitions, config={"retention.ms": "-1"})])[topic].result(WAIT_SECONDS)
    producer = Producer({**client, "enable.idempotence": True, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number, (stamp, event) in enumerate(stamped):
        value = encode(event)
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions, timestamp=stamp)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(WAIT_SECONDS):
        raise RuntimeError(f"the broker did not take all events of {topic} in {WAIT_SECONDS:g} s")
