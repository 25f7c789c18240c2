"""One JSON object to the values of its columns.

A member that is absent or null is null. A member that is not of its column's type makes a dead letter: a string is not
converted to a number, nor a number to text. A timestamp is a written time or a number since 1970 (times.py).

orjson parses the object; for a value that it refuses, the standard library finds the reason. Two things that orjson accepts need
care: numbers beyond 64 bits, which it rounds, and numbers and characters that PostgreSQL's jsonb refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

import orjson

from logbus.parsing import Unparsable, decode, shown
from logbus.parsing.times import instant


def parse_members(value: bytes, columns: Mapping[str, str], *, with_rest: bool = False) -> Sequence[Any]:
    """The object's members in the columns' order; then, if asked for, an object of all other members."""
    members = parse_object(value)
    try:
        row = [_member(members, name, kind, value) for name, kind in columns.items()]
        return [*row, _rest_text(members, columns, value)] if with_rest else row
    except RecursionError:
        raise nested_too_deeply() from None


def rest_of(members: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any] | None:
    """The members that have no column; None where all have one."""
    if members.keys() <= columns.keys():
        return None
    return {name: value for name, value in members.items() if name not in columns}


def _rest_text(members: Mapping[str, Any], columns: Mapping[str, str], source: bytes) -> str | None:
    rest = rest_of(members, columns)
    try:
        return None if rest is None else _to_json(rest)
    except Imprecise:
        return _exact_text(rest_of(DECODER.decode(source.decode()), columns))


def _member(members: Mapping[str, Any], name: str, kind: str, source: bytes) -> Any:
    """One member as its column stores it. `source` is what `members` was parsed from."""
    value = members.get(name)
    try:
        return None if value is None else CONVERTERS[kind](value)
    except Imprecise:
        return _exact_text(DECODER.decode(source.decode())[name])
    except (TypeError, ValueError, OverflowError, OSError):
        raise Unparsable("WrongType", f"member {name!r} is not a valid {kind}: {shown(json.dumps(value, default=str))}") from None


def parse_object(value: bytes) -> dict[str, Any]:
    """The object, or `Unparsable`. What PostgreSQL's jsonb refuses (NaN, infinities, NUL, half surrogates) is rejected here."""
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise _explained(value, error) from None
    if not isinstance(parsed, dict):
        raise Unparsable("NotAnObject", f"a JSON {type(parsed).__name__}, not an object: {shown(decode(value))}")
    if escapes_nul(value):
        raise Unparsable("NulCharacter", "a NUL character (\\u0000), which PostgreSQL cannot hold")
    return parsed


EXACT_TYPES = frozenset((str, int, bool, type(None)))


def parse_exact_object(value: bytes) -> dict[str, Any]:
    """The same, with all digits of whole numbers beyond 64 bits."""
    members = parse_object(value)
    if {*map(type, members.values())} <= EXACT_TYPES:  # usually: no search for numbers then
        return members
    try:
        _to_json(members)
    except Imprecise:
        try:
            members = DECODER.decode(value.decode())
        except RecursionError:
            raise nested_too_deeply() from None
    return members


ESCAPED_NUL = b"\\u0000"


def escapes_nul(source: bytes) -> bool:
    """Whether JSON has the escape \\u0000, which stands for a NUL; after another backslash it is just six characters."""
    return ESCAPED_NUL in source and ESCAPED_NUL in source.replace(b"\\\\", b"")


def _explained(value: bytes, error: Exception) -> Unparsable:
    """Why a value was rejected: the standard library's error where it has one, else orjson's."""
    try:
        text = decode(value)
        json.dumps(DECODER.decode(text), ensure_ascii=False).encode()
    except Unparsable as reason:
        return reason
    except RecursionError:
        return nested_too_deeply()
    except UnicodeEncodeError:
        return Unparsable("HalfSurrogate", "half a surrogate pair (\\ud800 to \\udfff), which is not a character")
    except ValueError as reason:
        return Unparsable("BadJson", f"{reason} in {shown(text)}")
    kind = "BadNumber" if "infinity" in str(error) else "BadJson"
    return Unparsable(kind, f"{error} in {shown(text)}")


def nested_too_deeply() -> Unparsable:
    return Unparsable("BadJson", "nested too deeply")


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_reject_constant)  # made once: json.loads would make one for each record

# PostgreSQL's numeric has at most 16,383 digits after the point and 131,072 before it, zeros included (0e999999): an object that
# may exceed them is rewritten with doubles.
TINY_NUMBER = re.compile(rb"\d[eE]-\d{4}")
LARGE_ZERO = re.compile(rb"0(?<=[:\[,\s.0-]0)[eE]\+?\d{5}")  # begins with a literal: ten times as fast as the same without
LONG_NUMBER_BYTES = 15_000


def parse_whole(value: bytes) -> Sequence[Any]:
    """The object's text for jsonb."""
    parse_object(value)
    try:
        return (_text_as_sent(value),)
    except RecursionError:
        raise nested_too_deeply() from None


def _text_as_sent(value: bytes) -> str:
    """JSON with all its digits, unless it may contain a number that PostgreSQL refuses."""
    text = value.decode()
    return text if is_plain(value) else _exact_text(DECODER.decode(text))


def is_plain(value: bytes) -> bool:
    return not has_tiny_number(value) and LARGE_ZERO.search(value) is None and len(value) < LONG_NUMBER_BYTES


def has_tiny_number(value: bytes) -> bool:
    return (b"e-" in value or b"E-" in value) and TINY_NUMBER.search(value) is not None


def _exact_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def stored_json(text: str | bytes) -> str:
    """Any JSON for jsonb. Raises a `TypeError`, `ValueError` or `RecursionError` for what PostgreSQL refuses."""
    source = text if isinstance(text, bytes) else str.encode(text)
    orjson.loads(source)
    if escapes_nul(source):
        raise ValueError("a NUL character")
    return _text_as_sent(source)


class Imprecise(Exception):
    """What orjson cannot write as it was sent: a number that it may have rounded, or JSON that is nested more than 254 deep (it
    reads 1,024). The standard library keeps all digits, and goes nearly as deep as orjson reads."""


# How orjson writes a whole number beyond 64 bits, which it reads as a double: 1e23, or 1e+23.
ROUNDED_NUMBER = re.compile(rb"(?:^|[\[:,])-?[\d.]+e\+?\d")


def _to_json(value: Any) -> str:
    try:
        text = orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise Imprecise from None
    if ROUNDED_NUMBER.search(text):
        raise Imprecise
    return text.decode()


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def to_integer(bits: int) -> Converter:
    limit = 1 << (bits - 1)

    def convert_integer(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
            raise TypeError
        return value

    return convert_integer


def _to_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def to_date(value: Any) -> date:
    """A date as ISO 8601 writes it: 2026-11-27."""
    return date.fromisoformat(_to_text(value))


Converter = Callable[[Any], Any]

CONVERTERS: Mapping[str, Converter] = {
    "text": _to_text,
    "integer": to_integer(32),
    "bigint": to_integer(64),
    "double precision": _to_double,
    "boolean": _to_boolean,
    "timestamptz": instant,
    "date": to_date,
    "jsonb": _to_json,
}
