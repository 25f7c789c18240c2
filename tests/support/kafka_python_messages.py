"""kafka-python's own message classes, and messages as trees (dicts by field name): the second oracle for the control codec.

A tree is made from Kafka's descriptions, so that it can become a message of ours and one of theirs, and each of those a tree
again. It is drawn with the caller's Random: a Hypothesis strategy for each of three hundred messages would take minutes to build.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage

from broker.protocol.schema import Field

Tree = dict[str, Any]
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "clicks", "é", "a\0b", "x" * 130)  # the last one's length takes two bytes in flexible versions
_BLOBS = (b"", b"\0", b"\xff" * 130)


@cache
def their_class(name: str) -> Any:
    """kafka-python's class of a message, without what its own classes change (bit sets for authorized operations, an error of
    ApiVersions in the oldest form), and not registered with its clients."""
    with mock.patch.object(ResponseClassRegistry, "register_response_class"):
        return type(ApiMessage)(name, (ApiMessage,), {})


def any_tree(fields: tuple[Field, ...], version: int, chance: Random) -> Tree:
    """Any message of these fields: null or empty wherever that is allowed, and never null elsewhere."""
    return {field.name: _value(field, version, chance) for field in fields if version in field.versions}


def _value(field: Field, version: int, chance: Random) -> Any:
    if version in field.nullable and chance.random() < 0.25:
        return None
    if field.is_array:
        return [_one(field, version, chance) for _ in range(chance.choice((0, 1, 2)))]
    return _one(field, version, chance)


def _one(field: Field, version: int, chance: Random) -> Any:
    if field.fields:
        return any_tree(field.fields, version, chance)
    if field.kind in _BITS:
        half = 1 << (_BITS[field.kind] - 1)
        return chance.choice((0, 1, -1, half - 1, -half, chance.randrange(-half, half)))
    match field.kind:
        case "string":
            return chance.choice(_TEXTS)
        case "bytes" | "records":
            return chance.choice(_BLOBS)
        case "bool":
            return chance.random() < 0.5
        case "uint16":
            return chance.choice((0, 9092, 65_535))
        case "float64":
            return chance.choice((0.0, -1.5, float("inf"), chance.random()))
        case "uuid":  # None is the zero id, in their classes as in ours
            return chance.choice((None, UUID(int=chance.randrange(1, 1 << 128))))
    raise NotImplementedError(field.kind)


def message(kind: Any, fields: tuple[Field, ...], tree: Tree) -> Any:
    """A message of a class of ours or of theirs, which have the same field names."""
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
