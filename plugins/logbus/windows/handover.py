"""Windows handed on: as text that any program can be passed (which offsets of which partitions, and of which log), and as events:
which were announced to which watcher, so that an hour is announced once.

A watcher is a name, a pipeline and a stage: `closed` (the clock has passed the hour and its lateness), `loaded`, or `audited`.
When it is created, existing windows are stored as known, to avoid a year of events at once. From then on each window that
reaches the stage is announced, in order of time, and noted once Airflow has stored the event: after a crash in between it is
announced again rather than never. `take` closes that gap on the consumer's side: a window belongs to the first run that takes it.

A reload is not announced: the window has been, and holds the same records.

As text:

    {"pipeline": ..., "topic": ..., "topic_id": ..., "isolation_level": ..., "offset_gaps": false,
     "witnesses": {"0": [14, 1431856799000, -3203]},
     "windows": [{"id": ..., "start": ..., "end": ..., "ranges": {"0": [5, 15]}}, ...],
     "startingOffsets": "{\\"topic\\": {\\"0\\": 5}}", "endingOffsets": "{\\"topic\\": {\\"0\\": 15}}"}

The last two are the Spark Kafka connector's options of these names. They are null if the windows are not adjacent: one read from
the first to the last would include records of no window. Ends are exclusive, as everywhere. Nothing in it is secret.

Offsets mean nothing in another log. So the text names the topic's id and, by partition, the last record before the windows' last
boundary (offset, timestamp in ms, hash), which vouches for all before it: whoever reads the windows compares both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from itertools import islice, pairwise
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, func, literal, select, text
from sqlalchemy.dialects.postgresql import insert

from logbus import errors, model
from logbus.kafka.topics import OffsetLog
from logbus.windows import schema
from logbus.windows.log_changes import differences, last_witnesses, log_changed, refuse_if_recreated, refuse_if_shorter
from logbus.windows.rows import among, pipeline_row, to_pipeline

ANNOUNCED_AT_ONCE_MAX = 100  # of a backlog, per poll


# On which PostgreSQL says that windows of a pipeline have changed, for whoever would otherwise ask again and again.
CHANNEL = "logbus_windows"

# A window of the pipeline `:name` reaches a stage; said when the transaction commits. A notification that is longer than 8,000
# bytes is an error, and would fail the commit: it says the name's hash (`subject`).
NOTIFY = text(f"select pg_notify('{CHANNEL}', encode(sha256(convert_to(:name, 'UTF8')), 'hex'))")


def subject(pipeline_name: str) -> str:
    """What a notification about the pipeline says."""
    return sha256(pipeline_name.encode()).hexdigest()


class Stage(StrEnum):
    """How far a window must have progressed to be announced."""

    CLOSED = "closed"
    LOADED = "loaded"
    AUDITED = "audited"


REACHED: dict[Stage, ColumnElement[bool]] = {
    Stage.LOADED: schema.window.c.loaded_attempt.is_not(None),
    Stage.AUDITED: schema.window.c.audited_at.is_not(None),
}


def begin_watch(engine: Engine, name: str, pipeline_name: str, stage: Stage, now: datetime) -> None:
    """Creates the watcher if it does not exist. Windows that have reached the stage by then count as announced."""
    row_of = schema.watcher
    values = {"name": name, "pipeline": pipeline_name, "stage": stage, "began_at": now}
    with engine.begin() as connection:
        created = connection.execute(insert(row_of).values(values).on_conflict_do_nothing().returning(row_of.c.name)).all()
        if created:
            put_down_as_known(connection, name, pipeline_name, stage, now)
        watcher = connection.execute(select(row_of).where(row_of.c.name == name)).mappings().one()
    if (watcher["pipeline"], watcher["stage"]) != (pipeline_name, stage):
        raise errors.UserError(
            f"the watcher {name!r} watches until {watcher['pipeline']} is {watcher['stage']}: choose another name for one that "
            f"watches until {pipeline_name} is {stage}"
        )


def put_down_as_known(connection: Connection, name: str, pipeline_name: str, stage: Stage, now: datetime) -> None:
    if stage in REACHED:
        window, row_of = schema.window, schema.announcement
        reached_already = select(literal(name), window.c.starts_at, literal(now)).where(
            window.c.pipeline == pipeline_name, REACHED[stage]
        )
        connection.execute(insert(row_of).from_select(["watcher", "starts_at", "announced_at"], reached_already))


def unannounced(engine: Engine, name: str, now: datetime, limit: int = ANNOUNCED_AT_ONCE_MAX) -> list[model.Interval]:
    """The next windows the watcher has not announced, in order of time."""
    with engine.connect() as connection:
        watcher = connection.execute(select(schema.watcher).where(schema.watcher.c.name == name)).mappings().one()
        stage = Stage(watcher["stage"])
        if stage in REACHED:
            return reached(connection, name, watcher["pipeline"], stage, limit)
        return list(islice(closed(connection, name, watcher["pipeline"], watcher["began_at"], now), limit))


def reached(connection: Connection, name: str, pipeline_name: str, stage: Stage, limit: int) -> list[model.Interval]:
    window, row_of = schema.window, schema.announcement
    announced = select(row_of.c.starts_at).where(row_of.c.watcher == name, row_of.c.starts_at == window.c.starts_at)
    query = select(window.c.starts_at, window.c.ends_at).where(
        window.c.pipeline == pipeline_name, REACHED[stage], ~announced.exists()
    )
    rows = connection.execute(query.order_by(window.c.starts_at).limit(limit))
    return [model.Interval(start, end) for start, end in rows]


def closed(connection: Connection, name: str, pipeline_name: str, began_at: datetime, now: datetime) -> Iterable[model.Interval]:
    """Intervals that have closed since the last announced one, or since the watch began. They close in order."""
    try:
        pipeline = to_pipeline(pipeline_row(connection, pipeline_name))
    except errors.PipelineUnknown:
        return []
    last = connection.execute(
        select(func.max(schema.announcement.c.starts_at)).where(schema.announcement.c.watcher == name)
    ).scalar_one()
    grid = pipeline.grid
    return grid.windows(grid.floor(began_at - pipeline.lateness) if last is None else grid.after(last), now - pipeline.lateness)


def note_announced(engine: Engine, name: str, starts: Sequence[datetime], now: datetime) -> None:
    """Called once Airflow has stored the events of these windows."""
    values = [{"watcher": name, "starts_at": start, "announced_at": now} for start in starts]
    with engine.begin() as connection:
        connection.execute(insert(schema.announcement).on_conflict_do_nothing(), values)


def told_since(engine: Engine, name: str, since: datetime, now: datetime) -> list[datetime]:
    """Windows whose announcement was noted at or after `since`, or is not noted yet."""
    row_of, watcher = schema.announcement, schema.watcher
    noted = select(row_of.c.starts_at).where(
        row_of.c.watcher == name,
        row_of.c.announced_at >= since,
        row_of.c.announced_at > select(watcher.c.began_at).where(watcher.c.name == name).scalar_subquery(),
    )
    with engine.connect() as connection:
        starts = set(connection.execute(noted).scalars())
    return sorted(starts.union(interval.start for interval in unannounced(engine, name, now)))


def take(
    engine: Engine, consumer: str, pipeline_name: str, starts: Sequence[datetime], run_id: str, now: datetime
) -> list[datetime]:
    """Those of the windows that belong to this run of the consumer: no other run has taken them before."""
    row_of = schema.taken_window
    common = {"consumer": consumer, "pipeline": pipeline_name, "run_id": run_id, "taken_at": now}
    taken_by_run = select(row_of.c.starts_at).where(
        row_of.c.consumer == consumer, row_of.c.pipeline == pipeline_name, row_of.c.run_id == run_id
    )
    with engine.begin() as connection:
        if starts:
            rows = [{**common, "starts_at": start} for start in sorted(set(starts))]
            connection.execute(insert(row_of).on_conflict_do_nothing(), rows)
        return sorted(set(connection.execute(taken_by_run.where(among(row_of.c.starts_at, starts))).scalars()))


# Frozen windows as text that can be passed to any program: which offsets of which partitions, and of which log.


TEXT_BYTES_MAX = 100_000  # Linux allows 128 KiB in one argument or variable


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedWindows:
    """What the receiving program gets."""

    pipeline: str
    topic: str
    isolation_level: str
    windows: tuple[model.FrozenWindow, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    topic_id: str
    offset_gaps: bool
    witnesses: Mapping[int, model.Witness] = field(default_factory=dict)

    def refuse_another_log(self, log: OffsetLog) -> None:
        """`TopicRecreated` or `LogChanged` unless this is the log on which the windows were frozen."""
        refuse_if_recreated(self.topic, self.topic_id, log.topic(self.topic).topic_id)
        pipeline = model.Pipeline(
            name=self.pipeline, topic=self.topic, table="t", parse="raw", settings={"offset_gaps": self.offset_gaps}
        )
        reached = {part.partition: part.end_offset for window in self.windows for part in window.ranges}
        refuse_if_shorter(pipeline, reached, log.end_offsets(self.topic, list(reached), self.isolation_level))
        if changed := differences(pipeline, log, self.witnesses):
            raise log_changed(self.pipeline, changed.values())


def hand_over_from(
    engine: Engine, pipeline: model.Pipeline, windows: Sequence[model.FrozenWindow], log: OffsetLog
) -> dict[str, Any]:
    """The text's content. `TopicRecreated` or `LogChanged` if the log is not the one on which the windows were frozen."""
    found_id = log.topic(pipeline.topic).topic_id
    for window in windows:
        refuse_if_recreated(pipeline.topic, window.topic_id, found_id)
    content = hand_over(pipeline, windows, last_witnesses(engine, windows))
    parse_content(content).refuse_another_log(log)
    return content


def hand_over(
    pipeline: model.Pipeline, windows: Sequence[model.FrozenWindow], witnesses: Mapping[int, model.Witness] | None = None
) -> dict[str, Any]:
    """The same, of windows of one log that is known to be there."""
    starting, ending = connector_offsets(pipeline.topic, windows)
    return {
        "pipeline": pipeline.name,
        "topic": pipeline.topic,
        "topic_id": windows[-1].topic_id,
        "isolation_level": pipeline.isolation_level,
        "offset_gaps": pipeline.options.offset_gaps,
        "witnesses": {
            str(part): [witness.offset, witness.timestamp_ms, witness.hash] for part, witness in (witnesses or {}).items()
        },
        "windows": [handed(window) for window in windows],
        "startingOffsets": starting,
        "endingOffsets": ending,
    }


def as_text(content: Mapping[str, Any]) -> str:
    """The text, if it is not too long to be passed on."""
    text = json.dumps(content, separators=(",", ":"))
    if len(text) > TEXT_BYTES_MAX:
        raise errors.UserError(
            f"the ranges of {len(content['windows'])} windows are {len(text)} bytes long, and {TEXT_BYTES_MAX} can be handed "
            "over: take fewer windows in one run"
        )
    return text


def parse_text(text: str) -> HandedWindows:
    """The inverse: windows with as much as the text contains."""
    return parse_content(json.loads(text))


def parse_content(content: Mapping[str, Any]) -> HandedWindows:
    return HandedWindows(
        pipeline=content["pipeline"],
        topic=content["topic"],
        isolation_level=content["isolation_level"],
        windows=tuple(parse_window(content["pipeline"], content["topic"], window) for window in content["windows"]),
        starting_offsets=content["startingOffsets"],
        ending_offsets=content["endingOffsets"],
        topic_id=content["topic_id"],
        offset_gaps=content["offset_gaps"],
        witnesses={
            int(partition): model.Witness(offset=offset, timestamp_ms=stamp, hash=record_hash)
            for partition, (offset, stamp, record_hash) in content["witnesses"].items()
        },
    )


def handed(window: model.FrozenWindow) -> dict[str, Any]:
    return {
        "id": window.id,
        "start": model.instant_text(window.interval.start),
        "end": model.instant_text(window.interval.end),
        "ranges": {str(part.partition): [part.readable_from, part.end_offset] for part in window.ranges},
    }


def parse_window(pipeline: str, topic: str, content: Mapping[str, Any]) -> model.FrozenWindow:
    ranges = (
        model.OffsetRange(topic=topic, partition=int(partition), start_offset=start, end_offset=end)
        for partition, (start, end) in content["ranges"].items()
    )
    return model.FrozenWindow(
        id=content["id"],
        pipeline=pipeline,
        topic=topic,
        interval=model.Interval(model.parse_instant(content["start"]), model.parse_instant(content["end"])),
        topic_id="",
        ranges=tuple(ranges),
        state=model.WindowState.FROZEN,
    )


def connector_offsets(topic: str, windows: Sequence[model.FrozenWindow]) -> tuple[str | None, str | None]:
    """`startingOffsets` and `endingOffsets` over all the windows, or neither if they are not adjacent."""
    if any(before.interval.end != after.interval.start for before, after in pairwise(windows)):
        return None, None
    parts = [part for window in windows for part in window.ranges]
    starting = first_by_partition((part.partition, part.readable_from) for part in parts)
    ending = first_by_partition((part.partition, part.end_offset) for part in reversed(parts))
    return json.dumps({topic: starting}), json.dumps({topic: ending})


def first_by_partition(offsets: Iterable[tuple[int, int]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for partition, offset in offsets:
        first.setdefault(str(partition), offset)
    return dict(sorted(first.items(), key=lambda item: int(item[0])))
