"""The chains of many pipelines in a handful of statements: what `chain_loading.load_chain` loads for one, on the topic that the
pipeline is registered for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Connection, DateTime, Text, and_, func, literal, or_, select

from logbus.ledger import schema
from logbus.ledger.rows import Row, among, load_windows, running_windows
from logbus.ledger.stretches import Anchor, PipelineChain, begins_at
from logbus.model import FrozenWindow, Interval

WINDOW, RANGE, PIPELINE, ANCHOR = schema.window, schema.window_range, schema.pipeline, schema.anchor
ALL_TIME = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where in a pipeline's windows its chain begins: at the first that is not done, `previous_id` being the one before it."""

    pipeline: str
    first_id: int
    first_start: datetime
    previous_id: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a window starts and ends in a partition; `end` is an anchor for what comes behind it."""

    start: int
    end: Anchor


def load_chains(connection: Connection, rows: Sequence[Row], done: ColumnElement[bool]) -> dict[str, PipelineChain]:
    """By name, for these rows of pipelines, from the first window on that is not `done`; at least the last one."""
    anchors = anchors_of(connection)
    begins = begins_of(connection, done)
    edges = ranges_of(connection, {one for begin in begins for one in (begin.first_id, begin.previous_id) if one is not None})
    former = former_windows(connection)
    chains = {row["name"]: bare_chain(row, anchors.get(row["name"], {}), former.get(row["name"], ())) for row in rows}
    since = dict.fromkeys(chains, ALL_TIME)
    for begin in begins:
        if begin.pipeline in chains and begin.previous_id is not None:
            chain = chains[begin.pipeline]
            if not has_unfrozen_head(edges[begin.first_id], chain.anchors):
                before = {part: edge.end for part, edge in edges[begin.previous_id].items()}
                end = max((one.at for one in before.values() if one.at), default=begin.first_start)
                left_out = Interval(begin.first_start, end) if before else None
                chains[begin.pipeline] = replace(chain, anchors={**chain.anchors, **before}, left_out=left_out)
                since[begin.pipeline] = end if before else ALL_TIME
    return with_windows(connection, chains, since)


def bare_chain(row: Row, anchors: Mapping[int, Anchor], former: tuple[FrozenWindow, ...]) -> PipelineChain:
    return PipelineChain(
        pipeline=row["name"],
        interval=row["interval"],
        anchors=anchors,
        windows=(),
        begins_at=begins_at(anchors.values()),
        former=former,
    )


def former_windows(connection: Connection) -> dict[str, tuple[FrozenWindow, ...]]:
    """By pipeline those of former topics that nobody has loaded."""
    elsewhere = and_(PIPELINE.c.name == WINDOW.c.pipeline, PIPELINE.c.topic_id != WINDOW.c.topic_id)
    query = select(WINDOW).join(PIPELINE, elsewhere).where(WINDOW.c.loaded_attempt.is_(None))
    found = load_windows(connection, query.order_by(WINDOW.c.pipeline, WINDOW.c.starts_at))
    return {name: tuple(group) for name, group in groupby(found, key=attrgetter("pipeline"))}


def begins_of(connection: Connection, done: ColumnElement[bool]) -> list[Begin]:
    """One for each pipeline that has windows on its topic. Found by one reading of the windows' times."""
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
        .join(PIPELINE, and_(PIPELINE.c.name == WINDOW.c.pipeline, PIPELINE.c.topic_id == WINDOW.c.topic_id))
        .subquery()
    )
    wanted = or_(~seen.c.done, seen.c.reached != seen.c.starts_at, seen.c.is_last)
    nth = func.row_number().over(partition_by=seen.c.pipeline, order_by=seen.c.starts_at).label("nth")
    first = select(seen.c.pipeline, seen.c.first_id, seen.c.first_start, seen.c.previous_id, nth).where(wanted).subquery()
    rows = connection.execute(select(first).where(first.c.nth == 1)).mappings()
    return [Begin(**{name: row[name] for name in Begin.__dataclass_fields__}) for row in rows]


def ranges_of(connection: Connection, ids: Iterable[int]) -> dict[int, dict[int, Edge]]:
    """The edges of windows by their ids and partitions."""
    query = select(RANGE.c.window_id, RANGE.c.partition, RANGE.c.start_offset, RANGE.c.end_offset, WINDOW.c.ends_at)
    found: dict[int, dict[int, Edge]] = {one: {} for one in ids}
    query = query.join(WINDOW, WINDOW.c.id == RANGE.c.window_id).where(among(RANGE.c.window_id, found))
    for window_id, partition, start, end, ends_at in connection.execute(query).all():
        found[window_id][partition] = Edge(start, Anchor(offset=end, at=ends_at))
    return found


def has_unfrozen_head(first: Mapping[int, Edge], anchors: Mapping[int, Anchor]) -> bool:
    """Whether records before the first window were never frozen: then nothing is cut off."""
    return any(edge.start > (anchors[part].offset if part in anchors else 0) for part, edge in first.items())


def with_windows(
    connection: Connection, chains: Mapping[str, PipelineChain], since: Mapping[str, datetime]
) -> dict[str, PipelineChain]:
    """The chains with their windows that start at an instant or later."""
    if not chains:
        return {}
    # Two parameters and one text, however many: the statement is compiled once.
    arrays = literal(list(since), ARRAY(Text)), literal(list(since.values()), ARRAY(DateTime(timezone=True)))
    names = func.unnest(*arrays).table_valued("name", "since", name="wanted").render_derived()
    query = (
        select(WINDOW)
        .join(PIPELINE, and_(PIPELINE.c.name == WINDOW.c.pipeline, PIPELINE.c.topic_id == WINDOW.c.topic_id))
        .join(names, names.c.name == WINDOW.c.pipeline)
        .where(WINDOW.c.starts_at >= names.c.since)
        .order_by(WINDOW.c.pipeline, WINDOW.c.starts_at)
    )
    found = load_windows(connection, query)
    windows = {name: tuple(group) for name, group in groupby(found, key=attrgetter("pipeline"))}
    running = frozenset(running_windows(connection, [one.id for one in found]))
    return {name: replace(chain, windows=windows.get(name, ()), running=running) for name, chain in chains.items()}


def anchors_of(connection: Connection) -> dict[str, dict[int, Anchor]]:
    """Of every pipeline on its topic, by partition."""
    same = and_(PIPELINE.c.name == ANCHOR.c.pipeline, PIPELINE.c.topic_id == ANCHOR.c.topic_id)
    query = select(ANCHOR.c.pipeline, ANCHOR.c.partition, ANCHOR.c.offset, ANCHOR.c.at).join(PIPELINE, same)
    found: dict[str, dict[int, Anchor]] = {}
    for pipeline, partition, offset, at in connection.execute(query).all():
        found.setdefault(pipeline, {})[partition] = Anchor(offset=offset, at=at)
    return found
