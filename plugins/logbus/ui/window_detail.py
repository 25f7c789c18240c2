"""One window for the page that shows it: what `logbus window show` prints, the equation, dead letters by shape, with samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

from logbus.model import FrozenWindow, instant_text
from logbus.proof.dead_letter_shapes import shapes_of
from logbus.proof.dead_letters import dead_by_partition
from logbus.proof.history import AttemptRecord, WindowHistory


def detail(engine: Engine, history: WindowHistory) -> dict[str, Any]:
    """As JSON-ready values: the history's own, and what else the page needs."""
    with engine.connect() as connection:
        shapes = shapes_of(connection, history.window.id)
        stay = dead_by_partition(connection, history.window.id)
    summary = history.summary()
    letters = {
        "total": sum(history.dead_letters.values()),
        "by_error": [{"error_class": name, "count": count} for name, count in history.dead_letters.items()],
        "shapes": [shape.summary() for shape in shapes],
    }
    return {
        **summary,
        "equation": equation(history.window),
        "ranges": ranges_json(history, stay),
        "dead_letters": letters,
        "audit": {"audited_at": summary["audited_at"], "problems": summary["audit_problems"]},
    }


def equation(window: FrozenWindow) -> dict[str, Any] | None:
    """read = loaded + dead-lettered + filtered, and whether it holds; None if nothing is loaded."""
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
    """Rows of each partition; empty if they do not add up to the window's, because a redrive left some out on purpose."""
    if attempt is None or attempt.partitions is None or window.counts is None:
        return {}
    held = {int(part): one["loaded"] + one["dead_lettered"] for part, one in attempt.partitions.items()}
    found = {part.partition: held.get(part.partition, 0) - stay.get(part.partition, 0) for part in window.ranges}
    return found if sum(found.values()) == window.counts.loaded else {}
