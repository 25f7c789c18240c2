"""kafka-python's own message classes, and messages as trees (dicts by field name): the second oracle for the control codec.

A tree is made from Kafka's descriptions, so that it becomes a message of ours and one of theirs, and each becomes a tree again.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage

from broker.protocol.schema import Field

Tree = dict[str, Any]
_FAMILIES = ("admin", "consumer", "metadata", "producer")
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-3, 5) | st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for kind, bits in _BITS.items()},
    "uint16": st.integers(0, 65_535),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.sampled_from(["", "clicks", "é", "a\0b"]) | st.text(max_size=6) | st.just("x" * 200),
    "bytes": st.binary(max_size=6) | st.just(b"\xff" * 200),
    "records": st.binary(max_size=6) | st.just(b"\xff" * 200),
    "uuid": st.none() | st.uuids(),  # None is the zero id, in their classes as in ours
}


@cache
def their_class(api_key: int, kind: str) -> Any:
    """kafka-python's class; kind is "request" or "response"."""
    for family in _FAMILIES:
        package = importlib.import_module(f"kafka.protocol.{family}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"kafka.protocol.{family}.{module.name}")
    (found,) = (each for each in ApiMessage.__subclasses__() if (each.API_KEY, each.type) == (api_key, kind))
    return found


def trees(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[Tree]:
    """Any message of these fields: null and empty wherever they may be, and never null elsewhere."""
    return st.fixed_dictionaries({field.name: _values(field, version) for field in fields if version in field.versions})


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    one = trees(field.fields, version) if field.fields else _SCALARS[field.kind]
    values = st.lists(one, max_size=2) if field.is_array else one
    return st.none() | values if version in field.nullable else values


def message(kind: Any, fields: tuple[Field, ...], tree: Tree) -> Any:
    """A message of a class of ours or of theirs, of the same names."""
    values = dict(tree)
    for field in fields:
        value = values.get(field.name)
        if field.fields and value is not None:
            inside = getattr(kind, field.kind)
            made = [message(inside, field.fields, each) for each in (value if field.is_array else [value])]
            values[field.name] = made if field.is_array else made[0]
    return kind(**values)


def tree_of(found: Any, fields: tuple[Field, ...], version: int) -> Tree:
    """The fields of a message in a version, lists as lists and structs as trees."""
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
