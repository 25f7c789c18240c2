"""Which schemas are compatible: verdicts for Avro as published with its specification, for JSON Schema and Protobuf as documented
in docs/registry.md; what is not understood is never compatible.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc
from logbus.schemas.compatibility import LEVELS, EarlierSchema, problems_of
from logbus.schemas.schema_text import ResolvedSchema, SchemaText, SchemaType


def resolved(kind: str, text: str, **referenced: str) -> ResolvedSchema:
    return ResolvedSchema(schema=SchemaText(kind=SchemaType(kind), text=text), referenced=referenced)


def is_read(kind: str, reader: str, writer: str) -> bool:
    return not problems_of("BACKWARD", resolved(kind, reader), [EarlierSchema(version=1, resolved=resolved(kind, writer))])


def record(*fields: str, name: str = "R") -> str:
    return f'{{"type":"record","name":"{name}","fields":[{",".join(fields)}]}}'


A, B = '{"name":"a","type":"int"}', '{"name":"b","type":"string"}'
B_DEFAULT = '{"name":"b","type":"string","default":""}'
ENUM, ENUM_WIDER = '{"type":"enum","name":"E","symbols":["A"]}', '{"type":"enum","name":"E","symbols":["A","B"]}'

AVRO = [
    (record(A), record(A), True),
    (record(A, B_DEFAULT), record(A), True),
    (record(A, B), record(A), False),
    (record(A), record(A, B), True),
    (record('{"name":"a","type":"long"}'), record(A), True),
    (record(A), record('{"name":"a","type":"long"}'), False),
    (record('{"name":"a","type":["null","int"]}'), record(A), True),
    (record(A), record('{"name":"a","type":["null","int"]}'), False),
    (record('{"name":"c","aliases":["a"],"type":"int"}'), record(A), True),
    (record(A), record(A, name="S"), False),
    (ENUM_WIDER, ENUM, True),
    (ENUM, ENUM_WIDER, False),
    ('{"type":"enum","name":"E","symbols":["A"],"default":"A"}', ENUM_WIDER, True),
    ('"double"', '"int"', True),
    ('"int"', '"string"', False),
    ('"bytes"', '"string"', True),
    ('{"type":"array","items":"long"}', '{"type":"array","items":"int"}', True),
    ('{"type":"map","values":"int"}', '{"type":"map","values":"string"}', False),
    ('{"type":"fixed","name":"F","size":2}', '{"type":"fixed","name":"F","size":3}', False),
    ('["int","string"]', '["string","int"]', True),
    ('["int"]', '["string","int"]', False),
]  # fmt: skip

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def an_object(properties: Any = None, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {"a": STRING}, **others}


CLOSED = {"additionalProperties": False}
LIST = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": INTEGER}, **CLOSED}

JSON_PAIRS = [
    (STRING, STRING, True),
    (True, STRING, True),
    ({}, an_object(), True),
    (False, STRING, False),
    (NUMBER, INTEGER, True),
    (INTEGER, NUMBER, False),
    ({"type": ["string", "null"]}, STRING, True),
    (STRING, {"type": ["string", "null"]}, False),
    ({"oneOf": [{"type": "null"}, STRING]}, STRING, True),
    ({"oneOf": [{"type": "null"}, STRING]}, {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 4}]}, True),
    ({"anyOf": [STRING, INTEGER]}, {"type": ["integer", "string"]}, True),
    ({"anyOf": [STRING, INTEGER]}, NUMBER, False),
    ({"oneOf": [INTEGER, NUMBER]}, INTEGER, False),
    ({"oneOf": [STRING, {"type": "string", "maxLength": 3}]}, {"type": "string", "maxLength": 2}, False),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, True),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, False),
    ({"enum": [1]}, {"enum": [True]}, False),
    ({"const": 1}, {"const": 1.0}, True),
    ({"enum": [True, False]}, {"type": "boolean"}, True),
    ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 2}, True),
    ({"type": "integer", "minimum": 2}, {"type": "integer", "minimum": 1}, False),
    ({"type": "integer", "minimum": 2}, INTEGER, False),
    ({"type": "integer", "exclusiveMinimum": 2}, {"type": "integer", "minimum": 2}, False),
    ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 4}, True),
    ({"type": "string", "minLength": 0}, STRING, True),
    ({"type": "string", "pattern": "^a"}, STRING, False),
    ({"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 4}, True),
    ({"type": "number", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}, False),
    (an_object(required=["a"]), an_object(), False),
    (an_object(), an_object(required=["a"]), True),
    (an_object({"a": STRING, "b": STRING}), an_object(), False),  # open: b may have been there with any value
    (an_object({"a": STRING, "b": STRING}), an_object(**CLOSED), True),
    (an_object(**CLOSED), an_object({"a": STRING, "b": STRING}, **CLOSED), False),
    (an_object(), an_object({"a": STRING, "b": STRING}, **CLOSED), True),
    (an_object(**CLOSED), an_object(), False),
    (an_object(additionalProperties=STRING), an_object({"a": STRING, "b": STRING}, **CLOSED), True),
    (an_object(additionalProperties=STRING), an_object({"a": STRING, "b": INTEGER}, **CLOSED), False),
    (an_object(**CLOSED), an_object(patternProperties={"^x": STRING}, **CLOSED), False),
    (an_object(additionalProperties=STRING), an_object({"a": STRING}, patternProperties={"^x": INTEGER}, **CLOSED), False),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}, True),
    ({"type": "array", "items": INTEGER}, {"type": "array"}, False),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, False),
    ({"allOf": [STRING, {"maxLength": 3}]}, {"type": "string", "maxLength": 2}, True),
    ({"allOf": [STRING, {"maxLength": 1}]}, {"type": "string", "maxLength": 2}, False),
    ({"type": "string", "maxLength": 3}, {"allOf": [STRING, {"type": "string", "maxLength": 2}]}, True),
    ({"not": STRING}, INTEGER, False),
    ({"not": STRING}, {"not": STRING}, True),
    ({"if": STRING, "then": {"maxLength": 1}}, STRING, False),
    ({"contains": STRING}, {"contains": STRING, "minContains": 0}, False),
    (LIST, LIST, True),
    ({**LIST, "properties": {**LIST["properties"], "value": NUMBER}}, LIST, True),  # type: ignore[dict-item]
    (LIST, {**LIST, "properties": {**LIST["properties"], "value": NUMBER}}, False),  # type: ignore[dict-item]
    ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, STRING, True),
    ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, {"$ref": "#/$defs/a", "$defs": {"a": INTEGER}}, False),
    ({"$ref": "elsewhere.json"}, STRING, False),
    ({"type": "string", "title": "new", "connect.index": 1}, STRING, True),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, {"$schema": "http://json-schema.org/draft-04/schema#"}, False),
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, 2, 2.5, 3, 4, "", "a", "ab", "abc", "abcd", [], [1], [1, 1], ["a"], [None], {}, {"a": "a"}, {"a": 1},
    {"b": "b"}, {"a": "a", "b": "b"}, {"a": "a", "b": 1}, {"x": "x"}, {"xa": 1}, {"next": {}}, {"next": {"value": 1.5}}, {"value": 1},
]  # fmt: skip

PROTO = 'syntax = "proto3"; '
PROTOBUF_PAIRS = [
    ("message A { string a = 1; }", "message A { string a = 1; }", True),
    ("message A { string a = 1; int32 b = 2; }", "message A { string a = 1; }", True),
    ("message A { string a = 1; }", "message A { string a = 1; int32 b = 2; }", True),
    ("message A { string renamed = 1; }", "message A { string a = 1; }", True),
    ("message A { int32 a = 1; }", "message A { string a = 1; }", False),
    ("message A { int64 a = 1; }", "message A { int32 a = 1; }", True),
    ("message A { int32 a = 1; }", "message A { int64 a = 1; }", False),
    ("message A { bytes a = 1; }", "message A { string a = 1; }", True),
    ("message A { string a = 1; }", "message A { bytes a = 1; }", False),
    ("message A { repeated string a = 1; }", "message A { string a = 1; }", True),
    ("message A { string a = 1; }", "message A { repeated string a = 1; }", False),
    ("message A { oneof x { string a = 1; string b = 2; } }", "message A { string a = 1; string b = 2; }", False),
    ("message A { oneof x { string a = 1; string b = 2; } }", "message A { string a = 1; }", True),
    ("message B { string a = 1; }", "message A { string a = 1; }", False),
    ("message A { message B { int32 a = 1; } B b = 1; }", "message A { message B { int64 a = 1; } B b = 1; }", False),
    ("message A { map<string, int64> m = 1; }", "message A { map<string, int32> m = 1; }", True),
    ("message A { map<string, int32> m = 1; }", "message A { map<string, string> m = 1; }", False),
    ("package a; message A { string a = 1; }", "package b; message A { string a = 1; }", False),
    ("enum E { X = 0; } message A { E e = 1; }", "enum E { X = 0; Y = 1; } message A { E e = 1; }", True),
    ("enum E { X = 0; } message A { int32 e = 1; }", "enum E { X = 0; } message A { E e = 1; }", True),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "verdict"), AVRO)
def test_avro(reader: str, writer: str, verdict: bool) -> None:
    assert is_read("AVRO", reader, writer) is verdict


@pytest.mark.parametrize(("reader", "writer", "verdict"), JSON_PAIRS)
def test_json_schema(reader: Any, writer: Any, verdict: bool) -> None:
    assert is_read("JSON", json.dumps(reader), json.dumps(writer)) is verdict


@pytest.mark.parametrize("writer", [writer for _, writer, _ in JSON_PAIRS])
def test_no_json_schema_is_called_compatible_that_refuses_what_was_written(writer: Any) -> None:
    accepted = [value for value in VALUES if jsonschema_rs.is_valid(writer, value)]
    for reader in (reader for reader, _, _ in JSON_PAIRS if reader != {"$ref": "elsewhere.json"}):
        if is_read("JSON", json.dumps(reader), json.dumps(writer)):
            assert [value for value in accepted if not jsonschema_rs.is_valid(reader, value)] == [], (reader, writer)


@pytest.mark.parametrize(("reader", "writer", "verdict"), PROTOBUF_PAIRS)
def test_protobuf(reader: str, writer: str, verdict: bool, tmp_path: Path) -> None:
    assert is_read("PROTOBUF", descriptor(reader, tmp_path), descriptor(writer, tmp_path)) is verdict


def descriptor(text: str, folder: Path) -> str:
    """In base64, as Confluent's Python client registers it; compiled in this process."""
    (folder / "a.proto").write_text(PROTO + text)
    assert protoc.main(["protoc", f"-I{folder}", "-o", f"{folder}/set", "a.proto"]) == 0
    file = FileDescriptorSet.FromString((folder / "set").read_bytes()).file[0]
    return base64.b64encode(file.SerializeToString()).decode()


def test_the_text_of_a_proto_file_is_compiled_with_what_it_imports() -> None:
    inner = 'syntax = "proto3"; message Inner { int32 a = 1; }'
    outer = 'syntax = "proto3"; import "inner.proto"; import "google/protobuf/timestamp.proto"; message A { Inner a = 1; }'
    new, old = (
        ResolvedSchema(schema=SchemaText(kind=SchemaType.PROTOBUF, text=outer), referenced={"inner.proto": text})
        for text in (inner.replace("int32", "int64"), inner)
    )
    verdicts = [problems_of(level, new, [EarlierSchema(version=1, resolved=old)]) for level in ("BACKWARD", "FORWARD")]
    assert [not problems for problems in verdicts] == [True, False]


@pytest.mark.parametrize("level", LEVELS)
def test_levels_say_who_must_read_whom(level: str) -> None:
    narrow, wide = resolved("JSON", '{"type":"integer"}'), resolved("JSON", '{"type":"number"}')
    text = resolved("JSON", '{"type":"string"}')

    def verdict(new: ResolvedSchema, *old: ResolvedSchema) -> bool:
        return not problems_of(level, new, [EarlierSchema(version=1 + number, resolved=each) for number, each in enumerate(old)])

    backward, forward = level.startswith(("BACKWARD", "NONE")), level.startswith(("FORWARD", "NONE"))
    assert (verdict(wide, narrow), verdict(narrow, wide)) == (backward, forward)
    assert verdict(narrow, text, narrow) is not level.endswith("_TRANSITIVE")
    assert verdict(narrow) is True


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
