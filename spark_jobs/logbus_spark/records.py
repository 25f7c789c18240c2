"""Records of one partition of one window, column by column: what readers return and the load takes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from statistics import fmean
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from logbus import errors, fingerprint, model
from logbus.kafka.exact_reader import SAMPLING_CONFIG, exact_consumer, read_lists, read_with
from logbus.parsing import storable
from logbus.schemas import wire_format
from logbus.schemas.decoders import FORMATS, Decoders
from logbus.schemas.schema_book import SchemaBook

from logbus_spark.job import Run, TaskPlan

HEADER_TYPE = pa.list_(pa.struct([("name", pa.string()), ("content", pa.binary())]))

# What readers that use Arrow return; a batch may hold rows of several windows and partitions.
RECORD_SCHEMA = pa.schema(
    [
        ("window_id", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)

# Read before a load, to infer columns of JSON: enough to find every common member, few enough that it takes no time compared to
# the load.
SAMPLED_RECORDS_MAX = 1_000
SAMPLED_RANGES_MAX = 16  # each costs a round trip or two
SIZED_RECORDS_MAX = 160  # read before a load for the size of its records: ten of each range

Headers = Sequence[fingerprint.Header]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """At least one record. `headers` is None if no record has any."""

    window_id: int
    partition: int
    offsets: Sequence[int]
    stamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.offsets)


def of_messages(messages: Sequence[Message], offsets: Sequence[int], run: Run) -> Iterator[Records]:
    """A run's messages, in order, window by window."""
    for window_id, start, end in run.split(offsets):
        chosen = messages if end - start == len(messages) else messages[start:end]
        headers = fingerprint.headers_of_all(chosen)
        yield Records(
            window_id=window_id,
            partition=run.partition,
            offsets=offsets[start:end],
            stamps_ms=list(map(itemgetter(1), map(Message.timestamp, chosen))),
            keys=list(map(Message.key, chosen)),
            values=list(map(Message.value, chosen)),
            headers=[pairs or () for pairs in headers] if any(headers) else None,
        )


def to_batch(records: Records) -> pa.RecordBatch:
    """A batch of `RECORD_SCHEMA`."""
    size = len(records)
    headers = [[{"name": name, "content": content} for name, content in pairs] for pairs in records.headers or [()] * size]
    columns: list[Sequence[Any]] = [[records.window_id] * size, [records.partition] * size]
    columns += [records.offsets, records.stamps_ms, records.keys, records.values, headers]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def headers_json(headers: Headers) -> str | None:
    """Headers as JSON pairs, None if there are none; content that is not text as base64."""
    if not headers:
        return None
    return json.dumps([[storable(name), _header_content(content)] for name, content in headers])


def _header_content(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(content).decode()} if "\0" in text else text


def read_plan(plan: TaskPlan, client_config: Mapping[str, Any], topic: str, isolation_level: str) -> Iterator[Records]:
    """All records of a plan, in chunks of one partition of one window."""
    with exact_consumer(client_config, isolation_level) as consumer:
        for run in plan.runs:
            for messages, offsets in read_lists(consumer, topic, run.partition, run.start_offset, run.end_offset):
                yield from of_messages(messages, offsets, run)


def ranges_of(windows: Iterable[model.FrozenWindow]) -> list[model.OffsetRange]:
    return [part for window in windows for part in window.ranges]


def sampled_values(
    client_config: Mapping[str, Any], pipeline: model.Pipeline, ranges: Iterable[model.OffsetRange]
) -> list[bytes | None]:
    """The first values of some of the ranges, spread over all of them."""
    return [message.value() for message in _sampled(client_config, pipeline.isolation_level, ranges, SAMPLED_RECORDS_MAX)]


def sampled_prefixes(
    client_config: Mapping[str, Any], pipeline: model.Pipeline, ranges: Iterable[model.OffsetRange]
) -> set[bytes]:
    """The names of schemas that these values begin with."""
    messages = list(_sampled(client_config, pipeline.isolation_level, ranges, SAMPLED_RECORDS_MAX))
    headers = [pairs or () for pairs in fingerprint.headers_of_all(messages)]
    values = wire_format.with_prefixes([message.value() for message in messages], headers)
    decoders = Decoders(format=FORMATS[pipeline.parse], book=SchemaBook())
    return set(filter(None, decoders.prefixes(values)))


def mean_bytes(client_config: Mapping[str, Any], isolation_level: str, ranges: Sequence[model.OffsetRange]) -> dict[int, float]:
    """The mean size of keys and values by partition, from a few records of some ranges; that of all where none was read. Nothing
    if they cannot be read now: the load will report it."""
    sizes: dict[int, list[int]] = {}
    try:
        for message in _sampled(client_config, isolation_level, ranges, SIZED_RECORDS_MAX):
            sizes.setdefault(message.partition(), []).append(len(message) + len(message.key() or b""))
    except errors.LogbusError:
        return {}
    everything = [size for of_partition in sizes.values() for size in of_partition]
    partitions = {part.partition for part in ranges}
    return {partition: fmean(sizes.get(partition, everything)) for partition in partitions} if everything else {}


def _sampled(
    client_config: Mapping[str, Any], isolation_level: str, ranges: Iterable[model.OffsetRange], records_max: int
) -> Iterator[Message]:
    with_records = [part for part in ranges if part.count]
    chosen = with_records[:: max(1, -(-len(with_records) // SAMPLED_RANGES_MAX))]
    with exact_consumer(client_config, isolation_level, SAMPLING_CONFIG) as consumer:
        for part in chosen:
            count = records_max // len(chosen)
            end = min(part.end_offset, part.readable_from + count)
            yield from islice(read_with(consumer, part.topic, part.partition, part.readable_from, end), count)
