"""Whatever two schemas say: none is called compatible that refuses, or loses, what was written with the other one."""

from __future__ import annotations

import json
from random import Random

import jsonschema_rs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import random_schemas
from tests.support.examples import examples
from tests.support.schema_values import lost_messages, verdict

SEEDS = st.integers(0, 2**64)
DOCUMENTS = 40


@settings(max_examples=examples(500))
@given(SEEDS)
def test_of_json_each_document_of_the_writer_is_one_of_the_reader(seed: int) -> None:
    chance = Random(seed)
    writer = random_schemas.with_definition(random_schemas.json_schema(chance), random_schemas.json_schema(chance, 1))
    reader = random_schemas.changed_schema(chance, writer)
    try:
        written, read = map(jsonschema_rs.validator_for, (writer, reader))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        assume(False)
    if verdict("BACKWARD", "JSON", json.dumps(reader), json.dumps(writer)):
        documents = [random_schemas.document(chance) for _ in range(DOCUMENTS)]
        assert [document for document in documents if written.is_valid(document) and not read.is_valid(document)] == [], (
            f"{json.dumps(reader)} reads {json.dumps(writer)}"
        )


@settings(max_examples=examples(300))
@given(SEEDS)
def test_of_protobuf_no_message_is_lost(seed: int) -> None:
    chance = Random(seed)
    writer = random_schemas.proto_file(chance)
    reader = random_schemas.changed_file(chance, writer)
    new, old = random_schemas.encoded(reader), random_schemas.encoded(writer)
    if verdict("BACKWARD", "PROTOBUF", new, old):
        assert lost_messages(new, old) == [], f"{reader} reads {writer}"
