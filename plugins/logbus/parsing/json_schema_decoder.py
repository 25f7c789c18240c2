"""JSON Schema: its properties become columns, and jsonschema-rs, which knows every draft, judges each value.

A schema is data of others: what it refers to is what the registry gave with it, and nothing is fetched from the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema_rs
import orjson

from logbus.parsing.decoders import Schema, SchemaField, SchemaMismatch, named

KINDS: Mapping[str, str] = {
    "boolean": "boolean",
    "integer": "bigint",
    "number": "double precision",
    "string": "text",
    "null": "text",
}
FORMATS: Mapping[str, str] = {"date-time": "timestamptz", "date": "date"}


class JsonDecoder:
    columns = None

    def __init__(self, schema: Schema, prefix: bytes) -> None:
        parsed = json.loads(schema.text)
        imported = {other.name: json.loads(other.text) for other in schema.imports}

        def retrieve(uri: str) -> Any:
            """What the schema refers to, by the name under which it does."""
            # The longest: `b.json` may be there beside `a/b.json`.
            name = max((name for name in imported if uri == name or uri.endswith(f"/{name}")), key=len, default=None)
            if name is None:
                raise ValueError(f"{named(prefix)} refers to {uri}, which the registry does not give with it")
            return imported[name]

        self._validator = jsonschema_rs.validator_for(parsed, retriever=retrieve)
        properties = parsed.get("properties") if isinstance(parsed, dict) else None
        self.fields: Mapping[str, SchemaField] = (
            {name: SchemaField(kind=_kind(member)) for name, member in properties.items()} if isinstance(properties, dict) else {}
        )

    def records(self, payloads: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
        values = list(map(orjson.loads, payloads))
        if not all(map(self._validator.is_valid, values)):
            raise ValueError("values that are not of their schema")
        return values

    def record(self, payload: bytes) -> Mapping[str, Any]:
        """What is no JSON at all is the parser's to explain."""
        value: Mapping[str, Any] = orjson.loads(payload)
        for error in self._validator.iter_errors(value):
            at = "/".join(map(str, error.instance_path))
            raise SchemaMismatch(f"{f'member {at}: ' if at else ''}{error.message}")
        return value


def _kind(member: Any) -> str:
    """The column of a property; JSON where it may be of several types."""
    if not isinstance(member, dict):
        return "jsonb"
    branches = member.get("oneOf") or member.get("anyOf")
    if branches and "type" not in member:  # as generators write what may be null
        rest = [branch for branch in branches if branch != {"type": "null"}]
        return _kind(rest[0]) if len(rest) == 1 else "jsonb"
    types = member.get("type")
    rest = [kind for kind in (types if isinstance(types, list) else [types]) if kind != "null"]
    if len(rest) != 1 or rest[0] not in KINDS:
        return "jsonb"
    return FORMATS.get(member.get("format", ""), "text") if rest[0] == "string" else KINDS[rest[0]]
