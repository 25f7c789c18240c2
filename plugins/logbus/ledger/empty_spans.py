"""Many empty windows frozen at once.

Between two frozen windows lies no record where the boundary behind the first and the one before the second are the same offset in
every partition: boundaries between them are clamped, so they can be nothing else. That needs no question to the broker, and the
windows are made by a few statements. What does not hold is left to those who ask hour by hour.
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

WINDOWS_PER_TRANSACTION = 5_000  # the pipeline's row is held meanwhile, and somebody wants to see how far it is

TAKEN = text(f"""
    select exists (select from {SCHEMA}."window" where pipeline = :pipeline and starts_at < :end and ends_at > :start)
""")
# Copies of the boundary behind them, with all it knows of the record before it. None for a partition that is anchored there: what
# lies before an anchor is decided.
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
    """Freezes the windows between two, if no record can be there. Yields the spans that are done, one transaction after another;
    nothing where there may be a record, or a window already."""
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
    """Whether the span's windows were made."""
    place: dict[str, Any] = {"pipeline": pipeline.name, "start": span.start, "end": span.end}
    with engine.begin() as connection:
        topic_id = pipeline_row(connection, pipeline.name, lock=True)["topic_id"]
        chain = Chain(connection, pipeline.name, topic_id)
        offsets = None if {first.topic_id, last.topic_id} != {topic_id} else offsets_between(chain, first, last)
        gone_until = chain.lost_until()
        if gone_until is not None and span.start < gone_until:  # empty now; nobody knows what they held on the former log
            return False
        if offsets is None or connection.execute(TAKEN, place).scalar_one():
            return False
        place |= {"topic_id": topic_id, "length": pipeline.interval, "now": now, "decided_at": last.interval.start}
        connection.execute(BOUNDARIES, place)
        connection.execute(WINDOWS, {**place, "partitions": list(offsets), "offsets": list(offsets.values())})
    return True


def offsets_between(chain: Chain, first: FrozenWindow, last: FrozenWindow) -> dict[int, int] | None:
    """By partition where all boundaries between the windows lie; None where two of them may differ."""
    found: dict[int, int] = {}
    for number in sorted({part.partition for window in (first, last) for part in window.ranges}):
        lower, upper = chain.boundary(number, first.interval.end), chain.boundary(number, last.interval.start)
        if lower is None or lower != upper:
            return None
        found[number] = lower
    return found
