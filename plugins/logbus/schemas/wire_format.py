"""How a value names the schema it was written with, as the serializers of Confluent's clients write it.

    0  id (4 bytes, big-endian)   payload          the usual form
    1  GUID (16 bytes)            payload          or in the header `__value_schema_id`, the payload alone in the value

In Protobuf's forms the indexes of the message follow, as zigzag varints: how many, then each; `[0]` is written as one byte 0.
What precedes the payload is the value's PREFIX; without those indexes it is the REFERENCE of a schema. A prefix in a header is
put in front of the value first (`with_prefixes`), so that there is one form.

What is wrong with a value is an exception whose class is the kind of its dead letter.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

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
