"""A pipeline's chain of windows out of the ledger, without the years of it that are done.

What counts is what is missing among the windows, so all of them would have to be looked at: 8,760 a year. But as long as
windows touch and each is done, nothing is missing among them; that prefix is found by one query over the windows' times
and replaced by the boundary where it ends. It is not cut where records before the first window were never frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, or_, select

from logbus.ledger import schema
from logbus.ledger.rows import ATTEMPT_RUNNING, Row, load_windows, running_windows
from logbus.ledger.stretches import Anchor, PipelineChain, begins_at
from logbus.model import Interval

WINDOW, RANGE = schema.window, schema.window_range


def load_chain(connection: Connection, row: Row, topic_id: str, done: ColumnElement[bool]) -> PipelineChain:
    """The windows of a pipeline's row on the topic of that id, from the first that is not `done` on; at least the last one."""
    mine = and_(WINDOW.c.pipeline == row["name"], WINDOW.c.topic_id == topic_id)
    anchors = load_anchors(connection, row["name"], topic_id)
    chain_begins_at = begins_at(anchors.values())
    before = boundary_before(connection, mine, first_wanted(connection, mine, done), anchors)
    query, left_out = select(WINDOW).where(mine).order_by(WINDOW.c.starts_at), None
    if before:
        anchors |= before
        end = max(anchor.at for anchor in before.values() if anchor.at)
        query, left_out = query.where(WINDOW.c.starts_at >= end), Interval(first_start(connection, mine), end)
    found = load_windows(connection, query)
    return PipelineChain(
        pipeline=row["name"],
        interval=row["interval"],
        anchors=anchors,
        windows=tuple(found),
        running=frozenset(running_windows(connection, [one.id for one in found])),
        is_other_topic=row["topic_id"] != topic_id,
        left_out=left_out,
        begins_at=chain_begins_at,
        former=tuple(load_windows(connection, unloaded_elsewhere(row["name"], topic_id))),
    )


def unloaded_elsewhere(pipeline_name: str, topic_id: str) -> Select[Any]:
    """The pipeline's windows of former topics of that name that nobody has loaded."""
    mine = (WINDOW.c.pipeline == pipeline_name, WINDOW.c.topic_id != topic_id, WINDOW.c.loaded_attempt.is_(None))
    return select(WINDOW).where(*mine).order_by(WINDOW.c.starts_at)


def is_loaded() -> ColumnElement[bool]:
    """Done, for lag."""
    return WINDOW.c.loaded_attempt.is_not(None)


def is_settled_and_gone(starts: Mapping[int, int]) -> ColumnElement[bool]:
    """Done, for retention: loaded, audited if it can be, in nobody's hands, and wholly before the log's start."""
    held = or_(*[and_(RANGE.c.partition == part, RANGE.c.end_offset > start) for part, start in starts.items()])
    attempt = schema.attempt
    running = exists().where(attempt.c.window_id == WINDOW.c.id, attempt.c.state == ATTEMPT_RUNNING)
    return and_(
        is_loaded(),
        or_(WINDOW.c.audited_at.is_not(None), WINDOW.c.head_unknown),
        ~exists().where(RANGE.c.window_id == WINDOW.c.id, held),
        ~running,
    )


def load_anchors(connection: Connection, pipeline_name: str, topic_id: str) -> dict[int, Anchor]:
    anchor = schema.anchor
    query = select(anchor).where(anchor.c.pipeline == pipeline_name, anchor.c.topic_id == topic_id)
    return {one["partition"]: Anchor(offset=one["offset"], at=one["at"]) for one in connection.execute(query).mappings()}


def first_wanted(connection: Connection, mine: ColumnElement[bool], done: ColumnElement[bool]) -> datetime | None:
    """Where the first window begins that is not done, or does not touch the one before it; the last one where all are and do."""
    reached = func.lag(WINDOW.c.ends_at).over(order_by=WINDOW.c.starts_at)
    ordered = select(WINDOW.c.starts_at, reached.label("reached"), done.label("done")).where(mine).subquery()
    undone = select(func.min(ordered.c.starts_at)).where(or_(~ordered.c.done, ordered.c.reached != ordered.c.starts_at))
    last = select(func.max(WINDOW.c.starts_at)).where(mine)
    found: datetime | None = connection.execute(
        select(func.coalesce(undone.scalar_subquery(), last.scalar_subquery()))
    ).scalar_one()
    return found


def first_start(connection: Connection, mine: ColumnElement[bool]) -> datetime:
    found: datetime = connection.execute(select(func.min(WINDOW.c.starts_at)).where(mine)).scalar_one()
    return found


def boundary_before(
    connection: Connection, mine: ColumnElement[bool], wanted: datetime | None, anchors: Mapping[int, Anchor]
) -> dict[int, Anchor]:
    """Where the windows before `wanted` end, by partition; nothing where none can be left out."""
    if wanted is None or has_unfrozen_head(connection, mine, anchors):
        return {}
    last = select(WINDOW.c.id).where(mine, WINDOW.c.starts_at < wanted).order_by(WINDOW.c.starts_at.desc()).limit(1)
    query = select(RANGE.c.partition, RANGE.c.end_offset, WINDOW.c.ends_at).join(WINDOW, WINDOW.c.id == RANGE.c.window_id)
    rows = connection.execute(query.where(RANGE.c.window_id == last.scalar_subquery())).all()
    return {partition: Anchor(offset=end_offset, at=ends_at) for partition, end_offset, ends_at in rows}


def has_unfrozen_head(connection: Connection, mine: ColumnElement[bool], anchors: Mapping[int, Anchor]) -> bool:
    first = select(WINDOW.c.id).where(mine).order_by(WINDOW.c.starts_at).limit(1)
    query = select(RANGE.c.partition, RANGE.c.start_offset).where(RANGE.c.window_id == first.scalar_subquery())
    starts = connection.execute(query).all()
    return any(start > (anchors[part].offset if part in anchors else 0) for part, start in starts)
