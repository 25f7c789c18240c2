"""What our own registry gives for the schemas of values decodes them: no other registry is tried here, and no network."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Message
from logbus.model import EPOCH
from logbus.parsing import Parser, parse_value, parser_for
from logbus.parsing.decoders import FORMATS, Decoders, SchemaBook, SchemaMismatch, reference_to_id
from logbus.parsing.registry_client import RegistryClient
from logbus.parsing.schema_format import ReadableValues, schema_columns
from logbus.shipper.proposal import propose_topic

from tests.support.avro_values import payload, record
from tests.support.registries import listed_registry

COMMON = 'syntax = "proto3"; package shop; enum Colour { NONE = 0; RED = 1; }'
ORDER = """syntax = "proto3"; package shop; import "common.proto"; import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; Colour colour = 2; google.protobuf.Timestamp at = 3; message Line { string sku = 1; } }"""
SERVER = "http://testserver"


def register(http: Any, subject: str, schema: str, kind: str, *references: tuple[str, str]) -> int:
    body = {"schema": schema, "schemaType": kind}
    body |= {"references": [{"name": name, "subject": other, "version": 1} for name, other in references]}
    answer = http.post(f"{SERVER}/subjects/{subject}/versions", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


def parser_of(http: Any, parse: str, prefix: bytes) -> Parser:
    book = SchemaBook(ask=RegistryClient(SERVER, {}, http).fetch)
    book.meet([prefix])
    columns = schema_columns(Decoders(format=FORMATS[parse], book=book), {})
    return parser_for(parse, {"columns": columns}, book)


def row(parser: Parser, value: bytes) -> dict[str, Any]:
    return dict(zip(parser.columns, parse_value(parser, value), strict=True))


def test_avro_with_a_schema_that_it_imports() -> None:
    address, order = record(("street", "string"), name="Address"), record(("id", "long"), ("to", "Address"))
    with listed_registry() as http:
        register(http, "address", json.dumps(address), "AVRO")
        prefix = reference_to_id(register(http, "order-value", json.dumps(order), "AVRO", ("Address", "address")))
        parser = parser_of(http, "avro", prefix)
    written = payload(record(("id", "long"), ("to", address)), {"id": 7, "to": {"street": "x"}})
    assert row(parser, prefix + written) == {"id": 7, "to": '{"street":"x"}', "_rest": None}


def test_what_cannot_be_shown_as_json_says_why() -> None:
    instant = record(("at", {"type": "long", "logicalType": "timestamp-millis"}))
    with listed_registry() as http:
        stamped = reference_to_id(register(http, "instant", json.dumps(instant), "AVRO"))
        free = reference_to_id(register(http, "any", "{}", "JSON"))
        readable = ReadableValues(SchemaBook(ask=RegistryClient(SERVER, {}, http).fetch))
        assert readable.json(stamped + payload(instant, {"at": 0})) == b'{"at":"1970-01-01T00:00:00+00:00"}'
        for value in (stamped + payload(instant, {"at": 2**62}), free + b"{"):
            with pytest.raises(SchemaMismatch, match="not to be shown as JSON"):
                readable.json(value)


def test_a_topic_is_proposed_whatever_its_timestamps_are() -> None:
    instant = record(("at", "long"))
    with listed_registry() as http:
        prefix = reference_to_id(register(http, "instant", json.dumps(instant), "AVRO"))
        value = prefix + payload(instant, {"at": 0})
        messages = [Message(topic="t", value=value, timestamp=(1, stamp)) for stamp in (2**62, -1, 0)]
        proposal = propose_topic("t", messages, RegistryClient(SERVER, {}, http).fetch, None, {"registry": SERVER})
    assert (proposal.records, proposal.first, proposal.last, proposal.trial.parsed) == (3, EPOCH, EPOCH, 3)


def test_a_reference_is_the_one_of_its_whole_name() -> None:
    schema = {"properties": {"a": {"$ref": "x/b.json"}}}
    with listed_registry() as http:
        register(http, "b", '{"type":"integer"}', "JSON")
        register(http, "x-b", '{"type":"string"}', "JSON")
        number = register(http, "both", json.dumps(schema), "JSON", ("b.json", "b"), ("x/b.json", "x-b"))
        readable = ReadableValues(SchemaBook(ask=RegistryClient(SERVER, {}, http).fetch))
        assert readable.json(reference_to_id(number) + b'{"a":"text"}') == b'{"a":"text"}'


def test_protobuf_that_was_registered_as_text() -> None:
    with listed_registry() as http:
        register(http, "common", COMMON, "PROTOBUF")
        number = register(http, "order-value", ORDER, "PROTOBUF", ("common.proto", "common"))
        first, line = reference_to_id(number) + b"\0", reference_to_id(number) + b"\x04\0\0"
        parser, lines = parser_of(http, "protobuf", first), parser_of(http, "protobuf", line)
    assert row(parser, first + b"\x08\x07\x10\x01") == {"id": 7, "colour": "RED", "at": None, "_rest": None}
    assert row(lines, line + b"\x0a\x01x") == {"sku": "x", "_rest": None}


def test_json_with_a_schema_that_it_imports() -> None:
    order = {"type": "object", "properties": {"id": {"type": "integer"}, "to": {"$ref": "address.json"}}}
    with listed_registry() as http:
        register(http, "address", '{"type": "object"}', "JSON")
        prefix = reference_to_id(register(http, "order-value", json.dumps(order), "JSON", ("address.json", "address")))
        parser = parser_of(http, "json_schema", prefix)
    assert row(parser, prefix + b'{"id": 7, "to": {}}') == {"id": 7, "to": "{}", "_rest": None}
