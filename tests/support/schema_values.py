"""Values of schemas, and whether a reader's schema reads them: by the libraries that loads decode with."""

from __future__ import annotations

import base64
import io
import itertools
import json
from operator import methodcaller
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from logbus.web.schema_compatibility import EarlierSchema, problems_of
from logbus.web.schema_text import ResolvedSchema, SchemaText, SchemaType

DEPTH = 3  # of values in each other: schemas may be recursive


def resolved(kind: str, text: str, **referenced: str) -> ResolvedSchema:
    return ResolvedSchema(schema=SchemaText(kind=SchemaType(kind), text=text), referenced=referenced)


def verdict(level: str, kind: str, new: str, *history: str) -> bool:
    """Of a schema after these, oldest first."""
    earlier = [EarlierSchema(version=number, resolved=resolved(kind, text)) for number, text in enumerate(history, 1)]
    return not problems_of(level, resolved(kind, new), earlier)


# Avro.


def unread_values(reader_text: str, writer_text: str) -> list[Any]:
    """Those of the writer's values that the reader cannot read."""
    reader, writer = (without_logical_types(json.loads(text)) for text in (reader_text, writer_text))
    own, others = fastavro.parse_schema(reader), fastavro.parse_schema(writer)
    values = avro_values(writer)
    assert values
    return [value for value in values if not is_value_read(own, others, value)]


def is_value_read(reader: Any, writer: Any, value: Any) -> bool:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, writer, value)
    file.seek(0)
    try:
        fastavro.schemaless_reader(file, writer, reader)
    except Exception:  # of many kinds: that it cannot be read is the answer
        return False
    return True


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {
            name: without_logical_types(each)
            for name, each in schema.items()
            if name not in ("logicalType", "precision", "scale")
        }
    return schema


def avro_values(schema: Any, depth: int = DEPTH) -> list[Any]:
    """Values of a parsed schema: each branch of a union, each symbol of an enumeration."""
    if isinstance(schema, list):
        return [value for branch in schema for value in avro_values(branch, depth)]
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            if depth == 0:
                return []
            values = [avro_values(each["type"], depth - 1) for each in schema["fields"]]
            rows = itertools.zip_longest(*values)
            names = [each["name"] for each in schema["fields"]]
            return [
                {
                    name: chosen[0] if value is None and None not in chosen else value
                    for name, value, chosen in zip(names, row, values, strict=True)
                }
                for row in (rows if values else [()])
            ]
        case "enum":
            return list(schema["symbols"])
        case "fixed":
            return [b"x" * schema["size"]]
        case "array":
            return [[], avro_values(schema["items"], depth)]
        case "map":
            return [{}, {str(number): value for number, value in enumerate(avro_values(schema["values"], depth))}]
    scalars: dict[str, list[Any]] = {
        "null": [None], "boolean": [True], "int": [0, -(2**31)], "long": [2**40, -1], "float": [1.5], "double": [1e300],
        "string": ["", "text"], "bytes": [b"text"],
    }  # fmt: skip
    return scalars.get(kind, [None])  # a name: of the record that it is in


# Protobuf.

SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: [1, -1, 2**31 - 1], FieldDescriptor.CPPTYPE_INT64: [1, -1, 2**63 - 1],
    FieldDescriptor.CPPTYPE_UINT32: [1, 2**32 - 1], FieldDescriptor.CPPTYPE_UINT64: [1, 2**64 - 1],
    FieldDescriptor.CPPTYPE_BOOL: [True], FieldDescriptor.CPPTYPE_FLOAT: [1.5], FieldDescriptor.CPPTYPE_DOUBLE: [1e300],
}  # fmt: skip


def message_class(file: str) -> type[Message]:
    """Of the message A, or whatever the first one is called."""
    described = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(file))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(described.SerializeToString())
    names = [message.name for message in described.message_type]
    name = "A" if "A" in names else names[0]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{described.package}.{name}".lstrip(".")))


def messages_of(kind: type[Message], depth: int = DEPTH) -> list[Message]:
    """Each member alone, with each of some values, and all of them together. A zero that was sent may be read as one that was not."""
    described = descriptor_pb2.DescriptorProto()
    kind.DESCRIPTOR.CopyToProto(described)
    repeated = {member.name for member in described.field if member.label == member.LABEL_REPEATED}
    members: list[tuple[str, Any]] = []
    for member in kind.DESCRIPTOR.fields:
        values = values_of(member, depth)
        if member.message_type is not None and member.message_type.GetOptions().map_entry:
            values = [{entry.key: entry.value} for entry in values]
        elif member.name in repeated:
            values = [values[:1], values]
        members += [(member.name, value) for value in values]
    return [kind(), *(kind(**{name: value}) for name, value in members), kind(**dict(members))]


def values_of(member: FieldDescriptor, depth: int) -> list[Any]:
    if member.message_type is not None:
        return messages_of(message_factory.GetMessageClass(member.message_type), depth - 1) if depth else []
    if member.enum_type is not None:
        return [value.number for value in member.enum_type.values if value.number]
    if member.type == FieldDescriptor.TYPE_STRING:
        return ["text", "more"]
    return SCALARS.get(member.cpp_type, [b"\xff", b"\0"])


def lost_messages(reader_file: str, writer_file: str) -> list[Message]:
    """Those of the writer's messages of which the reader does not have all that its file has a member for."""
    reader, writer = message_class(reader_file), message_class(writer_file)
    return [message for message in filter(methodcaller("IsInitialized"), messages_of(writer)) if not is_kept(reader, message)]


def is_kept(reader: type[Message], written: Message) -> bool:
    read, own = reader.FromString(written.SerializeToString()), reader.DESCRIPTOR.fields_by_number
    # A value of an enumeration that the reader does not know is kept, and of no use to it.
    strangers = {stranger.field_number for stranger in UnknownFieldSet(read)}
    numbers = [(member.number, value) for member, value in written.ListFields() if isinstance(value, int)]
    return bool(
        read.IsInitialized()
        and type(written).FromString(read.SerializeToString()) == written
        and not strangers & {*own}
        and all(getattr(read, own[number].name) == value for number, value in numbers if number in own)
    )
