"""Avro by fastavro; many records of plain fields at once by `avro_columns`.

Instants at the top of a record stay numbers, which Arrow converts by whole columns; fastavro converts all other logical types. A
schema that contains itself is read by fastavro's reader in Python: the one in C calls itself as deep as a value says, until the
process dies of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
from fastavro import _read_py

from logbus.schemas.avro_columns import columns_reader
from logbus.schemas.decoders import WHOLE_VALUE, SchemaField
from logbus.schemas.schema_book import Schema
from logbus.schemas.wire_format import SchemaMismatch, SchemaNotReadable, TrailingBytes, TruncatedValue, named

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
