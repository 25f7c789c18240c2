"""What a task sees of its run, as far as our operators look at it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

HOUR_START = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOUR_END = datetime(2015, 5, 17, 11, tzinfo=UTC)


def run_context(start: datetime | None = HOUR_START, end: datetime | None = HOUR_END, try_number: int = 1) -> dict[str, Any]:
    """The context of a run over [start, end)."""
    return {
        "data_interval_start": start,
        "data_interval_end": end,
        # A trap: a run's logical date is not its window.
        "logical_date": datetime(1999, 1, 1, tzinfo=UTC),
        "run_id": "manual__1",
        "ti": SimpleNamespace(try_number=try_number),
    }
