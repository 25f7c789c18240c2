"""Messages as trees of dicts and lists by the names of Kafka's own descriptions, for tables of requests and answers."""

from __future__ import annotations

from typing import Any

from logbus_broker.protocol.api import ApiKey, Field, describe
from logbus_broker.protocol.codec import request_class, response_class

Tree = dict[str, Any]


def message(kind: Any, fields: tuple[Field, ...], tree: Tree) -> Any:
    """The message that a tree describes."""
    values = dict(tree)
    for field in fields:
        value = values.get(field.name)
        if field.fields and value is not None:
            inside = getattr(kind, field.kind)
            made = [message(inside, field.fields, each) for each in (value if field.is_array else [value])]
            values[field.name] = made if field.is_array else made[0]
    return kind(**values)


def tree_of(found: Any, fields: tuple[Field, ...], version: int) -> Tree:
    """The fields of a message in a version, as a tree."""
    tree = {}
    for field in fields:
        if version not in field.versions:
            continue
        value = getattr(found, field.name)
        if field.fields and value is not None:
            parts = [tree_of(each, field.fields, version) for each in (value if field.is_array else [value])]
            value = parts if field.is_array else parts[0]
        tree[field.name] = bytes(value) if isinstance(value, memoryview) else list(value) if isinstance(value, tuple) else value
    return tree


def encoded(api: ApiKey, version: int, tree: Tree) -> tuple[bytes, bool]:
    """The body of a request, and whether its header is flexible."""
    fields, flexible = describe(request_class(api).__name__)
    return message(request_class(api), fields, tree).encode(version=version), version in flexible


def decoded(api: ApiKey, version: int, body: bytes) -> Tree:
    """The body of an answer."""
    kind = response_class(api)
    return tree_of(kind.decode(body, version=version), describe(kind.__name__)[0], version)
