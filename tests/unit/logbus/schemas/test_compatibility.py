"""Which schemas are compatible (tests/support/schema_pairs.py): as published for Avro, for JSON Schema and Protobuf as documented in
docs/registry.md. What is called compatible is tried: values of the writer are read with the reader, by the libraries that a load
decodes with.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
from functools import cache
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import jsonschema_rs
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_tools import protoc
from logbus.schemas.compatibility import LEVELS, EarlierSchema, problems_of
from logbus.schemas.schema_text import ResolvedSchema, SchemaText, SchemaType

from tests.support.schema_pairs import AVRO_PAIRS, JSON_PAIRS, PROTOBUF_PAIRS, VALUES


def resolved(kind: str, text: str, **referenced: str) -> ResolvedSchema:
    return ResolvedSchema(schema=SchemaText(kind=SchemaType(kind), text=text), referenced=referenced)


def verdict(level: str, kind: str, new: str, *history: str) -> bool:
    """Of a schema after these, oldest first."""
    earlier = [EarlierSchema(version=number, resolved=resolved(kind, text)) for number, text in enumerate(history, 1)]
    return not problems_of(level, resolved(kind, new), earlier)


@cache
def is_read(kind: str, reader: str, writer: str) -> bool:
    return verdict("BACKWARD", kind, reader, writer)


@cache
def descriptor(text: str) -> str:
    """In base64, as Confluent's Python client registers it; compiled in this process."""
    with TemporaryDirectory() as folder:
        Path(folder, "a.proto").write_text(text if text.startswith("syntax") else f'syntax = "proto3"; {text}')
        assert protoc.main(["protoc", f"-I{folder}", "-o", f"{folder}/set", "a.proto"]) == 0, text
        file = descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "set").read_bytes()).file[0]
    return base64.b64encode(file.SerializeToString()).decode()


PAIRS = {
    "AVRO": AVRO_PAIRS,
    "JSON": [(json.dumps(new), json.dumps(old), new_reads_old, None) for new, old, new_reads_old in JSON_PAIRS],
    "PROTOBUF": [(descriptor(new), descriptor(old), *verdicts) for new, old, *verdicts in PROTOBUF_PAIRS],
}


@pytest.mark.parametrize("kind", PAIRS)
def test_who_reads_whom(kind: str) -> None:
    assert len(PAIRS[kind]) >= 60
    assert [pair for pair in PAIRS[kind] if is_read(kind, pair[0], pair[1]) is not pair[2]] == []
    assert [pair for pair in PAIRS[kind] if pair[3] is not None and is_read(kind, pair[1], pair[0]) is not pair[3]] == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", PAIRS)
def test_levels_say_who_must_read_whom(kind: str, level: str) -> None:
    new_reads_old, old_reads_new, is_transitive = LEVELS[level]
    wrong = []
    for number, (new, old, *_) in enumerate(PAIRS[kind]):
        for other in (new, PAIRS[kind][number - 1][1]):  # before the last version there is another one
            compared = (other, old) if is_transitive else (old,)
            expected = all(
                (not new_reads_old or is_read(kind, new, each)) and (not old_reads_new or is_read(kind, each, new))
                for each in compared
            )
            if verdict(level, kind, new, other, old) is not expected:
                wrong.append((new, other, old, expected))
        assert verdict(level, kind, new)
    assert wrong == []


def avro_examples(schema: Any, depth: int = 2) -> list[Any]:
    """Values of a parsed schema: each branch of a union, each symbol of an enumeration."""
    if isinstance(schema, list):
        return [value for branch in schema for value in avro_examples(branch, depth)]
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            if depth == 0:
                return []
            values = [avro_examples(each["type"], depth - 1) for each in schema["fields"]]
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
            return [[], avro_examples(schema["items"], depth)]
        case "map":
            return [{}, {str(number): value for number, value in enumerate(avro_examples(schema["values"], depth))}]
    scalars: dict[str, list[Any]] = {
        "null": [None], "boolean": [True], "int": [0, -(2**31)], "long": [2**40, -1], "float": [1.5], "double": [1e300],
        "string": ["", "text"], "bytes": [b"text"],
    }  # fmt: skip
    return scalars.get(kind, [None])  # a name: of the record that it is in


@pytest.mark.parametrize("is_reversed", [False, True])
def test_values_of_avro_are_read_exactly_where_that_is_said(is_reversed: bool) -> None:
    for new, old, *verdicts in AVRO_PAIRS:
        reader, writer = (json.loads(text) for text in ((old, new) if is_reversed else (new, old)))
        unlogical = [fastavro.parse_schema(without_logical_types(schema)) for schema in (reader, writer)]
        values, failed = avro_examples(without_logical_types(writer)), 0
        assert values
        for value in values:
            file = io.BytesIO()
            fastavro.schemaless_writer(file, unlogical[1], value)
            file.seek(0)
            try:
                fastavro.schemaless_reader(file, unlogical[1], unlogical[0])
            except Exception:  # of many kinds: that it cannot be read is the answer
                failed += 1
        assert (failed == 0) is verdicts[is_reversed], (reader, writer, values)


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


@pytest.mark.parametrize("writer", [writer for _, writer, _ in JSON_PAIRS])
def test_no_json_schema_is_called_compatible_that_refuses_what_was_written(writer: Any) -> None:
    accepted = [value for value in VALUES if jsonschema_rs.is_valid(writer, value)]
    for reader in (reader for reader, _, _ in JSON_PAIRS if reader != {"$ref": "elsewhere.json"}):
        if is_read("JSON", json.dumps(reader), json.dumps(writer)):
            assert [value for value in accepted if not jsonschema_rs.is_valid(reader, value)] == [], (reader, writer)


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


def messages_of(kind: type[Message], depth: int = 2) -> list[Message]:
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
        return [value.number for value in member.enum_type.values]
    if member.type == FieldDescriptor.TYPE_STRING:
        return ["text", "more"]
    return SCALARS.get(member.cpp_type, [b"\xff", b"\0"])


@pytest.mark.parametrize("is_reversed", [False, True])
def test_messages_are_read_without_loss_where_that_is_said(is_reversed: bool) -> None:
    for new, old, *verdicts in PAIRS["PROTOBUF"]:
        reader, writer = map(message_class, (old, new) if is_reversed else (new, old))
        own = reader.DESCRIPTOR.fields_by_number
        for written in filter(methodcaller("IsInitialized"), messages_of(writer)) if verdicts[is_reversed] else ():
            read = reader.FromString(written.SerializeToString())
            assert read.IsInitialized()
            assert writer.FromString(read.SerializeToString()) == written, (new, old)
            # What is of no use to the reader although it has such a member: an enumeration's value that it does not know.
            assert not {stranger.field_number for stranger in UnknownFieldSet(read)} & {*own}, (new, old)
            for member, value in written.ListFields():
                if isinstance(value, int) and member.number in own:
                    assert getattr(read, own[member.number].name) == value, (new, old)


def test_the_text_of_a_proto_file_is_compiled_with_what_it_imports() -> None:
    inner = 'syntax = "proto3"; message Inner { int32 a = 1; }'
    outer = 'syntax = "proto3"; import "inner.proto"; import "google/protobuf/timestamp.proto"; message A { Inner a = 1; }'
    new, old = (
        ResolvedSchema(schema=SchemaText(kind=SchemaType.PROTOBUF, text=outer), referenced={"inner.proto": text})
        for text in (inner.replace("int32", "int64"), inner)
    )
    verdicts = [problems_of(level, new, [EarlierSchema(version=1, resolved=old)]) for level in ("BACKWARD", "FORWARD")]
    assert [not problems for problems in verdicts] == [True, False]


def test_a_message_names_version_level_and_what_was_not_understood() -> None:
    new, old = resolved("JSON", '{"not":{"type":"string"}}'), resolved("JSON", '{"type":"integer"}')
    problems = problems_of("BACKWARD", new, [EarlierSchema(version=7, resolved=old)])
    assert "NOT_UNDERSTOOD" in problems[0]
    assert "the keyword not" in problems[0]
    assert problems[1:] == ["{oldSchemaVersion: 7}", '{oldSchema: \'{"type":"integer"}\'}', "{compatibility: 'BACKWARD'}"]


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_what_is_too_deep_to_compare_is_not_compatible(kind: str) -> None:
    texts = ['{"type":"array","items":' * 199 + inner + "}" * 199 for inner in ('{"type":"int"}', '{"type":"long"}')]
    reader, writer = (
        resolved(kind, text.replace('"int"', '"integer"').replace('"long"', '"number"') if kind == "JSON" else text)
        for text in texts
    )
    problems = problems_of("BACKWARD", reader, [EarlierSchema(version=1, resolved=writer)])
    assert "NOT_UNDERSTOOD" in problems[0] or "TYPE_MISMATCH" in problems[0]
