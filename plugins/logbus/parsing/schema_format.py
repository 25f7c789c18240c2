"""Values that name their schema: Avro, Protobuf, and JSON with a schema (`logbus.schemas` decodes them).

Each field of a schema is a column, and the columns of a pipeline are those of all schemas that its values were written with: the
driver adds them before tasks run, as it does for inferred columns, and like those they never change their type. A field that no
column can be named after is kept in `_rest jsonb`. A column that the user has declared has that type, if a field's values fit.

Many values at once are decoded by schema and put back into their order.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from logbus.errors import LogbusError, UserError
from logbus.fingerprint import headers_of
from logbus.parsing import Parser, Unparsable, json_records
from logbus.parsing.batches import TIMESTAMP, WRONG_TYPE, arrow_type
from logbus.parsing.decoders import (
    FORMATS,
    JSON,
    Decoder,
    Decoders,
    SchemaBook,
    SchemaField,
    SchemaMismatch,
    Undecodable,
    named,
    prefix_of,
    with_prefixes,
)
from logbus.parsing.json_format import REST, json_parser, members
from logbus.pipeline_settings import is_column_name

# What a column of one type also holds: the promotions of Avro that lose nothing, and what a user declares narrower.
ALSO_HOLDS: Mapping[str, Collection[str]] = {"double precision": ("bigint",), "integer": ("bigint",)}

Values: TypeAlias = Sequence[Any] | pa.Array  # of one field
ToArray = Callable[[Values], pa.Array]


def avro_parser(settings: Mapping[str, Any], book: SchemaBook) -> Parser:
    return _schema_parser("avro", settings, book)


def json_schema_parser(settings: Mapping[str, Any], book: SchemaBook) -> Parser:
    return _schema_parser("json_schema", settings, book)


def protobuf_parser(settings: Mapping[str, Any], book: SchemaBook) -> Parser:
    return _schema_parser("protobuf", settings, book)


def _schema_parser(name: str, settings: Mapping[str, Any], book: SchemaBook) -> Parser:
    columns, decoders = dict(settings.get("columns") or {}), Decoders(format=FORMATS[name], book=book)
    to_arrays = JsonArrays(columns) if FORMATS[name].type == JSON else FieldArrays(columns)
    values = SchemaValues(decoders=decoders, to_arrays=to_arrays)
    return Parser(columns={**columns, REST: "jsonb"}, parse=values.parse, quick=values.quick, decoders=decoders)


def schema_columns(decoders: Decoders, columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of all fields of the schemas that the book has met, in the order of their ids; `columns` keep their types.

    Raises `UserError` for a field whose values its column does not hold.
    """
    fields, origins = dict(columns), dict.fromkeys(columns, "the table")
    for prefix in sorted(decoders.book.met):
        try:
            of_schema = decoders.of(prefix).fields
        except Undecodable:  # its values are dead letters, which say why
            continue
        for name, field in of_schema.items():
            if not is_column_name(name):
                continue
            kind = fields.setdefault(name, field.kind)
            origin = origins.setdefault(name, named(prefix))
            if name not in columns and kind in ALSO_HOLDS.get(field.kind, ()):
                fields[name] = field.kind
            elif not _holds(kind, field.kind):
                raise UserError(
                    f"field {name!r} is {field.kind} in {named(prefix)}, and {kind} in {origin}: a column does not change its "
                    f"type. Load into another table; declared there as jsonb (columns={{{name!r}: 'jsonb'}}) it holds both"
                )
    return fields


def _holds(column: str, kind: str) -> bool:
    return column in (kind, "jsonb") or kind in ALSO_HOLDS.get(column, ())


@dataclass(slots=True, kw_only=True)
class SchemaValues:
    """Values as columns; `to_arrays` converts what was decoded by one schema."""

    decoders: Decoders
    to_arrays: FieldArrays | JsonArrays

    def quick(self, values: Sequence[bytes]) -> Sequence[pa.Array] | None:
        indexes: dict[bytes | None, list[int]] = {}
        prefixes = self.decoders.prefixes(values)
        if prefixes.count(prefixes[0]) == len(prefixes):
            return None if prefixes[0] is None else self._arrays(prefixes[0], values)
        for index, prefix in enumerate(prefixes):
            indexes.setdefault(prefix, []).append(index)
        parts = [
            self._arrays(prefix, [values[at] for at in of_schema]) for prefix, of_schema in indexes.items() if prefix is not None
        ]
        if None in indexes:
            return None
        places = pa.array([0] * len(values), pa.int64()).to_numpy(zero_copy_only=False)
        places[[at for of_schema in indexes.values() for at in of_schema]] = range(len(values))
        order = pa.array(places)
        return [pa.concat_arrays(columns).take(order) for columns in zip(*parts, strict=True)]

    def _arrays(self, prefix: bytes, values: Sequence[bytes]) -> Sequence[pa.Array]:
        begin, decoder = len(prefix), self.decoders.of(prefix)
        payloads = [value[begin:] for value in values]
        if decoder.columns is not None and isinstance(self.to_arrays, FieldArrays):
            return self.to_arrays.of_fields(decoder, decoder.columns(payloads), len(payloads))
        return self.to_arrays(decoder, decoder.records(payloads), payloads)

    def parse(self, value: bytes) -> Sequence[Any]:
        prefix = self.decoders.prefix(value)
        decoder, payload = self.decoders.of(prefix), value[len(prefix) :]
        try:
            record = decoder.record(payload)
        except orjson.JSONDecodeError:  # which JSON's own parser explains
            record = {}
        try:
            return [array[0].as_py() for array in self.to_arrays(decoder, [record], [payload])]
        except Unparsable:
            raise
        except WRONG_TYPE as error:
            raise Unparsable("WrongType", str(error)) from None


class JsonArrays:
    """JSON's own parser, with a column for everything that the schema does not name."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._parser = json_parser({"columns": columns, "infer": True})

    def __call__(self, decoder: Decoder, records: Sequence[Any], payloads: Sequence[bytes]) -> Sequence[pa.Array]:
        if (arrays := self._parser.quick and self._parser.quick(payloads)) is not None:
            return arrays
        rows = map(self._parser.parse, payloads)
        kinds = map(arrow_type, self._parser.columns.values())
        return [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]


class FieldArrays:
    """The fields of records as columns of these types, then the column of all other fields."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns

    def __call__(self, decoder: Decoder, records: Sequence[Mapping[str, Any]], payloads: Sequence[bytes]) -> Sequence[pa.Array]:
        names = list(decoder.fields)
        return self.of_fields(decoder, dict(zip(names, members(records, names), strict=True)), len(records))

    def of_fields(self, decoder: Decoder, values: Mapping[str, Values], size: int) -> Sequence[pa.Array]:
        """From the values of each field."""
        arrays = [
            _converter(name, decoder.fields[name], kind)(values[name]) if name in values else pa.nulls(size, arrow_type(kind))
            for name, kind in self._columns.items()
        ]
        others = {name: _listed(values[name]) for name in decoder.fields if name not in self._columns}
        rest = [_json_text(dict(zip(others, row, strict=True))) for row in zip(*others.values(), strict=True)]
        return [*arrays, pa.array(rest, pa.string()) if others else pa.nulls(size, pa.string())]


def _converter(name: str, field: SchemaField, kind: str) -> ToArray:
    if not _holds(kind, field.kind):
        raise Unparsable("WrongType", f"field {name!r} is {field.kind} in its schema, and its column is {kind}")
    if field.kind == "timestamptz" and kind == field.kind:
        unit = pa.timestamp(field.unit, tz="UTC")
        return lambda values: _array(values, pa.int64()).cast(unit).cast(TIMESTAMP, safe=field.unit != "ns")
    if kind == "jsonb":
        return lambda values: pa.array([None if value is None else _json_text(value) for value in _listed(values)], pa.string())
    if kind == "text":
        return _texts
    arrow = arrow_type(kind)
    return lambda values: _array(values, arrow)


def _array(values: Values, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _listed(values: Values) -> Sequence[Any]:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def _texts(values: Values) -> pa.Array:
    try:
        return _array(values, pa.string())
    except TypeError:  # a UUID, a time of day
        return pa.array([None if value is None else str(value) for value in values], pa.string())


class ReadableValues:
    """Values as JSON, by whatever schema they name, for people who look at records."""

    def __init__(self, book: SchemaBook) -> None:
        self._decoders = {form.type: Decoders(format=form, book=book) for form in FORMATS.values()}
        self._book = book

    def of_message(self, message: Any) -> bytes | None:
        """The value of a message from the Kafka client. Raises as `json`."""
        (value,) = with_prefixes([message.value()], [headers_of(message)])
        return None if value is None else self.json(value)

    def json(self, value: bytes) -> bytes:
        """Raises `Undecodable`, or what the book does if it does not hold the schema."""
        decoders = self._decoders[self._book.schema(prefix_of(value)).type]
        prefix = decoders.prefix(value)
        decoder = decoders.of(prefix)
        try:
            return self._shown(decoder, value[len(prefix) :], is_decoded=decoders.format.type != JSON)
        except (Undecodable, LogbusError, MemoryError):
            raise
        except Exception as error:  # no JSON at all, an instant after the year 9999, an Any of an unknown type
            raise SchemaMismatch(f"not to be shown as JSON: {error or type(error).__name__}") from error

    @staticmethod
    def _shown(decoder: Decoder, payload: bytes, *, is_decoded: bool) -> bytes:
        record = decoder.record(payload)
        if not isinstance(record, dict):
            return orjson.dumps(record)
        kinds = decoder.fields if is_decoded else {}
        shown = {name: _instant(member, kinds[name]) if name in kinds else member for name, member in record.items()}
        return orjson.dumps(shown, default=_json_value)


def _instant(value: Any, field: SchemaField) -> Any:
    """A member as JSON has it: an instant is no number."""
    if field.unit is None or value is None:
        return value
    # Checked, or one that is too late would be shown as another; of nanoseconds the last digits are lost.
    return pa.scalar(value, pa.timestamp(field.unit, tz="UTC")).cast(TIMESTAMP, safe=field.unit != "ns").as_py()


def _json_text(value: Any) -> str:
    text = orjson.dumps(value, default=_json_value)
    if json_records.escapes_nul(text):
        raise Unparsable("NulCharacter", "a NUL character (\\u0000), which PostgreSQL cannot hold")
    return text.decode()


def _json_value(value: Any) -> Any:
    """What JSON has no type for: a decimal with its digits, bytes as base64."""
    if isinstance(value, Decimal):
        return orjson.Fragment(f"{value:f}")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__}, for which there is no JSON")
