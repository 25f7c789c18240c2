"""What the decoders of all formats have in common: a payload becomes the values of a record's fields, by name.

A decoder knows the fields of its schema and the type of the column that holds each (`SchemaField`). `records` decodes many
payloads at once and raises whatever it meets, as does `columns`, which makes columns of them; `record` judges one, and raises an
`Undecodable` that says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from logbus import errors
from logbus.schemas.schema_book import AVRO, JSON, PROTOBUF, Schema, SchemaBook
from logbus.schemas.wire_format import SchemaNotReadable, Undecodable, WrongSchemaType, named, prefix_of

USUAL_PREFIX_BYTES = 5  # by id; one more in Protobuf, for the first message

# The column of a schema that is no record.
WHOLE_VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaField:
    """A field of a record. `kind`: PostgreSQL's type for it. `unit`: its values are whole numbers since 1970, of that unit."""

    kind: str
    unit: str | None = None


# The fields of many payloads as arrays of Arrow; an exception of whatever kind if one of them is not as it should be.
Columns = Callable[[Sequence[bytes]], Mapping[str, Any]]


class Decoder(Protocol):
    fields: Mapping[str, SchemaField]
    columns: Columns | None  # for those that need no records in between

    def records(self, payloads: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
        """All of them, or an exception of whatever kind."""

    def record(self, payload: bytes) -> Mapping[str, Any]:
        """Raises `Undecodable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFormat:
    """A registry's `schemaType`, its decoder by name, and the library of the extra `schemas` that this needs."""

    type: str
    decoder: str
    library: str
    has_indexes: bool = False  # a value names a message of its schema


# By the parser's name.
FORMATS: Mapping[str, SchemaFormat] = {
    "avro": SchemaFormat(type=AVRO, decoder="logbus.schemas.avro_decoder:AvroDecoder", library="fastavro"),
    "protobuf": SchemaFormat(
        type=PROTOBUF, decoder="logbus.schemas.protobuf_decoder:ProtobufDecoder", library="google.protobuf", has_indexes=True
    ),
    "json_schema": SchemaFormat(type=JSON, decoder="logbus.schemas.json_decoder:JsonDecoder", library="jsonschema_rs"),
}


@dataclass(slots=True, kw_only=True)
class Decoders:
    """The decoders of one format, by prefix, each made when a value needs it first."""

    format: SchemaFormat
    book: SchemaBook
    _made: dict[bytes, Decoder | Undecodable] = field(default_factory=dict)

    def prefix(self, value: bytes) -> bytes:
        return prefix_of(value, has_indexes=self.format.has_indexes)

    def prefixes(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """The prefix of each value, None where there is none. Usually all are of one schema, named by its id."""
        size = USUAL_PREFIX_BYTES + self.format.has_indexes
        if None not in values:
            beginnings: list[bytes] = list(map(itemgetter(slice(size)), cast(Sequence[bytes], values)))
            if all(map(self._is_usual, set(beginnings))):
                return [*beginnings]
        return [self._prefix_or_none(value) for value in values]

    def _is_usual(self, beginning: bytes) -> bool:
        return beginning == self._prefix_or_none(beginning)

    def _prefix_or_none(self, value: bytes | None) -> bytes | None:
        try:
            return None if value is None else self.prefix(value)
        except Undecodable:
            return None

    def of(self, prefix: bytes) -> Decoder:
        """Raises `Undecodable`, or what the book does if it does not hold the schema."""
        decoder = self._made.get(prefix)
        if decoder is None:
            schema = self.book.schema(prefix)
            try:
                decoder = self._make(schema, prefix)
            except Undecodable as error:
                decoder = error
            self._made[prefix] = decoder
        if isinstance(decoder, Undecodable):
            raise type(decoder)(str(decoder))
        return decoder

    def _make(self, schema: Schema, prefix: bytes) -> Decoder:
        if schema.type != self.format.type:
            raise WrongSchemaType(f"{named(prefix)} is of the type {schema.type}, and this pipeline reads {self.format.type}")
        errors.require(self.format.library)
        make: Callable[[Schema, bytes], Decoder] = resolve_name(self.format.decoder)
        try:
            return make(schema, prefix)
        except (errors.LogbusError, Undecodable, MemoryError):
            raise
        except Exception as error:  # each library has errors of its own for a schema that it does not understand
            raise SchemaNotReadable(f"{named(prefix)} is not understood: {error or type(error).__name__}") from error
