"""How the newest values of a topic would be read by the schemas that they name, and the commands that would load it.

The parser is that of the type of schema that most values name. Columns and dead letters are those of a load: the same decoders,
the same columns of fields. The registry is asked for each schema once, and nothing is stored.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import Message

from logbus import fingerprint, model
from logbus.errors import UserError
from logbus.formatting import many
from logbus.kafka import console_consumer, topics
from logbus.kafka.client import READ_COMMITTED, Client
from logbus.parsing import parser_for, schema_format
from logbus.parsing.batches import CALENDAR_MS_MAX
from logbus.schemas import wire_format
from logbus.schemas.decoders import FORMATS, Decoders
from logbus.schemas.schema_book import Schema, SchemaBook
from logbus.shipper.proposal import SHARE_MIN, ParserTrial, dag_of, register_commands, shown, trial_of
from logbus.windows.table_names import target_named_after

LOOKED_AT_RECORDS = 1_000  # as of a file's lines

Ask = Callable[[bytes], Schema | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProposal:
    """What was found in a topic's newest records. `schemas` counts the values of each schema, by its name for people."""

    topic: str
    records: int
    first: datetime | None
    last: datetime | None
    schemas: Mapping[str, int]
    trial: ParserTrial

    @property
    def trouble(self) -> str | None:
        """Why a load would refuse most of the records, if that is so."""
        if self.trial.parsed >= SHARE_MIN * self.records:
            return None
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.trial.errors.items())
        return (
            f"{self.topic}: {self.trial.parse} reads {self.trial.parsed} of the last {many(self.records, 'record')}, the others "
            f"would be dead letters ({kinds}): is it the registry that their writers use?"
        )

    @property
    def commands(self) -> list[str]:
        return register_commands(target_named_after(self.topic), self.topic, self.trial)

    @property
    def dag(self) -> str:
        return dag_of(target_named_after(self.topic), self.topic, self.trial)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "topic": self.topic,
            "records": self.records,
            "first": self.first and model.instant_text(self.first),
            "last": self.last and model.instant_text(self.last),
            "schemas": dict(self.schemas),
            "trouble": self.trouble,
            "parse": self.trial.parse,
            "settings": dict(self.trial.settings),
            "columns": list(self.trial.columns),
            "parsed": self.trial.parsed,
            "samples": [{name: shown(value) for name, value in row.items()} for row in self.trial.samples],
            "errors": dict(self.trial.errors),
            "commands": self.commands,
            "dag": self.dag,
        }


def newest_records(config: Mapping[str, Any], topic: str) -> list[Message]:
    """The last records, as many of each partition."""
    log = topics.Topics(Client.for_question(config))
    partitions = log.topic(topic).partitions
    span = console_consumer.PositionSpan(
        kind=console_consumer.PositionKind.BEFORE_END, number=-(-LOOKED_AT_RECORDS // len(partitions))
    )
    bounds = console_consumer.offset_bounds(log, topic, sorted(partitions), span, READ_COMMITTED, {})
    request = console_consumer.ReadRequest(topic=topic)
    reader = console_consumer.consumer(config, request, None)
    try:
        return list(itertools.chain.from_iterable(console_consumer.ConsoleConsumer(reader, request, bounds).batches()))
    finally:
        reader.close()


def propose_topic(
    topic: str, messages: Sequence[Message], ask: Ask, parse: str | None, settings: Mapping[str, Any]
) -> TopicProposal:
    """`settings` have the registry's URL, and whatever else the pipeline is to have. `UserError` if no value names a schema that
    the registry has."""
    headers = [pairs or () for pairs in fingerprint.headers_of_all(messages)]
    values = wire_format.with_prefixes([message.value() for message in messages], headers)
    book = SchemaBook(ask=ask)
    schemas, types = Counter[str](), Counter[str]()
    for value in values:
        try:
            prefix = wire_format.prefix_of(value or b"")
            types[book.schema(prefix).type] += 1
            schemas[wire_format.named(prefix)] += 1
        except wire_format.Undecodable:
            pass
    if not types and values:
        raise UserError(
            f"none of the last {many(len(values), 'record')} of {topic} names a schema that {settings['registry']} has: "
            "if they are lines of a log or JSON without a registry, try the file that they come from"
        )
    by_type = {form.type: name for name, form in FORMATS.items()}
    name = parse or by_type[types.most_common(1)[0][0] if types else "AVRO"]
    if name not in FORMATS:
        raise UserError(f"{name} reads no values with a schema: --parse is {', '.join(FORMATS)}")
    decoders = Decoders(format=FORMATS[name], book=book)
    book.meet(set(filter(None, decoders.prefixes(values))) if values else ())
    columns = schema_format.schema_columns(decoders, settings.get("columns") or {})
    # A producer may write any number: one after the year 9999 is no instant.
    stamps = [stamp for kind, stamp in map(Message.timestamp, messages) if 0 <= stamp <= CALENDAR_MS_MAX]
    return TopicProposal(
        topic=topic,
        records=len(values),
        first=model.instant(min(stamps)) if stamps else None,
        last=model.instant(max(stamps)) if stamps else None,
        schemas=dict(schemas.most_common()),
        trial=trial_of(parser_for(name, {**settings, "columns": columns}, book), name, settings, values),
    )
