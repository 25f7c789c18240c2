"""JSON objects. A declared column holds the member of its name; without declared columns the whole object is one `data jsonb`.

Declared in the pipeline's settings: `{"columns": {"host": "text", "status": "integer", "at": "timestamptz"}}`. `json_records`
says which values a member may have. With `{"infer": true}` columns are added as they appear in records; members without a column
are kept in `_rest jsonb`.

Many objects at once: the same result as `json_records`, in a third of the time. Arrow converts a column's values in C if they are
all of one type. Where it cannot (a timestamp without a zone, seconds among milliseconds, a date in digits), each value of the
column goes through its converter. None means that some value was rejected: `json_records` then finds which one, and why. The two
must agree on every value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from logbus.parsing import Parser, Unparsable, json_records
from logbus.parsing.batches import ARROW_TYPES, CALENDAR_MS_MAX, CALENDAR_MS_MIN, TIMESTAMP, declared_columns
from logbus.pipeline_settings import is_column_name


def _quick_whole(values: Sequence[bytes]) -> Sequence[pa.Array] | None:
    """The objects as one column of JSON, as they were sent."""
    if _objects(values) is None or not _are_plain(values):
        return None
    return [pa.array(values, pa.string())]


def _are_plain(values: Sequence[bytes]) -> bool:
    """Whether all values are plain; searches of the joined values settle most cases."""
    joined = b" ".join(values)
    if json_records.LARGE_ZERO.search(joined) or max(map(len, values)) >= json_records.LONG_NUMBER_BYTES:
        return all(map(json_records.is_plain, values))
    return (b"e-" not in joined and b"E-" not in joined) or not any(map(json_records.has_tiny_number, values))


def _quick_columns(values: Sequence[bytes], columns: Mapping[str, str], *, with_rest: bool = False) -> Sequence[pa.Array] | None:
    """The objects' members as columns; then, if asked for, a column of objects with all other members."""
    names, kinds = [*columns], [*columns.values()]
    of_names = None if with_rest else _parsed_members(values, names)
    if of_names is None:
        rows = _objects(values)
        if rows is None:
            return None
        of_names = members(rows, names)
        if with_rest:
            of_names = [*of_names, [json_records.rest_of(row, columns) for row in rows]]
            kinds.append("jsonb")
    arrays = []
    for of_all_rows, kind in zip(of_names, kinds, strict=True):
        array = _column(of_all_rows, kind)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def members(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Sequence[Sequence[Any]]:
    """The members of each name; None where a row has none."""
    try:
        return _taken(rows, names)
    except KeyError:
        return [[row.get(name) for row in rows] for name in names]


def _taken(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Sequence[Sequence[Any]]:
    """Usually every object of a topic has all members, and one `itemgetter` takes them at once."""
    if len(names) > 1:
        return list(zip(*map(itemgetter(*names), rows), strict=True))
    return [list(map(itemgetter(name), rows)) for name in names]


def _parsed_members(values: Sequence[bytes], names: Sequence[str]) -> Sequence[Sequence[Any]] | None:
    """The members of objects that have all of them, or None. Each object is freed once they are taken: ten thousand objects do
    not fit into the processor's cache, and with two tasks at once that cost as much as the parsing."""
    if _may_hold_nul(values):
        return None
    try:
        return _taken(map(orjson.loads, values), names)
    except (KeyError, TypeError, orjson.JSONDecodeError):
        return None


def _objects(values: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """All values as objects that PostgreSQL can store, or None."""
    try:
        rows = list(map(orjson.loads, values))
    except orjson.JSONDecodeError:
        return None
    return None if set(map(type, rows)) != {dict} or _may_hold_nul(values) else rows


def _may_hold_nul(values: Sequence[bytes]) -> bool:
    """Whether one of the texts has the escape of a NUL, or what looks like it."""
    sources = b" ".join(values)
    # One byte is searched forty times as fast as several, and most objects have no escapes at all.
    return b"\\" in sources and json_records.ESCAPED_NUL in sources


# What Arrow and the converters raise for a value that is not of the requested type.
REFUSALS = (TypeError, ValueError, OverflowError, OSError, json_records.Imprecise)


def _column(values: Sequence[Any], kind: str) -> pa.Array | None:
    try:
        array = _together(values, kind)
        return _one_by_one(values, kind) if array is None else array
    except REFUSALS:
        return None


def _together(values: Sequence[Any], kind: str) -> pa.Array | None:
    """The column, if Arrow finds that all values are of one type, and it is the right one."""
    if kind not in TYPED:
        return None
    kinds, convert = TYPED[kind]
    try:
        array = pa.array(values)
        return convert(array) if array.type in (pa.null(), *kinds) else None
    except REFUSALS:
        return None


def _one_by_one(values: Sequence[Any], kind: str) -> pa.Array:
    converter = json_records.CONVERTERS[kind]
    return pa.array([None if value is None else converter(value) for value in values], ARROW_TYPES[kind])


def _cast_to(kind: pa.DataType, *, safe: bool = True) -> Callable[[pa.Array], pa.Array]:
    return lambda array: array.cast(kind, safe=safe)


def _instants(array: pa.Array) -> pa.Array | None:
    """ISO 8601 with a zone, or numbers of one unit; within the range of Python's datetime."""
    if array.type == pa.int64():
        unit = _unit_of(array)
        if unit is None:
            return None
        array = array.cast(pa.timestamp(unit, tz="UTC"))
    stamps = array.cast(TIMESTAMP)
    span = pc.min_max(stamps.cast(pa.int64())).as_py()
    is_inside = span["min"] is None or (span["min"] >= CALENDAR_MS_MIN * 1000 and span["max"] < (CALENDAR_MS_MAX + 1) * 1000)
    return stamps if is_inside else None


# Numbers that are in one of these ranges have as many digits as no date has: times.py tells units apart by the digits.
UNITS = (("s", 10**8, 10**11), ("ms", 10**12, 10**13), ("us", 10**14, 10**16))


def _unit_of(numbers: pa.Array) -> str | None:
    """The unit of all these numbers since 1970; None if they have to be looked at one by one."""
    span = pc.min_max(pc.abs_checked(numbers)).as_py()
    return next((unit for unit, least, below in UNITS if least <= span["min"] <= span["max"] < below), None)


# The types that Arrow may infer, and their conversion; a double may be written as a whole number.
TYPED: Mapping[str, tuple[tuple[pa.DataType, ...], Callable[[pa.Array], pa.Array | None]]] = {
    "text": ((pa.string(),), _cast_to(pa.string())),
    "integer": ((pa.int64(),), _cast_to(pa.int32())),
    "bigint": ((pa.int64(),), _cast_to(pa.int64())),
    "double precision": ((pa.float64(), pa.int64()), _cast_to(pa.float64(), safe=False)),
    "boolean": ((pa.bool_(),), _cast_to(pa.bool_())),
    "timestamptz": ((pa.string(), pa.int64()), _instants),
}


BIGINT_MAX = 2**63

KINDS: Mapping[type, str] = {bool: "boolean", int: "bigint", float: "double precision", str: "text", list: "jsonb", dict: "jsonb"}


def inferred_columns(values: Iterable[bytes | None]) -> dict[str, str]:
    """Name to type of the members that had a value, in the order of appearance; values that do not parse are ignored."""
    columns: dict[str, str] = {}
    names: dict[str, str] = {}
    for value in values:
        for name, kind in _kinds_of(value):
            if names.setdefault(name.casefold(), name) == name:
                columns[name] = _common_type(columns.get(name, kind), kind)
    return columns


def _kinds_of(value: bytes | None) -> Iterator[tuple[str, str]]:
    try:
        members = {} if value is None else json_records.parse_object(value)
    except Unparsable:
        return
    for name, member in members.items():
        if member is not None and is_column_name(name):
            yield name, _kind_of(member)


def _kind_of(member: Any) -> str:
    is_large = isinstance(member, int) and not -BIGINT_MAX <= member < BIGINT_MAX
    return "jsonb" if is_large else KINDS[type(member)]


def _common_type(kind: str, other: str) -> str:
    """The type that holds the values of both."""
    if kind == other:
        return kind
    return "double precision" if {kind, other} == {"bigint", "double precision"} else "jsonb"


WHOLE_OBJECT = "data"
REST = "_rest"


def json_parser(settings: Mapping[str, Any]) -> Parser:
    columns, infers = declared_columns(settings), bool(settings.get("infer"))
    if not columns and not infers:
        return Parser(columns={WHOLE_OBJECT: "jsonb"}, parse=json_records.parse_whole, quick=_quick_whole)
    return Parser(
        columns={**columns, REST: "jsonb"} if infers else columns,
        parse=lambda value: json_records.parse_members(value, columns, with_rest=infers),
        quick=lambda values: _quick_columns(values, columns, with_rest=infers),
    )
