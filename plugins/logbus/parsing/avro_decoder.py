"""Avro by fastavro; many records of plain fields at once as columns: the first field of all of them, then the second.

fastavro makes a dict of Python objects for each record, which takes 2 us where there are six fields; numpy's loops over the
records take a tenth of that. What is read so are records of numbers, texts, bytes, booleans, enums, dates and instants, each of
which may be null. `columns_reader` is None for a schema with anything else, whose values fastavro decodes.

It judges nothing: payloads with anything unexpected are an exception, and fastavro says which of them is wrong, and why. So
what is read here is what fastavro would have read; it may refuse more (numbers of more than 64 bits, which no serializer
writes), never less.

The payloads lie one after another in one array of bytes. `at` is where the next field of each record begins. It only grows:
what reads on behind the end of its payload does not end there, which is checked last.

Instants at the top of a record stay numbers, which Arrow converts by whole columns; fastavro converts all other logical types. A
schema that contains itself is read by fastavro's reader in Python: the one in C calls itself as deep as a value says, until the
process dies of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from io import BytesIO
from itertools import accumulate
from typing import Any, TypeAlias

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastavro import _read_py

from logbus.parsing.decoders import (
    WHOLE_VALUE,
    Schema,
    SchemaField,
    SchemaMismatch,
    SchemaNotReadable,
    TrailingBytes,
    TruncatedValue,
    named,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.int64]
FieldReader = Callable[[Bytes, Positions], tuple[pa.Array, Positions]]
ColumnsReader = Callable[[Sequence[bytes]], Mapping[str, pa.Array]]

LAST_SHIFT = 63  # of the tenth byte of a varint, which has one bit of a number
EPOCH_DAY = date(1970, 1, 1).toordinal()


class Unexpected(ValueError):
    """Something that a payload of the schema does not have, or hardly ever."""


def columns_reader(parsed: Any, types: Mapping[str, Any]) -> ColumnsReader | None:
    """Of a parsed schema, whose instants are numbers. `types`: the named types, by their full name."""
    if not isinstance(parsed, dict) or parsed["type"] not in ("record", "error"):
        return None
    readers: dict[str, FieldReader] = {}
    for member in parsed["fields"]:
        if (reader := _field_reader(member["type"], types)) is None:
            return None
        readers[member["name"]] = reader
    return lambda payloads: _columns(payloads, readers)


def _columns(payloads: Sequence[bytes], readers: Mapping[str, FieldReader]) -> Mapping[str, pa.Array]:
    data = np.frombuffer(b"".join(payloads), np.uint8)
    if len(data) > np.iinfo(np.int32).max:
        raise Unexpected("more bytes than the offsets of an array of texts can count")
    ends = np.fromiter(accumulate(map(len, payloads)), np.int64, len(payloads))
    at = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    columns = {}
    for name, read in readers.items():
        columns[name], at = read(data, at)
    if not np.array_equal(at, ends):
        raise Unexpected("a payload that does not end with its last field")
    return columns


def _field_reader(kind: Any, types: Mapping[str, Any]) -> FieldReader | None:
    kind = types.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, str):
        return READERS.get(kind)
    if isinstance(kind, list):
        return _union_reader(kind, types)
    if kind.get("logicalType") == "date" and kind["type"] == "int":
        return _dates
    if "logicalType" in kind:
        return None
    if kind["type"] == "enum":
        return _enum_reader(kind["symbols"])
    if kind["type"] == "fixed":
        return _fixed_reader(kind["size"])
    return _field_reader(kind["type"], types) if isinstance(kind["type"], dict | list) else READERS.get(kind["type"])


def _longs(data: Bytes, at: Positions) -> tuple[Positions, Positions]:
    """Zigzag varints: the first byte of all, then the second of those that have one."""
    byte = data[at]
    numbers, at = (byte & 0x7F).astype(np.uint64), at + 1
    longer = np.flatnonzero(byte >= 0x80)
    for shift in range(7, LAST_SHIFT + 1, 7):
        if not len(longer):
            break
        byte = data[at[longer]]
        if shift == LAST_SHIFT and byte.max() > 1:
            raise Unexpected("a number of more than 64 bits")
        numbers[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[longer] += 1
        longer = longer[byte >= 0x80]
    return ((numbers >> np.uint64(1)) ^ -(numbers & np.uint64(1))).view(np.int64), at


def _long_reader(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
    numbers, at = _longs(data, at)
    return pa.array(numbers), at


def _dates(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
    days, at = _longs(data, at)
    if np.any((days <= -EPOCH_DAY) | (days > date.max.toordinal() - EPOCH_DAY)):
        raise Unexpected("a day outside the years 1 to 9999")
    return pa.array(days.astype(np.int32)).cast(pa.date32()), at


def _booleans(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
    values = data[at]
    if np.any(values > 1):
        raise Unexpected("a boolean that is neither 0 nor 1")
    return pa.array(values.astype(np.bool_)), at + 1


def _float_reader(kind: str) -> FieldReader:
    size = np.dtype(kind).itemsize

    def floats(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
        values = data[at[:, None] + np.arange(size)].view(kind).ravel()
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return pa.array(values.astype(np.float64)), at + size

    return floats


def _slices(data: Bytes, begin: Positions, lengths: Positions) -> tuple[pa.Array, Positions]:
    """The bytes of each record's slice. The slices and what lies between them, in turns, are an array already: only its offsets
    have to be written, and every second value taken."""
    if np.any((lengths < 0) | (lengths > len(data))) or np.any((end := begin + lengths) > len(data)):
        raise Unexpected("a length beyond the end")
    offsets = np.column_stack((begin, end)).astype(np.int32).ravel()
    values_and_rests = pa.Array.from_buffers(
        pa.binary(), max(0, len(offsets) - 1), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return values_and_rests.take(pa.array(np.arange(0, len(offsets), 2))), end


def _bytes(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
    lengths, begin = _longs(data, at)
    return _slices(data, begin, lengths)


def _texts(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
    values, at = _bytes(data, at)
    return values.cast(pa.string()), at  # which raises for what is not UTF-8


def _nulls(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
    return pa.nulls(len(at), pa.string()), at


def _fixed_reader(size: int) -> FieldReader:
    return lambda data, at: _slices(data, at, np.full(len(at), size))


def _enum_reader(symbols: Sequence[str]) -> FieldReader:
    values = pa.array(symbols, pa.string())

    def enums(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
        numbers, at = _longs(data, at)
        return pc.take(values, pa.array(numbers), boundscheck=True), at

    return enums


def _union_reader(branches: Sequence[Any], types: Mapping[str, Any]) -> FieldReader | None:
    """Of one type, or null."""
    others = [(number, branch) for number, branch in enumerate(branches) if branch != "null"]
    if len(others) != 1 or (read := _field_reader(others[0][1], types)) is None:
        return None
    branch = others[0][0]
    null = branches.index("null") if "null" in branches else branch

    def optional(data: Bytes, at: Positions) -> tuple[pa.Array, Positions]:
        branches_chosen, at = _longs(data, at)
        has_value = branches_chosen == branch
        if np.any(~has_value & (branches_chosen != null)):
            raise Unexpected("a branch that the union does not have")
        if has_value.all():
            return read(data, at)
        values, at[has_value] = read(data, at[has_value])
        return values.take(pa.array(np.cumsum(has_value) - 1, mask=~has_value)), at

    return optional


READERS: Mapping[str, FieldReader] = {
    "null": _nulls,
    "boolean": _booleans,
    "int": _long_reader,
    "long": _long_reader,
    "float": _float_reader("<f4"),
    "double": _float_reader("<f8"),
    "string": _texts,
    "bytes": _bytes,
}


# Avro by fastavro; many records of plain fields at once by `columns_reader`.


KINDS: Mapping[str, str] = {
    "null": "text",
    "boolean": "boolean",
    "int": "bigint",  # as long, so that a promotion of one to the other changes no column
    "long": "bigint",
    "float": "double precision",
    "double": "double precision",
    "string": "text",
    "enum": "text",
    "bytes": "bytea",
    "fixed": "bytea",
    "record": "jsonb",
    "error": "jsonb",
    "array": "jsonb",
    "map": "jsonb",
}
INSTANTS: Mapping[str, str] = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}
LOGICAL_KINDS: Mapping[str, str] = {"date": "date", "uuid": "text", "time-millis": "text", "time-micros": "text"}
DECIMAL_DIGITS_MAX = 38  # of Arrow's and Iceberg's decimals

PADDING = bytes(16)

Types = Mapping[str, Any]  # named types by their full name


class AvroDecoder:
    def __init__(self, schema: Schema, prefix: bytes) -> None:
        imported: dict[str, Any] = {}
        for other in schema.imports:
            fastavro.parse_schema(json.loads(other.text), named_schemas=imported)
        types = dict(imported)
        parsed = _without_hints(fastavro.parse_schema(json.loads(schema.text), named_schemas=types))
        if any(_takes_no_bytes(kind["items"], types, ()) for kind in _arrays(parsed, types)):
            raise SchemaNotReadable(
                f"{named(prefix)} has an array whose items take no bytes: one value could hold any number of them"
            )
        self._is_record = isinstance(parsed, dict) and parsed["type"] in ("record", "error")
        if self._is_record:
            self.fields: Mapping[str, SchemaField] = {
                member["name"]: _field(member["type"], types) for member in parsed["fields"]
            }
            parsed["fields"] = [{**member, "type": _with_plain_instants(member["type"])} for member in parsed["fields"]]
        else:
            self.fields = {WHOLE_VALUE: _field(parsed, types)}
            parsed = _with_plain_instants(parsed)
        reads_itself = any(_reaches(name, types[name], types, set()) for name in types)
        self._read: Callable[[BytesIO, Any, None], Any] = (
            _read_py.schemaless_reader if reads_itself else fastavro.schemaless_reader
        )
        self._parsed = fastavro.parse_schema(parsed, named_schemas=dict(imported))
        self.columns = columns_reader(parsed, types)

    def records(self, payloads: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
        return list(map(self.record, payloads))

    def record(self, payload: bytes) -> Mapping[str, Any]:
        file = BytesIO(payload)
        try:
            value = self._read(file, self._parsed, None)
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, EOFError) or self._goes_on(payload):
                raise TruncatedValue(f"the value ends after {len(payload)} bytes of payload, within a field") from None
            raise SchemaMismatch(f"not a value of its schema: {error or type(error).__name__}") from None
        if file.tell() < len(payload):
            raise TrailingBytes(f"{len(payload) - file.tell()} bytes are left over behind the {file.tell()} of the payload")
        return value if self._is_record else {WHOLE_VALUE: value}

    def _goes_on(self, payload: bytes) -> bool:
        """Whether the reader goes on behind the payload where something follows: it has several errors for an end too early."""
        file = BytesIO(payload + PADDING)
        try:
            self._read(file, self._parsed, None)
        except Exception:  # of which only the place matters
            pass
        return file.tell() > len(payload)


def _field(kind: Any, types: Types) -> SchemaField:
    """The column for a field of a parsed schema's type."""
    if isinstance(kind, list):
        rest = [other for other in kind if other != "null"]
        return _field(rest[0], types) if len(rest) == 1 else SchemaField(kind="jsonb" if rest else "text")
    resolved = types.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(resolved, str):
        return SchemaField(kind=KINDS[resolved])
    if isinstance(resolved["type"], dict | list):
        return _field(resolved["type"], types)
    logical = resolved.get("logicalType")
    if logical == "decimal" and resolved["precision"] <= DECIMAL_DIGITS_MAX:
        return SchemaField(kind=f"numeric({resolved['precision']},{resolved.get('scale', 0)})")
    if (unit := _unit(resolved)) is not None:
        return SchemaField(kind="timestamptz", unit=unit)
    return SchemaField(kind=LOGICAL_KINDS.get(logical, KINDS[resolved["type"]]))


def _unit(kind: Any) -> str | None:
    """Of an instant, also of one that is written without a zone."""
    logical = kind.get("logicalType", "") if isinstance(kind, dict) and kind.get("type") == "long" else ""
    return INSTANTS.get(logical.removeprefix("local-"))


def _with_plain_instants(kind: Any) -> Any:
    """A field's type, whose values are read as numbers if they are instants."""
    if isinstance(kind, list):
        rest = [other for other in kind if other != "null"]
        return [_with_plain_instants(other) for other in kind] if len(rest) == 1 else kind
    return "long" if _unit(kind) else kind


def _without_hints(kind: Any) -> Any:
    """A parsed schema as it can be parsed again, inside another one."""
    return {name: value for name, value in kind.items() if not name.startswith("__")} if isinstance(kind, dict) else kind


def _parts(kind: Any) -> Iterator[Any]:
    """What a type consists of."""
    if isinstance(kind, list):
        yield from kind
    elif isinstance(kind, dict):
        yield from (member["type"] for member in kind.get("fields", ()))
        yield from (kind[name] for name in ("items", "values") if name in kind)
        if isinstance(kind["type"], dict | list):
            yield kind["type"]


def _arrays(kind: Any, types: Types) -> Iterator[Mapping[str, Any]]:
    waiting = [kind, *types.values()]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and part.get("type") == "array":
            yield part
        waiting += _parts(part)


def _takes_no_bytes(kind: Any, types: Types, within: tuple[str, ...]) -> bool:
    """Whether a value of the type may be nothing at all."""
    if isinstance(kind, str):
        return kind == "null" or (kind in types and kind not in within and _takes_no_bytes(types[kind], types, (*within, kind)))
    if isinstance(kind, list):
        return False  # the number of the branch
    if kind["type"] in ("record", "error"):
        return all(_takes_no_bytes(member["type"], types, (*within, kind["name"])) for member in kind["fields"])
    if kind["type"] == "fixed":
        return bool(kind["size"] == 0)
    return bool(_takes_no_bytes(kind["type"], types, within)) if isinstance(kind["type"], dict | list) else kind["type"] == "null"


def _reaches(name: str, kind: Any, types: Types, visited: set[str]) -> bool:
    """Whether a value of the type may hold one of the named type."""
    for part in _parts(kind):
        if isinstance(part, str) and part in types:
            if part == name:
                return True
            if part not in visited:
                visited.add(part)
                if _reaches(name, types[part], types, visited):
                    return True
        elif not isinstance(part, str) and _reaches(name, part, types, visited):
            return True
    return False
