"""Avro values of tests, written by fastavro."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from tests.support.schema_registry import by_id


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    """The schema of a record with these fields."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def payload(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def written(number: int, schema: Any, value: Any) -> bytes:
    """With the prefix that names the schema by its id."""
    return by_id(number, payload(schema, value))
