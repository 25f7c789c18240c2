"""Many empty windows frozen at once.

There is no record between two frozen windows if the boundary after the first and the one before the second are the same offset in
every partition: boundaries between them are clamped, so they can be nothing else. That takes no broker request, and the windows
are created by a few statements. Where it does not hold, the caller freezes hour by hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, text

from logbus.ledger import schema
from logbus.ledger.chain import Chain
from logbus.ledger.rows import pipeline_row
from logbus.ledger.table_names import SCHEMA
from logbus.model import FrozenWindow, Interval, Pipeline

WINDOWS_PER_TRANSACTION = 5_000  # a transaction locks the pipeline's row, and progress is reported after each

TAKEN = text(f"""
    select exists (select from {SCHEMA}."window" where pipeline = :pipeline and starts_at < :end and ends_at > :start)
""")
# Copies of the boundary after them, including its witness, the record before it. None for a partition that is anchored there:
# boundaries before an anchor are already decided.
COPIED = ", ".join(f'"{column.name}"' for column in schema.boundary.columns if column.name not in ("at", "frozen_at"))
BOUNDARIES = text(f"""
    insert into {SCHEMA}.boundary (at, frozen_at, {COPIED})
    select inner_at, :now, {COPIED}
    from {SCHEMA}.boundary,
        generate_series(cast(:start as timestamptz) + :length, cast(:end as timestamptz), cast(:length as interval)) inner_at
    where pipeline = :pipeline and topic_id = :topic_id and at = :decided_at
    on conflict do nothing
""")
WINDOWS = text(f"""
    with made as (
        insert into {SCHEMA}."window" (pipeline, topic_id, starts_at, ends_at, frozen_at)
        select :pipeline, :topic_id, starts_at, starts_at + :length, :now
        from generate_series(
            cast(:start as timestamptz), cast(:end as timestamptz) - :length, cast(:length as interval)
        ) starts_at
        returning id
    )
    insert into {SCHEMA}.window_range (window_id, partition, start_offset, end_offset)
    select id, number, place, place
    from made, unnest(cast(:partitions as integer[]), cast(:offsets as bigint[])) parts (number, place)
""")


def freeze_between(
    engine: Engine, pipeline: Pipeline, first: FrozenWindow, last: FrozenWindow, now: datetime
) -> Iterator[Interval]:
    """Freezes the windows between two others, if no record can be there. Yields each span once its transaction has committed;
    stops where there may be a record, or already is a window."""
    step = WINDOWS_PER_TRANSACTION * pipeline.interval
    start, end = first.interval.end, last.interval.start
    while start < end:
        span = Interval(start, min(start + step, end))
        if not freeze_part(engine, pipeline, first, last, span, now):
            return
        yield span
        start = span.end


def freeze_part(
    engine: Engine, pipeline: Pipeline, first: FrozenWindow, last: FrozenWindow, span: Interval, now: datetime
) -> bool:
    """Whether the span's windows were created."""
    place: dict[str, Any] = {"pipeline": pipeline.name, "start": span.start, "end": span.end}
    with engine.begin() as connection:
        topic_id = pipeline_row(connection, pipeline.name, lock=True)["topic_id"]
        chain = Chain(connection, pipeline.name, topic_id)
        offsets = None if {first.topic_id, last.topic_id} != {topic_id} else offsets_between(chain, first, last)
        gone_until = chain.lost_until()
        if gone_until is not None and span.start < gone_until:  # empty now; what they held in the former log is unknown
            return False
        if offsets is None or connection.execute(TAKEN, place).scalar_one():
            return False
        place |= {"topic_id": topic_id, "length": pipeline.interval, "now": now, "decided_at": last.interval.start}
        connection.execute(BOUNDARIES, place)
        connection.execute(WINDOWS, {**place, "partitions": list(offsets), "offsets": list(offsets.values())})
    return True


def offsets_between(chain: Chain, first: FrozenWindow, last: FrozenWindow) -> dict[int, int] | None:
    """By partition, the offset of all boundaries between the windows; None if two of them may differ."""
    found: dict[int, int] = {}
    for number in sorted({part.partition for window in (first, last) for part in window.ranges}):
        lower, upper = chain.boundary(number, first.interval.end), chain.boundary(number, last.interval.start)
        if lower is None or lower != upper:
            return None
        found[number] = lower
    return found
