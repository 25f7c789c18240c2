"""How a value names the schema it was written with, as the serializers of Confluent's clients write it; and what the decoders of
all formats have in common: a payload becomes the values of a record's fields, by name, by the schemas of one book: those frozen
in the ledger, and those a registry has given since.

    0  id (4 bytes, big-endian)   payload          the usual form
    1  GUID (16 bytes)            payload          or in the header `__value_schema_id`, the payload alone in the value

In Protobuf's forms the indexes of the message follow, as zigzag varints: how many, then each; `[0]` is written as one byte 0.
What precedes the payload is the value's PREFIX; without those indexes it is the REFERENCE of a schema. A prefix in a header is
put in front of the value first (`with_prefixes`), so that there is one form.

What is wrong with a value is an exception whose class is the kind of its dead letter.

The tasks of a Spark job ask nobody: what a book does not hold they report, and the driver asks for all of them. In one process
(a redrive, a command) the book asks itself (`ask`). A schema never changes, so nothing is ever asked twice.

A decoder knows the fields of its schema and the type of the column that holds each (`SchemaField`). `records` decodes many
payloads at once and raises whatever it meets, as does `columns`, which makes columns of them; `record` judges one, and raises an
`Undecodable` that says what is wrong with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from logbus import errors
from logbus.errors import LoadFailed, LogbusError, RegistryUnavailable

VALUE_HEADER = "__value_schema_id"

BY_ID, BY_GUID = 0, 1
REFERENCE_BYTES = {BY_ID: 5, BY_GUID: 17}

# Messages are nested two or three deep; bytes that are no indexes at all may say anything.
INDEXES_MAX = 16
VARINT_BYTES_MAX = 5

FIRST_MESSAGE = (0,)

Headers = Sequence[tuple[str, bytes | None]]


class Undecodable(ValueError):
    """A value that cannot be decoded; the class of the exception is the kind of its dead letter."""


class NoSchemaHeader(Undecodable):
    """The value names no schema."""


class UnknownSchemaId(Undecodable):
    """The registry has no such schema."""


class SchemaNotReadable(Undecodable):
    """The schema itself is not understood."""


class WrongSchemaType(Undecodable):
    """A schema of another format than the pipeline's."""


class MessageIndexOutOfRange(Undecodable):
    """The Protobuf schema has no such message."""


class TruncatedValue(Undecodable):
    """The value ends too early."""


class TrailingBytes(Undecodable):
    """Bytes are left over behind the value."""


class UnknownFields(Undecodable):
    """The value has fields that its schema does not have."""


class SchemaMismatch(Undecodable):
    """The value is not of its schema."""


def with_prefixes(values: Sequence[bytes | None], headers: Sequence[Headers] | None) -> Sequence[bytes | None]:
    """The values, with the prefix of those that have it in a header in front. A record without a value stays one."""
    if headers is None:
        return values
    return [
        value if value is None else b"".join(content or b"" for name, content in pairs if name == VALUE_HEADER) + value
        for value, pairs in zip(values, headers, strict=True)
    ]


def prefix_of(value: bytes, *, has_indexes: bool = False) -> bytes:
    """What precedes the payload. `has_indexes`: the value is one of Protobuf."""
    size = REFERENCE_BYTES.get(value[0]) if value else None
    if size is None:
        beginning = f"byte {value[0]}" if value else "nothing"
        raise NoSchemaHeader(f"the value begins with {beginning}, where 0 and a schema's id are, or 1 and its GUID")
    if len(value) < size:
        raise TruncatedValue(f"the value has {len(value)} bytes, fewer than the {size} that name its schema")
    return value[: _indexes(value, size)[1]] if has_indexes else value[:size]


def reference_of(prefix: bytes) -> bytes:
    """The prefix without the indexes of a message."""
    return prefix[: REFERENCE_BYTES[prefix[0]]]


def indexes_of(prefix: bytes) -> tuple[int, ...]:
    """Which message of a Protobuf schema: its index in the file, then in the message before."""
    return _indexes(prefix, REFERENCE_BYTES[prefix[0]])[0]


def reference_to_id(schema_id: int) -> bytes:
    return bytes([BY_ID]) + schema_id.to_bytes(4, "big")


def schema_id(reference: bytes) -> int | None:
    """None for a reference by GUID."""
    return int.from_bytes(reference[1:5], "big") if reference[0] == BY_ID else None


def schema_guid(reference: bytes) -> str | None:
    """None for a reference by id."""
    return str(uuid.UUID(bytes=reference[1:17])) if reference[0] == BY_GUID else None


def named(reference: bytes) -> str:
    """For people: `schema id 7`."""
    guid = schema_guid(reference)
    return f"schema id {schema_id(reference)}" if guid is None else f"schema GUID {guid}"


def _indexes(value: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    """The indexes that begin there, and where they end."""
    count, end = _varint(value, begin)
    if count == 0:
        return FIRST_MESSAGE, end
    if not 0 < count <= INDEXES_MAX:
        raise MessageIndexOutOfRange(f"{count} message indexes: they have 1 to {INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, end = _varint(value, end)
        indexes.append(index)
    return tuple(indexes), end


def _varint(value: bytes, begin: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    number = 0
    for position in range(begin, min(len(value), begin + VARINT_BYTES_MAX)):
        byte = value[position]
        number |= (byte & 0x7F) << (7 * (position - begin))
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + 1
    if len(value) < begin + VARINT_BYTES_MAX:
        raise TruncatedValue("the value ends within the indexes of its message")
    raise MessageIndexOutOfRange(f"a message index of more than {VARINT_BYTES_MAX} bytes")


AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"  # a registry's `schemaType`


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSchema:
    """A schema that another one refers to by `name`."""

    name: str
    subject: str
    version: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A registered schema as values refer to it, with all that it imports, dependencies first.

    `text`: the schema; of Protobuf its FileDescriptorProto in base64, which needs no compiler.
    """

    reference: bytes
    type: str
    text: str
    guid: str | None = None
    imports: tuple[ImportedSchema, ...] = ()


class SchemasUnmet(LogbusError):
    """Values refer to schemas that the book does not hold: the driver has to ask for them."""

    def __init__(self, prefixes: Iterable[bytes]) -> None:
        self.prefixes = frozenset(prefixes)
        super().__init__(f"{len(self.prefixes)} schemas that the ledger does not hold yet")


# Each costs a request. A value that merely begins with a zero says anything; a topic of such values is not what the parser reads.
UNKNOWN_MAX = 10_000


@dataclass(slots=True, kw_only=True)
class SchemaBook:
    """Schemas by their reference. `unknown`: those that the registry does not have; `unknown_before`: did not have when the same
    values were loaded before. `met`: the prefixes whose fields have columns."""

    schemas: dict[bytes, Schema] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    unknown_before: frozenset[bytes] = frozenset()
    met: set[bytes] = field(default_factory=set)
    ask: Callable[[bytes], Schema | None] | None = None

    def schema(self, prefix: bytes) -> Schema:
        """Raises `UnknownSchemaId`, `SchemasUnmet`, or what `ask` raises."""
        reference = reference_of(prefix)
        if reference not in self.schemas and reference not in self.unknown:
            if self.ask is None:
                raise SchemasUnmet([prefix])
            self._ask_for(reference, self.ask)
        if reference not in self.schemas:
            raise UnknownSchemaId(f"the registry has no {named(reference)}")
        return self.schemas[reference]

    def _ask_for(self, reference: bytes, ask: Callable[[bytes], Schema | None]) -> None:
        try:
            schema = ask(reference)
        except RegistryUnavailable:
            if reference not in self.unknown_before:
                raise
            schema = None  # as it was: a reload gives the same dead letters, though the registry is gone
        if schema is not None:
            self.schemas[reference] = schema
            return
        self.unknown.add(reference)
        if len(self.unknown) > UNKNOWN_MAX:
            raise LoadFailed(
                f"values name more than {UNKNOWN_MAX:,} schemas that the registry does not have: they are not written with "
                "schemas of this registry, or not with a schema at all"
            )

    def meet(self, prefixes: Iterable[bytes]) -> None:
        """Asks for those that it does not hold."""
        for prefix in sorted(prefixes):
            try:
                self.schema(prefix)
                self.met.add(prefix)
            except UnknownSchemaId:
                pass

    def unmet(self, prefixes: Iterable[bytes]) -> set[bytes]:
        return {prefix for prefix in prefixes if prefix not in self.met and reference_of(prefix) not in self.unknown}


# What the decoders of all formats have in common: a payload becomes the values of a record's fields, by name.


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
    "avro": SchemaFormat(type=AVRO, decoder="logbus.parsing.avro_decoder:AvroDecoder", library="fastavro"),
    "protobuf": SchemaFormat(
        type=PROTOBUF, decoder="logbus.parsing.protobuf_decoder:ProtobufDecoder", library="google.protobuf", has_indexes=True
    ),
    "json_schema": SchemaFormat(type=JSON, decoder="logbus.parsing.json_schema_decoder:JsonDecoder", library="jsonschema_rs"),
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
