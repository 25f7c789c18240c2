"""Loads the window chains of many pipelines from the ledger in a handful of statements, leaving out the years that are done.

What matters is what is missing among the windows, so all of them would have to be examined: 8,760 a year. But while windows are
adjacent and each is done, nothing is missing among them; that prefix is found by one query over the windows' times and replaced
by the boundary where it ends. The prefix is kept if records before the first window were never frozen.

A chain belongs to one topic, by its id. A pipeline whose topic was recreated has windows of the former one too: the caller passes
the id that is meant, and the windows of the other that are not loaded are returned as `former`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Connection, DateTime, FromClause, Text, and_, exists, func, literal, or_, select

from logbus.ledger import schema
from logbus.ledger.rows import ATTEMPT_RUNNING, Row, load_windows, running_windows
from logbus.ledger.stretches import Anchor, PipelineChain, begins_at
from logbus.model import FrozenWindow, Interval

WINDOW, RANGE, ANCHOR = schema.window, schema.window_range, schema.anchor
ALL_TIME = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where the loaded part of a pipeline's chain begins: at the first window not done; `previous_id` is the one before it."""

    pipeline: str
    first_id: int
    first_start: datetime
    previous_id: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a window starts and ends in a partition; `end` is an anchor for what follows it."""

    start: int
    end: Anchor


def load_chain(connection: Connection, row: Row, topic_id: str, done: ColumnElement[bool]) -> PipelineChain:
    """A pipeline's windows on the topic with that id, from the first one that is not `done`; at least the last one."""
    return load_chains(connection, [row], done, {row["name"]: topic_id})[row["name"]]


def load_chains(
    connection: Connection, rows: Sequence[Row], done: ColumnElement[bool], topic_ids: Mapping[str, str] | None = None
) -> dict[str, PipelineChain]:
    """By name, the chains of these pipelines from the first window that is not `done`; at least the last one. On the topics of
    `topic_ids`; by default on those for which the pipelines are registered."""
    if not rows:
        return {}
    topics = topic_ids or {row["name"]: row["topic_id"] for row in rows}
    wanted = among_topics(topics)
    anchors = anchors_of(connection, wanted)
    begins = begins_of(connection, wanted, done)
    edges = ranges_of(connection, {one for begin in begins for one in (begin.first_id, begin.previous_id) if one is not None})
    former = former_windows(connection, wanted)
    chains = {
        row["name"]: bare_chain(row, topics[row["name"]], anchors.get(row["name"], {}), former.get(row["name"], ()))
        for row in rows
    }
    since = dict.fromkeys(chains, ALL_TIME)
    for begin in begins:
        chain = chains[begin.pipeline]
        if begin.previous_id is not None and not has_unfrozen_head(edges[begin.first_id], chain.anchors):
            before = {part: edge.end for part, edge in edges[begin.previous_id].items()}
            end = max((one.at for one in before.values() if one.at), default=begin.first_start)
            left_out = Interval(begin.first_start, end) if before else None
            chains[begin.pipeline] = replace(chain, anchors={**chain.anchors, **before}, left_out=left_out)
            since[begin.pipeline] = end if before else ALL_TIME
    return with_windows(connection, chains, topics, since)


def among_topics(topics: Mapping[str, str]) -> FromClause:
    """Pipelines with their topics' ids as a table to join with. Two parameters and the same SQL text, however many pipelines:
    each statement is compiled once."""
    arrays = literal(list(topics), ARRAY(Text)), literal(list(topics.values()), ARRAY(Text))
    return func.unnest(*arrays).table_valued("name", "topic_id", name="wanted").render_derived()


def is_of(table: Any, wanted: FromClause) -> ColumnElement[bool]:
    return and_(wanted.c.name == table.c.pipeline, wanted.c.topic_id == table.c.topic_id)


def bare_chain(row: Row, topic_id: str, anchors: Mapping[int, Anchor], former: tuple[FrozenWindow, ...]) -> PipelineChain:
    return PipelineChain(
        pipeline=row["name"],
        interval=row["interval"],
        anchors=anchors,
        windows=(),
        is_other_topic=row["topic_id"] != topic_id,
        begins_at=begins_at(anchors.values()),
        former=former,
    )


def is_loaded() -> ColumnElement[bool]:
    """Done, for lag."""
    return WINDOW.c.loaded_attempt.is_not(None)


def is_settled_and_gone(starts: Mapping[int, int]) -> ColumnElement[bool]:
    """Done, for retention: loaded, audited if it can be, no attempt running, and entirely below the log start offset."""
    held = or_(*[and_(RANGE.c.partition == part, RANGE.c.end_offset > start) for part, start in starts.items()])
    attempt = schema.attempt
    running = exists().where(attempt.c.window_id == WINDOW.c.id, attempt.c.state == ATTEMPT_RUNNING)
    return and_(
        is_loaded(),
        or_(WINDOW.c.audited_at.is_not(None), WINDOW.c.head_unknown),
        ~exists().where(RANGE.c.window_id == WINDOW.c.id, held),
        ~running,
    )


def former_windows(connection: Connection, wanted: FromClause) -> dict[str, tuple[FrozenWindow, ...]]:
    """By pipeline, the windows of other topics that are not loaded."""
    elsewhere = and_(wanted.c.name == WINDOW.c.pipeline, wanted.c.topic_id != WINDOW.c.topic_id)
    query = select(WINDOW).join(wanted, elsewhere).where(WINDOW.c.loaded_attempt.is_(None))
    return by_pipeline(load_windows(connection, query.order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)))


def by_pipeline(windows: Iterable[FrozenWindow]) -> dict[str, tuple[FrozenWindow, ...]]:
    """`windows` are ordered by pipeline."""
    return {name: tuple(group) for name, group in groupby(windows, key=attrgetter("pipeline"))}


def begins_of(connection: Connection, wanted: FromClause, done: ColumnElement[bool]) -> list[Begin]:
    """One for each pipeline that has windows on its topic, found in one pass over the windows' times."""
    ordered: dict[str, Any] = {"partition_by": WINDOW.c.pipeline, "order_by": WINDOW.c.starts_at}
    seen = (
        select(
            WINDOW.c.pipeline,
            WINDOW.c.starts_at,
            done.label("done"),
            func.lag(WINDOW.c.ends_at).over(**ordered).label("reached"),
            func.lag(WINDOW.c.id).over(**ordered).label("previous_id"),
            func.first_value(WINDOW.c.id).over(**ordered).label("first_id"),
            func.first_value(WINDOW.c.starts_at).over(**ordered).label("first_start"),
            func.lead(WINDOW.c.id).over(**ordered).is_(None).label("is_last"),
        )
        .join(wanted, is_of(WINDOW, wanted))
        .subquery()
    )
    is_wanted = or_(~seen.c.done, seen.c.reached != seen.c.starts_at, seen.c.is_last)
    nth = func.row_number().over(partition_by=seen.c.pipeline, order_by=seen.c.starts_at).label("nth")
    first = select(seen.c.pipeline, seen.c.first_id, seen.c.first_start, seen.c.previous_id, nth).where(is_wanted).subquery()
    rows = connection.execute(select(first).where(first.c.nth == 1)).mappings()
    return [Begin(**{name: row[name] for name in Begin.__dataclass_fields__}) for row in rows]


def ranges_of(connection: Connection, ids: Iterable[int]) -> dict[int, dict[int, Edge]]:
    """The edges of windows by window id and partition."""
    query = select(RANGE.c.window_id, RANGE.c.partition, RANGE.c.start_offset, RANGE.c.end_offset, WINDOW.c.ends_at)
    found: dict[int, dict[int, Edge]] = {one: {} for one in ids}
    query = query.join(WINDOW, WINDOW.c.id == RANGE.c.window_id).where(schema.among(RANGE.c.window_id, found))
    for window_id, partition, start, end, ends_at in connection.execute(query).all():
        found[window_id][partition] = Edge(start, Anchor(offset=end, at=ends_at))
    return found


def has_unfrozen_head(first: Mapping[int, Edge], anchors: Mapping[int, Anchor]) -> bool:
    """Whether records before the first window were never frozen: then no windows are left out."""
    return any(edge.start > (anchors[part].offset if part in anchors else 0) for part, edge in first.items())


def with_windows(
    connection: Connection, chains: Mapping[str, PipelineChain], topics: Mapping[str, str], since: Mapping[str, datetime]
) -> dict[str, PipelineChain]:
    """The chains with those of their windows that start at or after the pipeline's `since`."""
    arrays = (
        literal(list(topics), ARRAY(Text)),
        literal(list(topics.values()), ARRAY(Text)),
        literal([since[name] for name in topics], ARRAY(DateTime(timezone=True))),
    )
    wanted = func.unnest(*arrays).table_valued("name", "topic_id", "since", name="wanted").render_derived()
    query = (
        select(WINDOW)
        .join(wanted, is_of(WINDOW, wanted))
        .where(WINDOW.c.starts_at >= wanted.c.since)
        .order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)
    )
    found = load_windows(connection, query)
    windows = by_pipeline(found)
    running = frozenset(running_windows(connection, [one.id for one in found]))
    return {name: replace(chain, windows=windows.get(name, ()), running=running) for name, chain in chains.items()}


def anchors_of(connection: Connection, wanted: FromClause) -> dict[str, dict[int, Anchor]]:
    """The anchors by pipeline and partition."""
    query = select(ANCHOR.c.pipeline, ANCHOR.c.partition, ANCHOR.c.offset, ANCHOR.c.at).join(wanted, is_of(ANCHOR, wanted))
    found: dict[str, dict[int, Anchor]] = {}
    for pipeline, partition, offset, at in connection.execute(query).all():
        found.setdefault(pipeline, {})[partition] = Anchor(offset=offset, at=at)
    return found
