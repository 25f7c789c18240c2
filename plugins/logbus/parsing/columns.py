"""Columns declared in a pipeline's settings, and the conversion of text to their types.

{"columns": {"host": "text", "status": "integer", "at": "timestamptz"}}
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from logbus.errors import UserError
from logbus.parsing import Unparsable, shown
from logbus.parsing.batches import ARROW_TYPES
from logbus.parsing.json_records import stored_json, to_date, to_integer
from logbus.parsing.times import instant
from logbus.pipeline_settings import COLUMN_BYTES_MAX, COLUMN_NAMES, COLUMNS_OF_POSTGRES, is_column_name

NOT_OF_A_NAME = re.compile(r"\W+")
HEADER_NAME_BYTES_MAX = COLUMN_BYTES_MAX - len("_9999")  # room for the number of a name that occurs again


def declared_columns(settings: Mapping[str, Any]) -> dict[str, str]:
    """The columns declared in the settings, name to type; possibly none."""
    columns: Mapping[str, str] = settings.get("columns") or {}
    unknown = {str(kind) for kind in columns.values() if kind not in ARROW_TYPES or kind == "bytea"}
    reserved = [repr(name) for name in columns if not is_column_name(name)]
    if unknown or reserved:
        raise UserError(
            f"settings.columns: types are {', '.join(kind for kind in ARROW_TYPES if kind != 'bytea')}, and {COLUMN_NAMES}; "
            f"got {', '.join([*sorted(unknown), *reserved])}"
        )
    return dict(columns)


def columns_named(names: Collection[str], settings: Mapping[str, Any], what: str) -> dict[str, str]:
    """A column for each of the names, in their order: text, unless the settings declare another type. `what` the names are."""
    declared = declared_columns(settings)
    if strangers := [name for name in declared if name not in names]:
        raise UserError(f"settings.columns: {', '.join(strangers)} is not {what}")
    return declared_columns({"columns": {name: declared.get(name, "text") for name in names}})


def column_names(words: Sequence[str]) -> list[str]:
    """A column's name for each word of a header line, in their order: as the word without capitals, blanks and punctuation, each
    once, and one that a column may have. Names made by this function stay as they are."""
    names: list[str] = []
    for number, word in enumerate(words, 1):
        plain = NOT_OF_A_NAME.sub("_", word.casefold()).encode(errors="ignore")[:HEADER_NAME_BYTES_MAX].decode(errors="ignore")
        name = plain.strip("_") or f"field_{number}"
        name += "_" if name in COLUMNS_OF_POSTGRES else ""
        same = itertools.count(2)
        unique = name
        while unique in names:
            unique = f"{name}_{next(same)}"
        names.append(unique)
    return names


def from_text(name: str, kind: str, text: str | None) -> Any:
    """A text as its column's value; null stays null. Raises `Unparsable` where the text is not of the column's type."""
    if text is None or kind == "text":
        return text
    convert = TEXT_CONVERTERS[kind]
    try:
        return convert(text)
    except (TypeError, ValueError, OverflowError, OSError, KeyError, RecursionError):
        raise Unparsable("WrongType", f"{name} is not a valid {kind}: {shown(text)}") from None


BOOLEANS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}


def _to_double(text: str) -> float:
    if "_" in text:  # which Python accepts between digits
        raise ValueError(text)
    number = float(text)
    if math.isinf(number) and text.strip("+- \t")[:1] not in ("i", "I"):  # 1e400, which no double holds
        raise OverflowError(text)
    return number


def _integers(bits: int) -> Callable[[str], int]:
    convert = to_integer(bits)
    return lambda text: convert(int(text) if "_" not in text else None)


TEXT_CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integers(32),
    "bigint": _integers(64),
    "double precision": _to_double,
    "boolean": lambda text: BOOLEANS[text.lower()],
    "timestamptz": instant,
    "date": to_date,
    "jsonb": stored_json,
}
