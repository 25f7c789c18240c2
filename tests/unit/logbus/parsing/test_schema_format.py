"""What the three parsers make of values, chunk by chunk and one by one."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from logbus.errors import UserError
from logbus.parsing import Parser, Unparsable, batches, parse_value, parser_for
from logbus.parsing.decoders import FORMATS, Decoders, ImportedSchema, Schema, SchemaBook, SchemasUnmet, reference_to_id
from logbus.parsing.schema_format import schema_columns

from tests.support.avro_values import payload, record, written
from tests.support.schema_registry import by_id

REST = "_rest"


def book_of(*schemas: Any, schema_type: str = "AVRO", imports: tuple[ImportedSchema, ...] = ()) -> SchemaBook:
    """Of schemas with the ids 1, 2, ..."""
    texts = [schema if isinstance(schema, str) else json.dumps(schema) for schema in schemas]
    known = [
        Schema(reference=reference_to_id(number), type=schema_type, text=text, imports=imports)
        for number, text in enumerate(texts, 1)
    ]
    return SchemaBook(schemas={schema.reference: schema for schema in known}, met={schema.reference for schema in known})


def parser_with(parse: str, book: SchemaBook, **columns: str) -> Parser:
    settings = {"columns": schema_columns(Decoders(format=FORMATS[parse], book=book), columns)}
    return parser_for(parse, settings, book)


def rows(parser: Parser, *values: bytes) -> list[dict[str, Any]]:
    """As a load parses them; what one by one gives is the same."""
    parsed = batches.parse_chunk(parser, batches.parser_schema(parser.columns), values)
    assert [str(error) for _, error in parsed.rejected] == []
    together = parsed.rows.to_pylist()
    assert [dict(zip(parser.columns, parse_value(parser, value), strict=True)) for value in values] == together
    return together


def kind_of(parser: Parser, value: bytes | None) -> str:
    with pytest.raises(Unparsable) as unparsable:
        parse_value(parser, value)
    return unparsable.value.kind


EVERY = record(
    ("id", "int"),
    ("size", "long"),
    ("ratio", "float"),
    ("ok", "boolean"),
    ("name", ["null", "string"]),
    ("raw", "bytes"),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}),
    ("at", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("clock", {"type": "long", "logicalType": "time-micros"}),
    ("key", {"type": "string", "logicalType": "uuid"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}),
    ("either", ["null", "string", "long"]),
    (
        "place",
        record(
            ("x", "int"),
            ("since", {"type": "long", "logicalType": "timestamp-millis"}),
            ("worth", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}),
            name="Place",
        ),
    ),
    ("tags", {"type": "map", "values": "long"}),
    ("_own", "string"),
)
KEY = uuid.UUID("6d3d6ba7-8a22-4f5e-9a67-8f1f4c4f3a10")
AT = datetime(2026, 11, 27, 10, 30, 0, 123456, tzinfo=UTC)
VALUE = {
    "id": 1,
    "size": 2**40,
    "ratio": 0.5,
    "ok": True,
    "name": None,
    "raw": b"\0\xff",
    "colour": "BLUE",
    "at": AT,
    "local": datetime(2026, 11, 27, 10),
    "day": date(2026, 11, 27),
    "clock": time(10, 30, 1),
    "key": KEY,
    "price": Decimal("12.345"),
    "either": 7,
    "place": {"x": 1, "since": datetime(2026, 1, 1, tzinfo=UTC), "worth": Decimal("90071992547409.93")},
    "tags": {"a": 1},
    "_own": "kept",
}


def test_every_type_of_avro_has_a_column_that_holds_it() -> None:
    parser = parser_with("avro", book_of(EVERY))
    assert dict(parser.columns) == {
        "id": "bigint",
        "size": "bigint",
        "ratio": "double precision",
        "ok": "boolean",
        "name": "text",
        "raw": "bytea",
        "colour": "text",
        "at": "timestamptz",
        "local": "timestamptz",
        "day": "date",
        "clock": "text",
        "key": "text",
        "price": "numeric(9,3)",
        "either": "jsonb",
        "place": "jsonb",
        "tags": "jsonb",
        REST: "jsonb",
    }
    (row,) = rows(parser, written(1, EVERY, VALUE))
    assert row == {
        **{name: VALUE[name] for name in ("id", "size", "ratio", "ok", "name", "raw", "colour", "at", "day", "price")},
        "local": datetime(2026, 11, 27, 10, tzinfo=UTC),
        "clock": "10:30:01",
        "key": str(KEY),
        "either": "7",
        "place": '{"x":1,"since":"2026-01-01T00:00:00+00:00","worth":90071992547409.93}',
        "tags": '{"a":1}',
        REST: '{"_own":"kept"}',
    }


def test_values_of_many_schemas_in_one_chunk_keep_their_order() -> None:
    first, second = (
        record(("id", "int"), ("old", "string")),
        record(("id", "long"), ("at", {"type": "long", "logicalType": "timestamp-millis"})),
    )
    parser = parser_with("avro", book_of(first, second))
    values = [
        written(1, first, {"id": n, "old": str(n)}) if n % 3 else written(2, second, {"id": n, "at": AT}) for n in range(200)
    ]
    loaded = rows(parser, *values)
    assert [row["id"] for row in loaded] == list(range(200))
    assert [row["old"] for row in loaded] == [str(n) if n % 3 else None for n in range(200)]
    assert {row["at"] for row in loaded} == {None, AT.replace(microsecond=123000)}


def test_a_schema_may_be_of_another_and_need_not_be_a_record() -> None:
    address = record(("street", "string"), name="Address")
    imports = (ImportedSchema(name="Address", subject="address", version=1, text=json.dumps(address)),)
    book = book_of(record(("to", "Address")), '"string"', imports=imports)
    parser = parser_with("avro", book)
    whole = record(("to", address))
    assert rows(parser, written(1, whole, {"to": {"street": "x"}}), written(2, "string", "y")) == [
        {"to": '{"street":"x"}', "value": None, REST: None},
        {"to": None, "value": "y", REST: None},
    ]


ORDER = record(("id", "long"), ("name", "string"))
GOOD = written(1, ORDER, {"id": 300, "name": "Ada"})
LIST = {
    "type": "record",
    "name": "Link",
    "fields": [{"name": "value", "type": "long"}, {"name": "next", "type": ["null", "Link"]}],
}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "NoValue"),
        (b"", "NoSchemaHeader"),
        (b'{"id": 1}', "NoSchemaHeader"),
        (GOOD[:4], "TruncatedValue"),
        (GOOD[:-1], "TruncatedValue"),
        (GOOD[:5], "TruncatedValue"),
        (GOOD + b"\0", "TrailingBytes"),
        (by_id(1, b"\x02\x04\xff\xfe"), "SchemaMismatch"),
        (written(1, ORDER, {"id": 1, "name": "a\0"}), "WrongType"),
        (by_id(9, b"\x02"), "UnknownSchemaId"),
        (by_id(2, b"\x02"), "SchemaNotReadable"),
        (by_id(3, b"\xd0\xff"), "SchemaNotReadable"),
        (by_id(4, b"\x02\x02" * 500_000 + b"\x02\x00"), "SchemaMismatch"),
    ],
)
def test_each_thing_that_may_be_wrong_with_a_value_has_a_kind_of_its_own(value: bytes | None, kind: str) -> None:
    many_nothings = record(("nothings", {"type": "array", "items": "null"}))
    book = book_of(ORDER, '{"type": "recrd"}', many_nothings, LIST)
    book.unknown.add(reference_to_id(9))
    parser = parser_with("avro", book)
    parsed = batches.parse_chunk(parser, batches.parser_schema(parser.columns), [GOOD] * 50 + [value] + [GOOD] * 50)
    assert [(index, error.kind) for index, error in parsed.rejected] == [(50, kind)]
    assert parsed.indexes == [*range(50), *range(51, 101)]


def test_a_schema_of_another_format_is_not_decoded() -> None:
    assert kind_of(parser_with("avro", book_of("{}", schema_type="JSON")), by_id(1, b"{}")) == "WrongSchemaType"


def test_a_schema_that_nobody_was_asked_for_is_no_dead_letter() -> None:
    parser = parser_with("avro", SchemaBook())
    with pytest.raises(SchemasUnmet):
        parse_value(parser, GOOD)
    with pytest.raises(SchemasUnmet):
        batches.parse_chunk(parser, batches.parser_schema(parser.columns), [GOOD])


def test_columns_only_grow_and_a_changed_type_is_refused_by_name() -> None:
    first, wider = record(("id", "int"), ("rate", "long")), record(("id", "long"), ("rate", "double"), ("new", "string"))
    decoders = Decoders(format=FORMATS["avro"], book=book_of(first, wider))
    assert schema_columns(decoders, {}) == {"id": "bigint", "rate": "double precision", "new": "text"}
    assert schema_columns(decoders, {"rate": "jsonb"})["rate"] == "jsonb"
    for columns in ({"rate": "bigint"}, {"id": "text"}):
        with pytest.raises(
            UserError, match=r"field '(rate|id)' is (double precision|bigint) in schema id [12], and (bigint|text) in the table"
        ):
            schema_columns(decoders, columns)
    other = Decoders(format=FORMATS["avro"], book=book_of(first, record(("id", "string"))))
    with pytest.raises(UserError, match="field 'id' is text in schema id 2, and bigint in schema id 1"):
        schema_columns(other, {})


def test_a_declared_column_may_be_wider_or_json() -> None:
    parser = parser_with("avro", book_of(ORDER), id="double precision", name="jsonb")
    assert rows(parser, GOOD) == [{"id": 300.0, "name": '"Ada"', REST: None}]


# Protobuf: the file as a registry gives it.


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "common.proto"])
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    scalar, repeated = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", kinds.TYPE_INT64, scalar, ""),
            ("big", kinds.TYPE_UINT64, scalar, ""),
            ("name", kinds.TYPE_STRING, scalar, ""),
            ("raw", kinds.TYPE_BYTES, scalar, ""),
            ("colour", kinds.TYPE_ENUM, scalar, ".shop.common.Colour"),
            ("at", kinds.TYPE_MESSAGE, scalar, ".google.protobuf.Timestamp"),
            ("note", kinds.TYPE_MESSAGE, scalar, ".google.protobuf.StringValue"),
            ("line", kinds.TYPE_MESSAGE, scalar, ".shop.Order.Line"),
            ("sizes", kinds.TYPE_INT32, repeated, ""),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    line = order.nested_type.add(name="Line")
    line.field.add(name="unit_price", number=1, type=kinds.TYPE_DOUBLE, label=scalar)
    file.message_type.add(name="Refund").field.add(name="reason", number=1, type=kinds.TYPE_STRING, label=scalar)
    return file


def common_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="default", package="shop.common", syntax="proto3")
    colours = file.enum_type.add(name="Colour")
    for number, name in enumerate(("NONE", "RED")):
        colours.value.add(name=name, number=number)
    return file


def text_of(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


PROTO_IMPORTS = (ImportedSchema(name="common.proto", subject="common", version=1, text=text_of(common_file())),)
FIRST_MESSAGE, SECOND_MESSAGE, LINE_MESSAGE = b"\0", b"\x02\x02", b"\x04\0\0"


def proto_parser() -> Parser:
    book = book_of(text_of(proto_file()), schema_type="PROTOBUF", imports=PROTO_IMPORTS)
    book.met = {reference_to_id(1) + indexes for indexes in (FIRST_MESSAGE, SECOND_MESSAGE, LINE_MESSAGE)}
    return parser_with("protobuf", book)


def test_messages_of_protobuf_are_found_by_their_indexes() -> None:
    stamp = timestamp_pb2.Timestamp(seconds=1_795_750_000, nanos=5_000).SerializeToString()
    order = (
        b"\x08\x07\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x03Ada\x22\x01\xff\x28\x01"
        + bytes([0x32, len(stamp)])
        + stamp
        + b"\x3a\x03\x0a\x01n\x42\x09\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x4a\x02\x01\x02"
    )
    parser = proto_parser()
    nothing = dict.fromkeys(parser.columns)
    values = [
        by_id(1, FIRST_MESSAGE + order),
        by_id(1, FIRST_MESSAGE),
        by_id(1, SECOND_MESSAGE + b"\x0a\x01x"),
        by_id(1, LINE_MESSAGE + b""),
    ]
    assert rows(parser, *values) == [
        {
            **nothing,
            "id": 7,
            "big": Decimal(2**64 - 1),
            "name": "Ada",
            "raw": b"\xff",
            "colour": "RED",
            "at": datetime.fromtimestamp(1_795_750_000, UTC).replace(microsecond=5),
            "note": "n",
            "line": '{"unit_price":1.5}',
            "sizes": "[1,2]",
        },
        {**nothing, "id": 0, "big": Decimal(0), "name": "", "raw": b"", "colour": "NONE", "sizes": "[]"},
        {**nothing, "reason": "x"},
        {**nothing, "unit_price": 0.0},
    ]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (by_id(1, FIRST_MESSAGE + b"\x1a\x05Ad"), "SchemaMismatch"),
        (by_id(1, FIRST_MESSAGE + b"\xa0\x06\x01"), "UnknownFields"),
        (by_id(1, FIRST_MESSAGE + b"\x42\x03\xa0\x06\x01"), "UnknownFields"),  # within the line
        (by_id(1, b"\x02\x08"), "MessageIndexOutOfRange"),
        (by_id(1, b""), "TruncatedValue"),
        (b"\x08\x01", "NoSchemaHeader"),
    ],
)
def test_what_is_wrong_with_a_value_of_protobuf_is_said(value: bytes, kind: str) -> None:
    assert kind_of(proto_parser(), value) == kind


def test_a_registry_that_gives_protobuf_as_text_is_named_as_the_reason() -> None:
    parser = parser_with("protobuf", book_of('syntax = "proto3";', schema_type="PROTOBUF"))
    with pytest.raises(Unparsable, match="format=serialized"):
        parse_value(parser, by_id(1, FIRST_MESSAGE))


# JSON Schema.

PERSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "name": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "score": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "address": {"$ref": "address.json"},
    },
    "required": ["id"],
}
JSON_IMPORTS = (
    ImportedSchema(name="address.json", subject="address", version=1, text='{"type": "object", "required": ["street"]}'),
)


def test_the_properties_of_json_are_columns_and_its_schema_judges() -> None:
    parser = parser_with("json_schema", book_of(PERSON, schema_type="JSON", imports=JSON_IMPORTS))
    value = {"id": 7, "name": "Ada", "at": "2026-11-27T10:30:00Z", "score": 0.5, "address": {"street": "x"}, "other": [1]}
    (row,) = rows(parser, by_id(1, json.dumps(value).encode()))
    assert row == {
        "id": 7,
        "name": "Ada",
        "at": datetime(2026, 11, 27, 10, 30, tzinfo=UTC),
        "score": 0.5,
        "address": '{"street":"x"}',
        REST: '{"other":[1]}',
    }
    for wrong, kind in (({"id": 0}, "SchemaMismatch"), ({"id": 1, "address": {}}, "SchemaMismatch"), ([], "SchemaMismatch")):
        assert kind_of(parser, by_id(1, json.dumps(wrong).encode())) == kind
    assert kind_of(parser, by_id(1, b'{"id": 1')) == "BadJson"


def test_a_schema_of_json_fetches_nothing_from_the_network(registry: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": f"{registry.url}/a.json"}}}
    parser = parser_with("json_schema", book_of(schema, schema_type="JSON"))
    assert kind_of(parser, by_id(1, b"{}")) == "SchemaNotReadable"
    assert registry.asked == []


def test_payloads_need_no_other_value_beside_them() -> None:
    assert payload(ORDER, {"id": 300, "name": "Ada"}) == GOOD[5:]


def test_no_value_that_is_cut_off_or_goes_on_becomes_a_row() -> None:
    parser = parser_with("avro", book_of(EVERY))
    whole = written(1, EVERY, VALUE)
    ends = [*(whole[:end] for end in range(len(whole))), *(whole + bytes([byte]) for byte in range(256))]
    parsed = batches.parse_chunk(parser, batches.parser_schema(parser.columns), [*ends, whole])
    assert parsed.indexes == [len(ends)]
    assert {error.kind for _, error in parsed.rejected} == {"NoSchemaHeader", "TruncatedValue", "TrailingBytes"}
