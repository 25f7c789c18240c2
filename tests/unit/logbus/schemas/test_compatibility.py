"""Which schemas are compatible (tests/support/schema_pairs.py): as published for Avro, for JSON Schema and Protobuf as documented in
docs/registry.md. What is called compatible is tried: values of the writer are read with the reader, by the libraries that a load
decodes with.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema_rs
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from logbus.web.schema_compatibility import LEVELS, EarlierSchema, problems_of
from logbus.web.schema_text import InvalidText, ResolvedSchema, SchemaText, SchemaType, protobuf_files

from tests.support.schema_pairs import AVRO_PAIRS, JSON_PAIRS, PROTOBUF_PAIRS, VALUES
from tests.support.schema_values import lost_messages, resolved, unread_values, verdict


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


@pytest.mark.parametrize("is_reversed", [False, True])
def test_values_of_avro_are_read_exactly_where_that_is_said(is_reversed: bool) -> None:
    for new, old, *verdicts in AVRO_PAIRS:
        reader, writer = (old, new) if is_reversed else (new, old)
        assert (not unread_values(reader, writer)) is verdicts[is_reversed], (reader, writer)


@pytest.mark.parametrize("writer", [writer for _, writer, _ in JSON_PAIRS])
def test_no_json_schema_is_called_compatible_that_refuses_what_was_written(writer: Any) -> None:
    accepted = [value for value in VALUES if jsonschema_rs.is_valid(writer, value)]
    for reader in (reader for reader, _, _ in JSON_PAIRS if reader != {"$ref": "elsewhere.json"}):
        if is_read("JSON", json.dumps(reader), json.dumps(writer)):
            assert [value for value in accepted if not jsonschema_rs.is_valid(reader, value)] == [], (reader, writer)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_messages_are_read_without_loss_where_that_is_said(is_reversed: bool) -> None:
    for new, old, *verdicts in PAIRS["PROTOBUF"]:
        reader, writer = (old, new) if is_reversed else (new, old)
        assert not verdicts[is_reversed] or lost_messages(reader, writer) == [], (reader, writer)


def test_the_text_of_a_proto_file_is_compiled_with_what_it_imports() -> None:
    inner = 'syntax = "proto3"; message Inner { int32 a = 1; }'
    outer = 'syntax = "proto3"; import "inner.proto"; import "google/protobuf/timestamp.proto"; message A { Inner a = 1; }'
    new, old = (
        ResolvedSchema(schema=SchemaText(kind=SchemaType.PROTOBUF, text=outer), referenced={"inner.proto": text})
        for text in (inner.replace("int32", "int64"), inner)
    )
    verdicts = [problems_of(level, new, [EarlierSchema(version=1, resolved=old)]) for level in ("BACKWARD", "FORWARD")]
    assert [not problems for problems in verdicts] == [True, False]


@pytest.mark.parametrize("name", ["@/etc/hostname", "--version", "-h", "a\0b", "\n", "x" * 256, "ä" * 200, "", ".", "../a", "/a"])
def test_a_reference_is_a_file_whatever_its_name_and_no_argument_of_the_compiler(name: str) -> None:
    text = 'syntax = "proto3"; message A {}'
    schema = ResolvedSchema(schema=SchemaText(kind=SchemaType.PROTOBUF, text=descriptor("message A {}")), referenced={name: text})
    if name.startswith(("@", "-")):
        assert [file.name for file in protobuf_files(schema)] == [name, protobuf_files(schema)[-1].name]
    else:
        with pytest.raises(InvalidText, match="a reference cannot be called"):
            protobuf_files(schema)


def test_references_that_are_file_and_folder_at_once_are_refused() -> None:
    text = 'syntax = "proto3"; message A {}'
    schema = SchemaText(kind=SchemaType.PROTOBUF, text=text)
    with pytest.raises(InvalidText, match="beside the others"):
        protobuf_files(ResolvedSchema(schema=schema, referenced={"a": text, "a/b.proto": text}))


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
