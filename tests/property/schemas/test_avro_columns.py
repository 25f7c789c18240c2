"""Columns of many Avro values are what fastavro reads of each, and no value gets into them that it refuses."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Sequence
from datetime import date
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st
from logbus.parsing.avro_decoder import AvroDecoder
from logbus.parsing.decoders import AVRO, Schema, Undecodable, reference_to_id

PREFIX = reference_to_id(1)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
SYMBOLS = ["A", "B", "C"]

# A field's type, and its values.
PLAIN: Sequence[tuple[Any, st.SearchStrategy[Any]]] = (
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=20)),
    ("bytes", st.binary(max_size=20)),
    ({"type": "string", "avro.java.string": "String"}, st.text(max_size=20)),
    ({"type": "long", "logicalType": "timestamp-micros"}, LONGS),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "enum", "name": "Letter", "symbols": SYMBOLS}, st.sampled_from(SYMBOLS)),
    ({"type": "fixed", "name": "Four", "size": 4}, st.binary(min_size=4, max_size=4)),
)


@st.composite
def topics(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    """A schema of plain fields, each of which may be null, and records of it."""
    fields, values = [], {}
    for name in string.ascii_lowercase[: draw(st.integers(1, 5))]:
        kind, of_kind = draw(st.sampled_from(PLAIN))
        if isinstance(kind, dict) and "name" in kind:
            kind = {**kind, "name": f"{kind['name']}_{name}"}
        unions: Sequence[Any] = [kind, ["null", kind], [kind, "null"], [kind]] if kind != "null" else [kind]
        chosen = draw(st.sampled_from(unions))
        fields.append({"name": name, "type": chosen})
        values[name] = of_kind | st.none() if isinstance(chosen, list) and "null" in chosen else of_kind
    return {"type": "record", "name": "R", "fields": fields}, draw(
        st.lists(st.fixed_dictionaries(values), min_size=1, max_size=8)
    )


def decoder_of(schema: Any) -> AvroDecoder:
    return AvroDecoder(Schema(reference=PREFIX, type=AVRO, text=json.dumps(schema)), PREFIX)


def written(schema: Any, records: Sequence[dict[str, Any]]) -> list[bytes]:
    """Instants are numbers here, as the decoder leaves them."""
    kinds = json.loads(json.dumps(schema).replace(', "logicalType": "timestamp-micros"', ""))
    parsed, payloads = fastavro.parse_schema(kinds), []
    for record in records:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, record)
        payloads.append(file.getvalue())
    return payloads


def rows_of(decoder: AvroDecoder, payloads: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """None if they are refused."""
    assert decoder.columns is not None, "a schema of plain fields is read by columns"
    try:
        columns = decoder.columns(payloads)
    except Exception:  # of whatever kind
        return None
    lists = {name: array.to_pylist() for name, array in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


@given(topic=topics())
def test_columns_hold_what_fastavro_reads(topic: tuple[Any, list[dict[str, Any]]]) -> None:
    schema, records = topic
    decoder, payloads = decoder_of(schema), written(schema, records)
    assert rows_of(decoder, payloads) == list(decoder.records(payloads)) == records


@given(topic=topics(), data=st.data())
def test_nothing_passes_that_fastavro_refuses(topic: tuple[Any, list[dict[str, Any]]], data: st.DataObject) -> None:
    """One of the payloads is cut off, goes on, or is altered; the others are as they were."""
    schema, records = topic
    decoder, payloads = decoder_of(schema), written(schema, records)
    index = data.draw(st.integers(0, len(payloads) - 1))
    payload = bytearray(payloads[index])
    begin = data.draw(st.integers(0, len(payload)))
    payload[begin : begin + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=12))
    payloads[index] = bytes(payload)
    rows = rows_of(decoder, payloads)
    try:
        record = decoder.record(payloads[index])
    except Undecodable:
        assert rows is None
        return
    if rows is not None:
        assert same(rows[index], record)
        assert rows[:index] + rows[index + 1 :] == records[:index] + records[index + 1 :]


def same(row: Any, record: Any) -> bool:
    """NaN is itself."""
    return repr(row) == repr(record)


def test_days_of_all_years_that_python_has() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "int", "logicalType": "date"}}]}
    records = [{"a": date.min}, {"a": date.max}, {"a": date(1970, 1, 1)}]
    assert rows_of(decoder_of(schema), written(schema, records)) == records


def test_a_schema_with_a_field_of_another_kind_is_read_by_fastavro_alone() -> None:
    others = [
        {"type": "array", "items": "long"},
        {"type": "map", "values": "long"},
        {"type": "string", "logicalType": "uuid"},
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
        ["long", "string"],
        {"type": "record", "name": "Inner", "fields": []},
    ]
    for kind in others:
        fields = [{"name": "a", "type": "long"}, {"name": "b", "type": kind}]
        assert decoder_of({"type": "record", "name": "R", "fields": fields}).columns is None
    assert decoder_of("long").columns is None
