"""Columns inferred from a sample of JSON objects, for pipelines that infer their schema.

Integers are bigint, integers mixed with fractions are double precision, strings are text (the user must declare instants among
them), objects, lists and members of mixed types are jsonb. Members whose names no column can have stay in `_rest`, and so does a
member whose name differs from an earlier one only in case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from logbus.parsing.base import Unparsable
from logbus.parsing.json_records import parse_object
from logbus.pipeline_settings import is_column_name

BIGINT_MAX = 2**63

KINDS: Mapping[type, str] = {bool: "boolean", int: "bigint", float: "double precision", str: "text", list: "jsonb", dict: "jsonb"}


def inferred_columns(values: Iterable[bytes | None]) -> dict[str, str]:
    """Name to type of the members that had a value, in the order of appearance; values that do not parse are ignored."""
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for value in values:
        for name, kind in kinds_of(value):
            if names.setdefault(name.casefold(), name) == name:
                found[name] = widened(found.get(name, kind), kind)
    return found


def kinds_of(value: bytes | None) -> Iterator[tuple[str, str]]:
    try:
        members = {} if value is None else parse_object(value)
    except Unparsable:
        return
    for name, member in members.items():
        if member is not None and is_column_name(name):
            yield name, kind_of(member)


def kind_of(member: Any) -> str:
    is_large = isinstance(member, int) and not -BIGINT_MAX <= member < BIGINT_MAX
    return "jsonb" if is_large else KINDS[type(member)]


def widened(one: str, other: str) -> str:
    """The type that holds the values of both."""
    if one == other:
        return one
    return "double precision" if {one, other} == {"bigint", "double precision"} else "jsonb"
