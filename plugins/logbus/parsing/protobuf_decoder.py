"""Protobuf by Google's own library, from the descriptors that the registry gives: no compiler.

A member without presence (`int32 n = 1` of proto3) has its default where it was not sent, any other is null. Google's wrappers
and its `Timestamp` are the values they stand for; what is repeated or a message is JSON by Protobuf's own mapping, under the
names of the .proto file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from logbus.parsing.decoders import (
    MessageIndexOutOfRange,
    Schema,
    SchemaField,
    SchemaMismatch,
    SchemaNotReadable,
    UnknownFields,
    indexes_of,
    named,
)

# What every .proto file may import without anybody registering it.
WELL_KNOWN = (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)

KINDS: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_INT32: "bigint",
    FieldDescriptor.CPPTYPE_INT64: "bigint",
    FieldDescriptor.CPPTYPE_UINT32: "bigint",
    FieldDescriptor.CPPTYPE_UINT64: "numeric(20,0)",
    FieldDescriptor.CPPTYPE_DOUBLE: "double precision",
    FieldDescriptor.CPPTYPE_FLOAT: "double precision",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_ENUM: "text",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_MESSAGE: "jsonb",
}
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())

Get = Callable[[Any], Any]  # a member of a message


class ProtobufDecoder:
    columns = None

    def __init__(self, schema: Schema, prefix: bytes) -> None:
        pool = descriptor_pool.DescriptorPool()
        for module in WELL_KNOWN:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        for imported in schema.imports:
            _add(pool, imported.text, imported.name)
        file = _add(pool, schema.text, f"logbus/{prefix.hex()}.proto")
        self._message = message_factory.GetMessageClass(pool.FindMessageTypeByName(_message_name(file, prefix)))
        described = descriptor_pb2.DescriptorProto()
        self._message.DESCRIPTOR.CopyToProto(described)
        # By the descriptor's own message: versions of the library have other names for it.
        repeated = {member.name for member in described.field if member.label == member.LABEL_REPEATED}
        members = {member.name: _member(member, member.name in repeated) for member in self._message.DESCRIPTOR.fields}
        self.fields: Mapping[str, SchemaField] = {name: kind for name, (kind, _) in members.items()}
        self._has_messages = any(member.message_type is not None for member in self._message.DESCRIPTOR.fields)
        self._getters: list[tuple[str, Get]] = [(name, get) for name, (_, get) in members.items()]

    def records(self, payloads: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
        return list(map(self.record, payloads))

    def record(self, payload: bytes) -> Mapping[str, Any]:
        message = self._message()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise SchemaMismatch(f"not a {self._message.DESCRIPTOR.full_name}, or cut off: {error}") from None
        if UnknownFieldSet(message) or (self._has_messages and any(_unknown_fields(message))):
            raise UnknownFields(f"the value has fields that its schema has not: {', '.join(sorted({*_unknown_fields(message)}))}")
        return {name: get(message) for name, get in self._getters}


def _add(pool: descriptor_pool.DescriptorPool, text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    """A file as the registry gives it, under the name by which others import it."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError):
        raise SchemaNotReadable(
            "the registry gives Protobuf's schemas as text, although it was asked for descriptors (format=serialized)"
        ) from None
    file.name = name
    pool.AddSerializedFile(file.SerializeToString())
    return file


def _unknown_fields(message: Message) -> Iterator[str]:
    """In the message, and in those that it consists of: as JSON these would lose them without a word."""
    for stranger in UnknownFieldSet(message):
        yield f"number {stranger.field_number} of {message.DESCRIPTOR.full_name}"
    for member, value in message.ListFields():
        if member.message_type is not None:
            parts = [value] if isinstance(value, Message) else value.values() if hasattr(value, "values") else value
            for part in parts:
                if isinstance(part, Message):  # a map may have scalars
                    yield from _unknown_fields(part)


def _message_name(file: descriptor_pb2.FileDescriptorProto, prefix: bytes) -> str:
    """The full name of the message that the prefix's indexes are those of."""
    messages, names = file.message_type, [file.package] if file.package else []
    for index in indexes_of(prefix):
        if not 0 <= index < len(messages):
            raise MessageIndexOutOfRange(f"{named(prefix)} has no message {list(indexes_of(prefix))}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _member(member: FieldDescriptor, is_repeated: bool) -> tuple[SchemaField, Get]:
    """The column of a member, and what its value is."""
    name = member.name
    if is_repeated:
        return SchemaField(kind="jsonb"), lambda message: _json_of_repeated(message, name)
    if member.message_type is not None:
        kind = member.message_type.full_name
        if kind == TIMESTAMP:
            return SchemaField(kind="timestamptz", unit="us"), lambda message: _present(message, name, _microseconds)
        if kind in WRAPPERS:
            value = member.message_type.fields_by_name["value"]
            return _scalar(value)[0], lambda message: _present(message, name, attrgetter("value"))
        return SchemaField(kind="jsonb"), lambda message: _present(message, name, _json_of)
    column, convert = _scalar(member)
    if not member.has_presence:
        return column, attrgetter(name) if convert is None else lambda message: convert(getattr(message, name))
    return column, lambda message: _present(message, name, convert or _same)


def _scalar(member: FieldDescriptor) -> tuple[SchemaField, Get | None]:
    if member.type == FieldDescriptor.TYPE_BYTES:
        return SchemaField(kind="bytea"), None
    names = member.enum_type.values_by_number if member.enum_type is not None else {}
    convert = (lambda number: names[number].name if number in names else str(number)) if member.enum_type is not None else None
    return SchemaField(kind=KINDS[member.cpp_type]), convert


def _same(value: Any) -> Any:
    return value


def _present(message: Any, name: str, convert: Get) -> Any:
    return convert(getattr(message, name)) if message.HasField(name) else None


def _microseconds(stamp: Any) -> int:
    return int(stamp.seconds * 1_000_000 + stamp.nanos // 1_000)


def _json_of(message: Any) -> Any:
    """By Protobuf's own mapping."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _json_of_repeated(message: Any, name: str) -> Any:
    """The same of a member, by way of a message that has no other."""
    alone = type(message)()
    getattr(alone, name).MergeFrom(getattr(message, name))
    return _json_of(alone).get(name, {} if _is_map(message.DESCRIPTOR.fields_by_name[name]) else [])


def _is_map(member: FieldDescriptor) -> bool:
    return bool(member.message_type is not None and member.message_type.GetOptions().map_entry)
