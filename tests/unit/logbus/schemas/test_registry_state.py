"""The topic's records and the writers' fence: what each reader of the same records makes of them, without a broker."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from logbus.web.registry_state import (
    FENCE,
    WRITER,
    KeyType,
    RegistryKey,
    RegistryState,
    SchemaVersion,
    UnreadableRecord,
    decoded_key,
    decoded_version,
)
from logbus.web.schema_text import RegistryRefusal, ResolvedSchema, SchemaReference, SchemaText, SchemaType, checked

INT, LONG = (SchemaText(kind=SchemaType.AVRO, text=text) for text in ('"int"', '"long"'))
NOOP = b'{"keytype":"NOOP","magic":0}'
Record = tuple[bytes, bytes | None, Mapping[str, bytes]]


def version(subject: str, number: int, schema_id: int, schema: SchemaText = INT) -> SchemaVersion:
    return SchemaVersion(subject=subject, version=number, schema_id=schema_id, guid=schema.guid, schema=schema)


def written(entry: SchemaVersion, writer: int) -> Record:
    return entry.key.encode(), entry.encode(), {WRITER: str(writer).encode()}


def read(log: Mapping[int, Record]) -> RegistryState:
    state = RegistryState()
    for offset, record in sorted(log.items()):
        state.apply(offset, *record)
    return state


def compacted(log: Mapping[int, Record]) -> dict[int, Record]:
    last = {record[0]: offset for offset, record in sorted(log.items())}
    return {offset: log[offset] for offset in sorted(last.values())}


FENCE_RECORD: Record = (NOOP, None, {FENCE: b"1"})


def test_keys_are_confluents_to_the_byte() -> None:
    keys = [
        version("s", 1, 1).key,
        RegistryKey(kind=KeyType.CONFIG),
        RegistryKey(kind=KeyType.MODE, subject="s"),
        RegistryKey(kind=KeyType.DELETE_SUBJECT, subject="s"),
    ]
    assert [key.encode() for key in keys] == [
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        b'{"keytype":"CONFIG","subject":null,"magic":0}',
        b'{"keytype":"MODE","subject":"s","magic":0}',
        b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
    ]
    assert [decoded_key(key.encode()) for key in keys] == keys


def test_a_value_comes_back_as_it_was() -> None:
    reference = SchemaReference(name="n", subject="r", version=2)
    schema = SchemaText(kind=SchemaType.JSON, text="true", references=(reference,), metadata='{"properties":{"a":"b"}}')
    assert decoded_version(version("s", 3, 4, schema).encode()) == version("s", 3, 4, schema)


def test_a_value_of_confluents_is_read_with_what_it_has_besides() -> None:
    value = b'{"subject":"s","version":1,"id":7,"md5":"x","schemaTags":[],"schema":"\\"int\\"","guid":"g","deleted":true}'
    assert decoded_version(value) == SchemaVersion(subject="s", version=1, schema_id=7, guid="g", schema=INT, is_deleted=True)


@pytest.mark.parametrize(
    "key", [None, b"", b"x", b"[]", b'{"keytype":"CONTEXT","magic":0}', b'{"keytype":"SCHEMA","subject":"s"}']
)
def test_a_record_of_something_else_is_named(key: bytes | None) -> None:
    with pytest.raises(UnreadableRecord):
        decoded_key(key)


def test_a_record_that_a_replaced_writer_had_on_the_way_is_void() -> None:
    log = {0: FENCE_RECORD, 1: written(version("a", 1, 1), 0), 2: FENCE_RECORD, 3: written(version("b", 1, 2, LONG), 2)}
    log[4] = written(version("c", 1, 2), 0)  # the same id as the new writer's
    state = read(log)
    assert state.subjects() == ["a", "b"]
    assert [each.subject for each in state.of_id(2)] == ["b"]


def test_what_a_void_record_would_hide_after_compaction_is_written_again() -> None:
    first, second = version("a", 1, 1), version("a", 1, 9, LONG)
    log = {0: FENCE_RECORD, 1: written(first, 0), 2: FENCE_RECORD, 3: written(second, 0)}
    state = read(log)
    assert read(compacted(log)).versions("a") == []  # hidden: why it has to be repaired
    repairs = state.repairs()
    assert repairs == [(first.key.encode(), first.encode())]
    log |= {4 + number: (*entry, {WRITER: b"2"}) for number, entry in enumerate(repairs)}
    assert read(log).repairs() == []
    assert read(compacted(log)).versions("a") == [first]


def test_a_void_deletion_of_a_subject_deletes_nothing_after_the_repair() -> None:
    key = RegistryKey(kind=KeyType.DELETE_SUBJECT, subject="a")
    log: dict[int, Record] = {0: FENCE_RECORD, 1: written(version("a", 1, 1), 0), 2: FENCE_RECORD}
    log[3] = (key.encode(), b'{"subject":"a","version":1}', {WRITER: b"0"})
    for entry in read(log).repairs():
        log[len(log)] = (*entry, {WRITER: b"2"})
    assert [each.is_deleted for each in read(compacted(log)).versions("a", with_deleted=True)] == [False]


def test_a_record_without_a_number_is_another_programs_and_counts() -> None:
    state = read({0: FENCE_RECORD, 1: (*written(version("a", 1, 1), 0)[:2], {})})
    assert (state.subjects(), state.foreign_offset) == (["a"], 1)


def test_an_id_is_not_given_out_again_after_its_records_are_gone() -> None:
    state = read(
        {0: FENCE_RECORD, 1: written(version("a", 1, 41), 0), 2: (version("a", 1, 41).key.encode(), None, {WRITER: b"0"})}
    )
    assert state.of_id(41) == []
    again = read({3: (*state.noop(), {FENCE: b"1"})})
    assert again.highest_id == 41


def test_any_history_reads_the_same_after_any_compaction() -> None:
    """Writers that replace each other, records of replaced ones in between; each writer repairs before it writes."""
    for seed in range(20):
        chance = random.Random(seed)
        log: dict[int, Record] = {}
        numbers: list[int] = []
        for _ in range(40):
            offset = len(log)
            if not numbers or chance.random() < 0.15:
                numbers.append(offset)
                log[offset] = (*read(log).noop(), {FENCE: b"1"})
                continue
            subject, number = chance.choice("ab"), chance.randint(1, 3)
            late = len(numbers) > 1 and chance.random() < 0.3
            writer = str(chance.choice(numbers[:-1]) if late else numbers[-1]).encode()
            if not late:
                for entry in read(log).repairs():
                    log[len(log)] = (*entry, {WRITER: writer})
            new = version(subject, number, chance.randint(1, 5), chance.choice([INT, LONG]))
            value = None if chance.random() < 0.2 else new.encode()
            log[len(log)] = (new.key.encode(), value, {WRITER: writer})
        for entry in read(log).repairs():
            log[len(log)] = (*entry, {WRITER: str(numbers[-1]).encode()})
        whole, rest = read(log), read(compacted(log))
        for subject in "ab":
            assert whole.versions(subject) == rest.versions(subject), seed
        assert whole.highest_id >= rest.highest_id > 0


AVRO_FORMS = [
    ('{"type": "string"}', '"string"'),
    ("string", '"string"'),
    ('{"type":"int","logicalType":"date"}', '{"type":"int","logicalType":"date"}'),
    ('{"name":"a.b.C","type":"fixed","size":4}', '{"type":"fixed","name":"C","namespace":"a.b","size":4}'),
    ('{"fields":[],"doc":"d","namespace":"n","name":"R","type":"record","p":1}', '{"type":"record","name":"R","namespace":"n","doc":"d","fields":[],"p":1}'),
    (
        '{"type":"record","name":"R","namespace":"n","fields":[{"type":{"type":"enum","name":"E","symbols":["A"]},"name":"a"},{"name":"b","type":["null","n.E","n.R"],"default":null,"order":"ascending","aliases":["c"]}]}',
        '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A"]}},{"name":"b","type":["null","E","R"],"default":null,"aliases":["c"]}]}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "form"), AVRO_FORMS)
def test_avro_is_stored_as_javas_library_writes_it(text: str, form: str) -> None:
    schema = SchemaText(kind=SchemaType.AVRO, text=text)
    stored = checked(ResolvedSchema(schema=schema, referenced={}))
    assert stored.text == form
    assert checked(ResolvedSchema(schema=stored, referenced={})) == stored


def field_of(kind: str, default: str) -> str:
    return f'{{"type":"record","name":"R","fields":[{{"name":"a","type":{kind},"default":{default}}}]}}'


DEFAULTS = [
    ('"string"', '""', True), ('"string"', "null", False), ('"int"', "1", True), ('"int"', "1.0", False), ('"int"', "true", False),
    ('"int"', str(2**31), False), ('"long"', str(2**31), True), ('"long"', str(2**63), False), ('"double"', "1", True),
    ('"boolean"', "0", False), ('"null"', "null", True), ('"bytes"', '"\\u00ff"', True), ('["null","int"]', "null", True),
    ('["null","int"]', "7", True), ('["null","int"]', '"x"', False), ('{"type":"array","items":"int"}', "[]", True),
    ('{"type":"array","items":"int"}', '["x"]', False), ('{"type":"map","values":"int"}', '{"x":1}', True),
    ('{"type":"map","values":"int"}', '{"x":"y"}', False), ('{"type":"enum","name":"E","symbols":["A"]}', '"A"', True),
    ('{"type":"enum","name":"E","symbols":["A"]}', '"B"', False), ('{"type":"fixed","name":"F","size":2}', '"ab"', True),
    ('{"type":"fixed","name":"F","size":2}', '"abc"', False), (field_of('"int"', "1"), "{}", True),
    (field_of('"int"', "1"), '{"a":"x"}', False), (field_of('"int"', '"x"'), '{"a":1}', False),
    ('{"type":"long","logicalType":"timestamp-millis"}', "0", True), ('{"type":"string","logicalType":"uuid"}', "1", False),
    ('["null",{"type":"array","items":' + field_of('"int"', '"x"') + "}]", "null", False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default", "is_valid"), DEFAULTS)
def test_a_default_has_to_be_of_its_fields_type(kind: str, default: str, is_valid: bool) -> None:
    text = field_of(kind, default).replace('"name":"R"', '"name":"Outer"', 1)
    schema = ResolvedSchema(schema=SchemaText(kind=SchemaType.AVRO, text=text), referenced={})
    if is_valid:
        assert checked(schema).text
    else:
        with pytest.raises(RegistryRefusal, match="invalid default for field a"):
            checked(schema)
