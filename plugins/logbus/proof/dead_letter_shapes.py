"""Dead letters of a window by the shape of their error: a thousand that fail in the same way are one thing to look at.

The shape is the error without what is specific to one record: the excerpt of its value at the end, and numbers, which become N.
Shapes are listed by frequency, the most frequent first, with the first few records of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from logbus.ledger.error_budget import VALUE_BYTES_KEPT_MAX
from logbus.ledger.table_names import SCHEMA
from logbus.model import instant_text
from logbus.wording import cut, shown_value

SHAPES_MAX = 10
SAMPLES_OF_SHAPE = 3  # `logbus dead-letter show` has all
ERROR_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`count` dead letters of one class with errors of the same shape; `samples` are the first of them, as JSON-ready values."""

    error_class: str
    error: str
    count: int
    samples: list[dict[str, Any]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"error_class": self.error_class, "error": self.error, "count": self.count, "samples": self.samples}


# Parsers end an error with the record's text in quotes (logbus.parsing.base.shown), after a colon, "in" or "match". The text
# before it may have quotes too ("member 'bytes' is not a valid bigint: ..."), so one of these is required. Numbers are masked
# after that: "line 1 column 20" and "line 1 column 33" are the same.
# Only the beginning of an error is used: a custom parser may write megabytes, and a back reference scans a long text over and
# over.
HEAD = f"left(error, {ERROR_CHARACTERS_MAX})"
WITHOUT_VALUE = rf"""regexp_replace(regexp_replace({HEAD}, '^(.*?)(:| in| match) ([''"]).*\3$', '\1\2'), '(:| in)$', '')"""
SHAPE = rf"regexp_replace({WITHOUT_VALUE}, '\d+', 'N', 'g')"

# Only partitions and offsets are ranked, and the few that are shown are looked up again: values may be megabytes, and a million
# records may have failed.
RANKED = text(
    f"""
    with ranked as (
        select "partition", "offset", shape, error_class, count(*) over each of_shape,
            row_number() over (partition by error_class, shape order by "partition", "offset") nth
        from (
            select "partition", "offset", error_class, {SHAPE} shape from {SCHEMA}.dead_letter where window_id = :window_id
        ) shaped
        window each as (partition by error_class, shape)
    )
    select ranked.*, dead."timestamp", left(dead.error, {ERROR_CHARACTERS_MAX}) error,
        substring(dead.key for :bytes) "key", substring(dead.value for :bytes) "value", octet_length(dead.value) value_bytes
    from (
        select * from ranked where nth <= {SAMPLES_OF_SHAPE}
        order by of_shape desc, error_class, shape, nth limit {SHAPES_MAX * SAMPLES_OF_SHAPE}
    ) ranked
    join {SCHEMA}.dead_letter dead on dead.window_id = :window_id
        and dead."partition" = ranked."partition" and dead."offset" = ranked."offset"
    order by of_shape desc, error_class, shape, nth
    """
)


def shapes_of(connection: Connection, window_id: int) -> list[Shape]:
    """The most frequent shapes first, at most `SHAPES_MAX`."""
    found: dict[tuple[str, str], Shape] = {}
    for row in connection.execute(RANKED, {"window_id": window_id, "bytes": VALUE_BYTES_KEPT_MAX}).mappings():
        key = row["error_class"], row["shape"]
        shape = found.setdefault(key, Shape(error_class=key[0], error=key[1], count=row["of_shape"]))
        shape.samples.append(sample_json(row))
    return list(found.values())[:SHAPES_MAX]


def sample_json(row: Mapping[Any, Any]) -> dict[str, Any]:
    """`key` and `value` as text; bytes that are not text are given in base64, with None as the text. Long values are cut."""
    shown: dict[str, Any] = {}
    is_cut = (row["value_bytes"] or 0) > VALUE_BYTES_KEPT_MAX
    for name in ("key", "value"):
        found = shown_value(cut(row[name], VALUE_BYTES_KEPT_MAX))
        shown |= {name: found.get("value"), **({f"{name}_base64": found["value_base64"]} if "value_base64" in found else {})}
    same = ("partition", "offset", "error", "value_bytes")
    return {
        **{name: row[name] for name in same},
        "value_is_cut": is_cut,
        "timestamp": row["timestamp"] and instant_text(row["timestamp"]),
        **shown,
    }
