"""Pairs of schemas: which of them reads which. A row is a new schema, an old one, whether the new one reads what the old one wrote
(BACKWARD) and whether the old one reads what the new one writes (FORWARD); of JSON Schema it is a reader, a writer and the first.

Avro's verdicts are those of its specification's rules (Schema Resolution) and of Confluent's registry, which has them decided by
Apache's library. Those of the other two are ours (docs/registry.md): nothing that loses a value or breaks a reader is compatible.
"""

from __future__ import annotations

from typing import Any

Pair = tuple[str, str, bool, bool]
T, F = True, False


def record(*fields: str, name: str = "R", **others: str) -> str:
    more = "".join(f',"{attribute}":{text}' for attribute, text in others.items())
    return f'{{"type":"record","name":"{name}","fields":[{",".join(fields)}]{more}}}'


def field(name: str, kind: str, **others: str) -> str:
    more = "".join(f',"{attribute}":{text}' for attribute, text in others.items())
    return f'{{"name":"{name}","type":{kind}{more}}}'


def enum(*symbols: str, name: str = "E", default: str = "") -> str:
    listed, more = ",".join(f'"{symbol}"' for symbol in symbols), f',"default":"{default}"' if default else ""
    return f'{{"type":"enum","name":"{name}","symbols":[{listed}]{more}}}'


def fixed(size: int, name: str = "F") -> str:
    return f'{{"type":"fixed","name":"{name}","size":{size}}}'


def array(items: str) -> str:
    return f'{{"type":"array","items":{items}}}'


def mapping(values: str) -> str:
    return f'{{"type":"map","values":{values}}}'


INT, LONG, FLOAT, DOUBLE, TEXT, BYTES, BOOLEAN, NULL = (
    f'"{name}"' for name in ("int", "long", "float", "double", "string", "bytes", "boolean", "null")
)
A, B = field("a", INT), field("b", TEXT)
B_DEFAULT, B_NULL = field("b", TEXT, default='""'), field("b", '["null","string"]', default="null")
INNER, INNER_DEFAULT, INNER_MORE = (record(*fields, name="Inner") for fields in ((A,), (A, B_DEFAULT), (A, B)))
NODE = '{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}%s]}'
MILLIS, MICROS, DATE = (
    f'{{"type":"{kind}","logicalType":"{logical}"}}'
    for kind, logical in (("long", "timestamp-millis"), ("long", "timestamp-micros"), ("int", "date"))
)
DECIMAL = '{"type":"bytes","logicalType":"decimal","precision":9,"scale":%d}'

AVRO_PAIRS: list[Pair] = [
    (INT, INT, T, T),
    (LONG, INT, T, F),
    (FLOAT, INT, T, F),
    (DOUBLE, INT, T, F),
    (FLOAT, LONG, T, F),
    (DOUBLE, LONG, T, F),
    (DOUBLE, FLOAT, T, F),
    (BYTES, TEXT, T, T),
    (TEXT, INT, F, F),
    (BOOLEAN, INT, F, F),
    (NULL, INT, F, F),
    (BYTES, INT, F, F),
    (record(A), record(A), T, T),
    (record(A, B_DEFAULT), record(A), T, T),
    (record(A, B_NULL), record(A), T, T),
    (record(A, B), record(A), F, T),
    (record(A), record(A, B), T, F),
    (record(A), record(A, B_DEFAULT), T, T),
    (record(A, B), record(B, A), T, T),
    (record(A, B, field("c", INT, default="0")), record(A), F, T),
    (record(), record(A), T, F),
    (record(field("a", LONG)), record(A), T, F),
    (record(field("a", '["null","int"]')), record(A), T, F),
    (record(field("a", '["null","long"]')), record(A), T, F),
    (record(field("c", INT, aliases='["a"]')), record(A), T, F),
    (record(field("c", INT)), record(A), F, F),
    (record(field("c", INT, default="1")), record(A), T, F),
    (record(A), record(A, name="S"), F, F),
    (record(A, name="S", aliases='["R"]'), record(A), T, F),
    (record(A, namespace='"n"'), record(A), T, T),
    (record(A, doc='"words"'), record(field("a", INT, doc='"others"', order='"descending"')), T, T),
    (record(A, B_DEFAULT), record(A, field("b", TEXT, default='"x"')), T, T),
    (record(field("i", INNER_DEFAULT)), record(field("i", INNER)), T, T),
    (record(field("i", INNER_MORE)), record(field("i", INNER)), F, T),
    (NODE % f",{B_DEFAULT}", NODE % "", T, T),
    (NODE % f",{B}", NODE % "", F, T),
    (enum("A", "B"), enum("A"), T, F),
    (enum("B", "A"), enum("A", "B"), T, T),
    (enum("A", "B"), enum("A", default="A"), T, T),
    (enum("A", "C", default="A"), enum("A", "B"), T, F),
    (enum("A", name="G"), enum("A"), F, F),
    (TEXT, enum("A"), F, F),
    (fixed(2), fixed(2), T, T),
    (fixed(2), fixed(3), F, F),
    (fixed(2, name="G"), fixed(2), F, F),
    (BYTES, fixed(2), F, F),
    (array(LONG), array(INT), T, F),
    (array(TEXT), array(INT), F, F),
    (array(TEXT), mapping(TEXT), F, F),
    (array(INNER_DEFAULT), array(INNER), T, T),
    (mapping(DOUBLE), mapping(INT), T, F),
    (mapping(INT), mapping(TEXT), F, F),
    ('["int","string"]', '["string","int"]', T, T),
    ('["null","int","string"]', '["int","string"]', T, F),
    ('["string","int"]', INT, T, F),
    ('["int"]', INT, T, T),
    (LONG, '["int","long"]', T, T),
    (DOUBLE, '["int","float"]', T, F),
    ('["null","string"]', '["null","int"]', F, F),
    (f'["null",{INNER_DEFAULT}]', f'["null",{INNER}]', T, T),
    (f'["null",{record(A, name="G")}]', f'["null",{record(A)}]', F, F),
    (MILLIS, LONG, T, T),
    (MILLIS, MICROS, T, T),  # not compared, by nobody: docs/registry.md
    (DECIMAL % 2, DECIMAL % 3, T, T),  # likewise
    (LONG, DATE, T, F),
]  # fmt: skip


# JSON Schema.

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def an_object(properties: Any = None, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {"a": STRING}, **others}


CLOSED = {"additionalProperties": False}
LIST = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": INTEGER}, **CLOSED}

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
JSON_PAIRS = [
    # A reference of another kind is equal only where what it leads to is.
    (
        {"$defs": {"node": {"$dynamicAnchor": "node", "type": "integer"}}, "properties": {"a": {"$dynamicRef": "#node"}}},
        {"$defs": {"node": {"$dynamicAnchor": "node", "type": "string"}}, "properties": {"a": {"$dynamicRef": "#node"}}},
        False,
    ),
    ({"enum": [1, 2], "const": 3}, {"const": 3}, False),
    # Without a name of its draft a schema is of the newest one.
    ({"dependentRequired": {"a": ["b"]}}, {"$schema": DRAFT_7, "dependentRequired": {"a": ["b"]}}, False),
    ({"const": 1}, {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, False),
    ({"$schema": DRAFT_7, "type": "string", "format": "date"}, {"type": "string", "format": "date"}, False),
    ({"$schema": DRAFT_7, "type": "string"}, {"type": "string"}, True),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema", "format": "date"}, {"format": "date"}, True),
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
    ({"type": "object", "maxProperties": 2}, {"type": "object", "maxProperties": 1}, True),
    ({"type": "array", "minItems": 2}, {"type": "array", "minItems": 1}, False),
    ({"anyOf": [STRING, {"type": "null"}]}, {"oneOf": [{"type": "null"}, STRING]}, True),
    (an_object({"a": {"type": ["string", "null"]}}), an_object(), True),
    (an_object({"a": an_object({"b": INTEGER}, required=["b"])}), an_object({"a": an_object({"b": INTEGER})}), False),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, {"$schema": "http://json-schema.org/draft-04/schema#"}, False),
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, 2, 2.5, 3, 4, "", "a", "ab", "abc", "abcd", [], [1], [1, 1], ["a"], [None], {}, {"a": "a"}, {"a": 1},
    {"b": "b"}, {"a": "a", "b": "b"}, {"a": "a", "b": 1}, {"x": "x"}, {"xa": 1}, {"next": {}}, {"next": {"value": 1.5}}, {"value": 1},
]  # fmt: skip


# Protobuf: of proto3 unless they say otherwise.

TWO = 'syntax = "proto2"; '
PROTOBUF_PAIRS: list[Pair] = [
    ("message A { string a = 1; }", "message A { string a = 1; }", T, T),
    ("message A { string a = 1; int32 b = 2; }", "message A { string a = 1; }", T, T),
    ("message A { string renamed = 1; }", "message A { string a = 1; }", T, T),
    ("message A { string a = 2; }", "message A { string a = 1; }", T, T),
    ("message A { reserved 2; string a = 1 [deprecated = true]; } // words", "message A { string a = 1; }", T, T),
    ('message A { string a = 1 [json_name = "b"]; }', "message A { string a = 1; }", T, T),
    ("package a; message A { string a = 1; }", "package b; message A { string a = 1; }", F, F),
    ("message B { string a = 1; }", "message A { string a = 1; }", F, F),
    ("message A { string a = 1; } message B { int32 a = 1; }", "message A { string a = 1; }", T, F),
    ("message B { int32 a = 1; } message A { string a = 1; }", "message A { string a = 1; } message B { int32 a = 1; }", T, T),
    # Numbers and texts.
    ("message A { int32 a = 1; }", "message A { string a = 1; }", F, F),
    ("message A { int64 a = 1; }", "message A { int32 a = 1; }", T, F),
    ("message A { uint64 a = 1; }", "message A { uint32 a = 1; }", T, F),
    ("message A { int64 a = 1; }", "message A { uint32 a = 1; }", T, F),
    ("message A { uint32 a = 1; }", "message A { int32 a = 1; }", F, F),
    ("message A { sint64 a = 1; }", "message A { sint32 a = 1; }", T, F),
    ("message A { sint32 a = 1; }", "message A { int32 a = 1; }", F, F),
    ("message A { fixed32 a = 1; }", "message A { int32 a = 1; }", F, F),
    ("message A { sfixed32 a = 1; }", "message A { fixed32 a = 1; }", F, F),
    ("message A { fixed64 a = 1; }", "message A { fixed32 a = 1; }", F, F),
    ("message A { double a = 1; }", "message A { float a = 1; }", F, F),
    ("message A { int32 a = 1; }", "message A { bool a = 1; }", T, F),
    ("message A { uint64 a = 1; }", "message A { bool a = 1; }", T, F),
    ("message A { sint32 a = 1; }", "message A { bool a = 1; }", F, F),
    ("message A { bytes a = 1; }", "message A { string a = 1; }", T, F),
    # Messages.
    ("message A { message B { int32 a = 1; } B b = 1; }", "message A { message B { int64 a = 1; } B b = 1; }", F, T),
    ("message A { message B { int32 a = 1; string c = 2; } B b = 1; }", "message A { message B { int32 a = 1; } B b = 1; }", T, T),
    ("message A { message C { int32 a = 1; } C b = 1; }", "message A { message B { int32 a = 1; } B b = 1; }", F, F),
    ("message A { bytes b = 1; }", "message A { B b = 1; } message B { int32 a = 1; }", F, F),
    ("message A { string b = 1; } message B { int32 a = 1; }", "message A { B b = 1; } message B { int32 a = 1; }", F, F),
    ("message A { A a = 1; int32 b = 2; }", "message A { A a = 1; }", T, T),
    # Single, optional, repeated.
    ("message A { repeated string a = 1; }", "message A { string a = 1; }", T, F),
    ("message A { repeated bytes a = 1; }", "message A { bytes a = 1; }", T, F),
    ("message A { repeated int32 a = 1; }", "message A { int32 a = 1; }", F, F),
    ("message A { repeated B b = 1; } message B { int32 a = 1; }", "message A { B b = 1; } message B { int32 a = 1; }", T, F),
    ("message A { repeated int64 a = 1; }", "message A { repeated int32 a = 1; }", T, F),
    ("message A { repeated int32 a = 1 [packed = false]; }", "message A { repeated int32 a = 1; }", T, T),
    ("message A { optional int32 a = 1; }", "message A { int32 a = 1; }", T, T),
    ("message A { optional string a = 1; optional int32 b = 2; }", "message A { string a = 1; }", T, T),
    # Maps.
    ("message A { map<string, int64> m = 1; }", "message A { map<string, int32> m = 1; }", T, F),
    ("message A { map<string, int32> m = 1; }", "message A { map<string, string> m = 1; }", F, F),
    ("message A { map<int64, string> m = 1; }", "message A { map<int32, string> m = 1; }", T, F),
    ("message A { map<string, int32> renamed = 1; }", "message A { map<string, int32> m = 1; }", T, T),
    ("message A { map<string, B> m = 1; } message B { int32 a = 1; string b = 2; }", "message A { map<string, B> m = 1; } message B { int32 a = 1; }", T, T),
    ("message A { map<string, int32> m = 1; }", "message A { repeated M m = 1; } message M { string key = 1; int32 value = 2; }", F, F),
    # Alternatives.
    ("message A { oneof x { string a = 1; string b = 2; } }", "message A { string a = 1; string b = 2; }", F, T),
    ("message A { oneof x { string a = 1; string b = 2; } }", "message A { string a = 1; }", T, T),
    ("message A { oneof x { string a = 1; } }", "message A { string a = 1; }", T, T),
    ("message A { oneof x { string a = 1; int32 b = 2; } }", "message A { oneof x { string a = 1; } }", T, F),
    ("message A { oneof x { int64 a = 1; } }", "message A { oneof x { int32 a = 1; } }", T, F),
    ("message A { oneof x { string a = 1; string b = 2; } }", "message A { oneof x { string a = 1; } oneof y { string b = 2; } }", F, T),
    ("message A { oneof x { string a = 1; } }", "message A { repeated string a = 1; }", F, T),
    # Enumerations.
    ("enum E { X = 0; Y = 1; } message A { E e = 1; }", "enum E { X = 0; } message A { E e = 1; }", T, T),
    ("enum E { X = 0; Z = 1; } message A { E e = 1; }", "enum E { X = 0; Y = 1; } message A { E e = 1; }", T, T),
    ("enum E { X = 0; } message A { int32 e = 1; }", "enum E { X = 0; } message A { E e = 1; }", T, F),
    ("enum G { X = 0; } message A { G e = 1; }", "enum E { X = 0; } message A { E e = 1; }", F, F),
    # proto2.
    (TWO + "message A { optional int32 a = 1; required int32 b = 2; }", TWO + "message A { optional int32 a = 1; }", F, T),
    (TWO + "message A { required int32 a = 1; }", TWO + "message A { optional int32 a = 1; }", F, T),
    (TWO + "enum E { X = 0; Y = 1; } message A { optional E e = 1; }", TWO + "enum E { X = 0; } message A { optional E e = 1; }", T, F),
    (TWO + "message A { optional int32 a = 1; }", "message A { int32 a = 1; }", F, F),
    (TWO + "message A { optional group G = 1 { optional int64 a = 2; } }", TWO + "message A { optional group G = 1 { optional int32 a = 2; } }", F, F),
    (TWO + "message A { extensions 100 to 199; }", TWO + "message A { optional int32 a = 1; }", F, F),
]  # fmt: skip
