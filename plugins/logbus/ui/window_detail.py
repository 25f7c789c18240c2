"""One window for the page that shows it: what `logbus window show` says, the equation, dead letters by error, with samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from logbus.ledger import schema
from logbus.ledger.error_budget import VALUE_BYTES_KEPT_MAX, shown_value
from logbus.model import FrozenWindow, instant_text
from logbus.proof.history import AttemptRecord, WindowHistory

SAMPLES_MAX = 20  # dead letters shown; `logbus dead-letter show` has all
ERROR_CHARACTERS_MAX = 500  # of the error of one

DEAD = schema.dead_letter


def detail(engine: Engine, history: WindowHistory) -> dict[str, Any]:
    """As JSON-ready values: the history's own, and what the page needs beside them."""
    with engine.connect() as connection:
        letters = dead_letters_json(connection, history.window.id)
        stay = dead_by_partition(connection, history.window.id)
    summary = history.summary()
    return {
        **summary,
        "equation": equation(history.window),
        "ranges": ranges_json(history, stay),
        "dead_letters": letters,
        "audit": {"audited_at": summary["audited_at"], "problems": summary["audit_problems"]},
    }


def equation(window: FrozenWindow) -> dict[str, Any] | None:
    """read = loaded + dead-lettered + filtered, and whether it holds; None where nothing is loaded."""
    counts = window.counts
    if counts is None:
        return None
    return {
        "read": counts.read,
        "loaded": counts.loaded,
        "dead_lettered": counts.dead_lettered,
        "filtered": counts.filtered,
        "holds": counts.read == counts.loaded + counts.dead_lettered + counts.filtered,
    }


def ranges_json(history: WindowHistory, stay: Mapping[int, int]) -> list[dict[str, Any]]:
    """By partition. `stay` are dead letters that are still there; what a redrive moved counts as loaded."""
    window = history.window
    attempt = None if window.loaded_attempt is None else history.attempt(window.loaded_attempt)
    loaded = loaded_by_partition(window, attempt, stay)
    return [
        {
            "partition": part.partition,
            "start_offset": part.start_offset,
            "end_offset": part.end_offset,
            "count": part.count,
            "lost": part.lost,
            "loaded": loaded.get(part.partition),
            "dead_lettered": stay.get(part.partition, 0) if window.counts else None,
            "first_timestamp": first and instant_text(first),
            "last_timestamp": last and instant_text(last),
        }
        for part in window.ranges
        for first, last in [history.spans.get(part.partition, (None, None))]
    ]


def loaded_by_partition(window: FrozenWindow, attempt: AttemptRecord | None, stay: Mapping[int, int]) -> dict[int, int]:
    """Rows of each partition; nothing where they do not add up to the window's, because a redrive left some out on purpose."""
    if attempt is None or attempt.partitions is None or window.counts is None:
        return {}
    held = {int(part): one["loaded"] + one["dead_lettered"] for part, one in attempt.partitions.items()}
    found = {part.partition: held.get(part.partition, 0) - stay.get(part.partition, 0) for part in window.ranges}
    return found if sum(found.values()) == window.counts.loaded else {}


def dead_by_partition(connection: Connection, window_id: int) -> dict[int, int]:
    query = select(DEAD.c.partition, func.count()).where(DEAD.c.window_id == window_id).group_by(DEAD.c.partition)
    return {partition: count for partition, count in connection.execute(query)}  # noqa: C416  # dict() of rows has no types


def dead_letters_json(connection: Connection, window_id: int) -> dict[str, Any]:
    """Their number by error class, the most frequent first, and samples: the first of each class, then the second, and so on."""
    query = (
        select(DEAD.c.error_class, func.count(), func.min(func.left(DEAD.c.error, ERROR_CHARACTERS_MAX)))
        .where(DEAD.c.window_id == window_id)
        .group_by(DEAD.c.error_class)
        .order_by(func.count().desc(), DEAD.c.error_class)
    )
    by_error = [{"error_class": name, "count": count, "example": one} for name, count, one in connection.execute(query)]
    return {
        "total": sum(one["count"] for one in by_error),
        "by_error": by_error,
        "samples": samples(connection, window_id) if by_error else [],
    }


def samples(connection: Connection, window_id: int) -> list[dict[str, Any]]:
    nth = func.row_number().over(partition_by=DEAD.c.error_class, order_by=(DEAD.c.partition, DEAD.c.offset)).label("nth")
    columns = (
        *(DEAD.c.partition, DEAD.c.offset, DEAD.c.timestamp, DEAD.c.error_class),
        func.left(DEAD.c.error, ERROR_CHARACTERS_MAX).label("error"),
        func.substring(DEAD.c.key, 1, VALUE_BYTES_KEPT_MAX).label("key"),
        func.substring(DEAD.c.value, 1, VALUE_BYTES_KEPT_MAX).label("value"),
        func.octet_length(DEAD.c.value).label("value_bytes"),
    )
    ranked = select(*columns, nth).where(DEAD.c.window_id == window_id).subquery()
    query = select(ranked).order_by(ranked.c.nth, ranked.c.error_class).limit(SAMPLES_MAX)
    return [sample_json(row) for row in connection.execute(query).mappings()]


def sample_json(row: Mapping[Any, Any]) -> dict[str, Any]:
    """`key` and `value` as texts; where the bytes are none, the same in base64 beside a text of None. Long values are cut."""
    shown: dict[str, Any] = {}
    is_cut = (row["value_bytes"] or 0) > VALUE_BYTES_KEPT_MAX
    for name in ("key", "value"):
        text = shown_value(whole_characters(row[name]))
        shown |= {name: text.get("value"), **({f"{name}_base64": text["value_base64"]} if "value_base64" in text else {})}
    same = ("partition", "offset", "error_class", "error", "value_bytes")
    return {
        **{name: row[name] for name in same},
        "value_is_cut": is_cut,
        "timestamp": row["timestamp"] and instant_text(row["timestamp"]),
        **shown,
    }


def whole_characters(value: bytes | None) -> bytes | None:
    """The bytes without a character of UTF-8 that was cut in two at their end."""
    if value is None or len(value) < VALUE_BYTES_KEPT_MAX:
        return value
    try:
        value.decode()
    except UnicodeDecodeError as error:
        is_cut_at_end = error.reason == "unexpected end of data"
        return value[: error.start] if is_cut_at_end else value
    return value
