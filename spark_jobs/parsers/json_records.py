"""A record is a JSON object. With declared columns each gets its member of that name; otherwise the object is one `data jsonb`.

Declared in the pipeline's settings: `{"columns": {"host": "text", "status": "integer", "at": "timestamptz"}}`. A
member that is absent or null is null. A member that is not of its column's type makes a dead letter: a number is not
taken from a string, nor a text from a number. A timestamp is an ISO 8601 instant or a number: seconds since the
epoch, or milliseconds from 100,000,000,000 on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from logbus.errors import UserError

from spark_jobs.parsers.base import Parser, Unparsable, decode, shown

WHOLE_OBJECT = "data"

# As seconds this is the year 5138, as milliseconds 1973: no log is in doubt.
MILLISECONDS_FROM = 100_000_000_000


def json_parser(settings: Mapping[str, Any]) -> Parser:
    columns: Mapping[str, str] = settings.get("columns") or {}
    if not columns:
        return Parser(columns={WHOLE_OBJECT: "jsonb"}, parse=parse_whole)
    unknown = {kind for kind in columns.values() if kind not in CONVERTERS}
    reserved = [name for name in columns if name.startswith("_")]
    if unknown or reserved:
        raise UserError(
            f"settings.columns: types are {', '.join(CONVERTERS)} and names do not begin with _ (logbus's own do); "
            f"got {', '.join([*sorted(unknown), *reserved])}"
        )
    fields = [(name, kind, CONVERTERS[kind]) for name, kind in columns.items()]
    return Parser(columns=dict(columns), parse=lambda value: to_row(parse_object(value), fields))


Converter = Callable[[Any], Any]


def parse_whole(value: bytes) -> Sequence[Any]:
    try:
        return (to_json(parse_object(value)),)
    except Unparsable:
        raise
    except ValueError as error:
        raise Unparsable("BadNumber", f"a number that is out of range: {error}") from None


def to_row(found: dict[str, Any], fields: Sequence[tuple[str, str, Converter]]) -> list[Any]:
    row = []
    for name, kind, converter in fields:
        value = found.get(name)
        try:
            row.append(None if value is None else converter(value))
        except (TypeError, ValueError, OverflowError, OSError):
            raise Unparsable("WrongType", f"member {name!r} is no {kind}: {shown(json.dumps(value, default=str))}") from None
    return row


def parse_object(value: bytes) -> dict[str, Any]:
    """The object, or `Unparsable`. What PostgreSQL's jsonb refuses (NaN, infinities, NUL, half surrogates) is refused here."""
    text = decode(value)
    try:
        found = DECODER.decode(text)
    except RecursionError:
        raise Unparsable("BadJson", "nested too deeply") from None
    except ValueError as error:
        raise Unparsable("BadJson", f"{error} in {shown(text)}") from None
    if not isinstance(found, dict):
        raise Unparsable("NotAnObject", f"a JSON {type(found).__name__}, not an object: {shown(text)}")
    if "\\u" in text:
        refuse_unstorable(found)
    return found


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=refuse_constant)  # made once: json.loads would make one for each record


def refuse_unstorable(found: dict[str, Any]) -> None:
    """Escapes can spell what plain text cannot: NUL and halves of surrogate pairs."""
    if "\\u0000" in json.dumps(found).replace("\\\\", ""):
        raise Unparsable("NulCharacter", "a NUL character (\\u0000), which PostgreSQL cannot hold")
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unparsable("HalfSurrogate", "half a surrogate pair (\\ud800 to \\udfff), which is no character") from None


def to_json(value: Any) -> str:
    """Numbers beyond a double's range would come out as Infinity, which is not JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_text(value: Any) -> str:
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


def to_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def to_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def to_instant(value: Any) -> datetime:
    if isinstance(value, str):
        instant = datetime.fromisoformat(value)
        return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    if isinstance(value, bool) or not math.isfinite(value):
        raise TypeError
    return datetime.fromtimestamp(value / 1000 if abs(value) >= MILLISECONDS_FROM else value, UTC)


CONVERTERS: Mapping[str, Converter] = {
    "text": to_text,
    "integer": to_integer(32),
    "bigint": to_integer(64),
    "double precision": to_double,
    "boolean": to_boolean,
    "timestamptz": to_instant,
    "jsonb": to_json,
}
