"""Lag, in the schedule's terms: how many closed hours are not loaded, which is the oldest, how many records they hold.

Counted from the ledger's windows and the broker's offsets, with a few requests for each topic; nothing is interpolated, and
what cannot be known is None. `logbus.windows.missing` decides which hours are missing. Records of the hour that is still open are
counted separately: they cannot be loaded yet. So are hours that are not loaded and hold no record: nothing waits for them.

`unloaded_of` says which pipelines still need the records of a topic that is to be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from logbus.errors import AccessDenied
from logbus.formatting import many
from logbus.kafka import topics
from logbus.model import Pipeline, instant_text
from logbus.status import retention_plan, retention_run
from logbus.windows import boundaries, log_changes, missing, pipeline_chains, rows
from logbus.windows.boundaries import LogSnapshot

# Bytes of the keys and values in the offsets [start, end) of a partition of a topic; known only by reading them.
Measure = Callable[[str, int, int, int], int]

MANAGED = "managed retention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a pipeline is behind.

    `records_behind` are in closed hours, by partition; `records_open` after them; `records_lost` were deleted unloaded.
    `oldest_record_at` is the timestamp of the first record of the oldest hour. `expires_by` is what would delete that record
    and `expires_at` when: None with an `expires_by` means a limit by size, for which it is unknown. `expiry_problem` is why
    nothing is known of either: the user may not see the topic's settings. `bytes_behind` is None unless the records were
    read. `gaps` are the hours that are not loaded: `hours_behind` of them hold records that wait to be loaded, `hours_empty`
    hold none.
    """

    pipeline: str
    topic: str
    records_behind: Mapping[int, int]
    hours_behind: int = 0
    hours_empty: int = 0
    oldest_hour: datetime | None = None
    oldest_record_at: datetime | None = None
    records_open: int = 0
    records_lost: int = 0
    bytes_behind: int | None = None
    expires_at: datetime | None = None
    expires_by: str | None = None
    expiry_problem: str | None = None
    problem: str | None = None
    gaps: tuple[missing.Gap, ...] = ()

    @property
    def records(self) -> int:
        return sum(self.records_behind.values())

    def age(self, now: datetime) -> timedelta | None:
        """Time since the oldest record that could be loaded and is not; None if nothing is behind."""
        since = self.oldest_record_at or self.oldest_hour
        return None if since is None else now - since

    def summary(self, now: datetime) -> dict[str, Any]:
        """The lag as JSON-ready values. If there is a problem, what is counted is None and not 0: an alarm on these numbers must
        not get the one that means "all is in"."""
        age = self.age(now)
        counted = {
            "hours_behind": self.hours_behind,
            "hours_empty": self.hours_empty,
            "oldest_hour": self.oldest_hour and instant_text(self.oldest_hour),
            "oldest_record_at": self.oldest_record_at and instant_text(self.oldest_record_at),
            "age_seconds": None if age is None else age.total_seconds(),
            "records_behind": self.records,
            "records_behind_by_partition": {str(part): count for part, count in self.records_behind.items()},
            "records_open": self.records_open,
            "records_lost": self.records_lost,
            "bytes_behind": self.bytes_behind,
            "seconds_until_expiry": None if self.expires_at is None else (self.expires_at - now).total_seconds(),
            "expires_by": self.expires_by,
            "expiry_problem": self.expiry_problem,
        }
        values = counted if self.problem is None else dict.fromkeys(counted)
        return {"pipeline": self.pipeline, "topic": self.topic, **values, "problem": self.problem}


def lag_of(engine: Engine, log: topics.SettingsLog, pipeline_name: str, now: datetime, measure: Measure | None = None) -> Lag:
    """The lag of a registered pipeline. With `measure` the bytes are counted too, by reading every record that is behind."""
    with engine.connect() as connection:
        row = rows.pipeline_row(connection, pipeline_name)
        facts = log_changes.topic_on_its_cluster(row, log)
        pipeline, chain = (
            rows.to_pipeline(row),
            pipeline_chains.load_chain(connection, row, facts.topic_id, pipeline_chains.is_loaded()),
        )
    policy = next(
        (candidate for candidate in retention_run.RetentionStore(engine).policies() if candidate.topic == pipeline.topic), None
    )
    return lag_over(pipeline, chain, log, now, facts.partitions, policy, measure)


def lag_over(
    pipeline: Pipeline,
    chain: pipeline_chains.PipelineChain,
    log: topics.SettingsLog,
    now: datetime,
    partitions: Sequence[int],
    policy: retention_plan.RetentionPolicy | None = None,
    measure: Measure | None = None,
) -> Lag:
    """The lag of these windows, given the log."""
    if chain.is_other_topic:
        problem = pipeline_chains.OTHER_TOPIC.format(pipeline=pipeline.name)
        return Lag(pipeline=pipeline.name, topic=pipeline.topic, records_behind={}, problem=problem)
    undone = {part: list(pipeline_chains.pending_ranges(chain, part, pipeline_chains.not_loaded)) for part in partitions}
    offsets = boundaries.take_snapshot(log, pipeline, {part: stretches[-1].first for part, stretches in undone.items()}, now)
    lag = count(pipeline, undone, offsets, missing.find_gaps(log, pipeline, chain, offsets))
    if lag.oldest_hour is not None:
        lag = replace(lag, oldest_record_at=boundaries.first_record_at(log, pipeline, undone, offsets, lag.oldest_hour))
    size = None if measure is None else measured(pipeline.topic, undone, offsets, measure)
    lag = replace(lag, bytes_behind=size)
    try:
        own = log.settings(pipeline.topic, topics.LIMIT_SETTINGS)
    except AccessDenied as denied:  # who may only read topics still sees how far behind they are
        return replace(lag, expiry_problem=str(denied) if lag.records else None)
    return replace(lag, **expiry(lag, pipeline, policy, own))


def count(
    pipeline: Pipeline,
    undone: Mapping[int, Sequence[pipeline_chains.PendingRange]],
    offsets: LogSnapshot,
    gaps: tuple[missing.Gap, ...],
) -> Lag:
    """What follows from windows and offsets."""
    with_starts = [(part, offsets.starts[part], stretches) for part, stretches in undone.items()]
    return Lag(
        pipeline=pipeline.name,
        topic=pipeline.topic,
        hours_behind=missing.behind(gaps),
        hours_empty=missing.empty(gaps),
        oldest_hour=missing.oldest(gaps),
        records_behind={part: total(stretches, first, offsets.closed[part]) for part, first, stretches in with_starts},
        records_open=sum(
            total(stretches, max(offsets.closed[part], offsets.starts[part]), offsets.ends[part])
            for part, stretches in undone.items()
        ),
        records_lost=sum(total(stretches, 0, first) for _, first, stretches in with_starts),
        gaps=gaps,
    )


def total(stretches: Sequence[pipeline_chains.PendingRange], start: int, end: int) -> int:
    return sum(stretch.within(start, end) for stretch in stretches)


def measured(
    topic: str, undone: Mapping[int, Sequence[pipeline_chains.PendingRange]], offsets: LogSnapshot, measure: Measure
) -> int:
    parts = [
        (part, max(stretch.first, offsets.starts[part]), min(stretch.end, offsets.closed[part]))
        for part, stretches in undone.items()
        for stretch in stretches
    ]
    return sum(measure(topic, part, start, end) for part, start, end in parts if start < end)


def expiry(lag: Lag, pipeline: Pipeline, policy: retention_plan.RetentionPolicy | None, own: Mapping[str, str]) -> dict[str, Any]:
    """When the oldest record that is behind would be deleted, and by what; empty if nothing deletes it."""
    if lag.oldest_hour is None or not lag.records or not topics.deletes(own):
        return {}
    kept, limits = topics.age_kept(own), dict[datetime | None, str]()
    if kept is not None and lag.oldest_record_at is not None:
        limits[topics.end_of(lag.oldest_record_at, kept)] = topics.RETENTION_MS
    if policy is not None and policy.when_overdue == retention_plan.DELETE:
        limits[topics.end_of(pipeline.grid.after(lag.oldest_hour), (policy.retain or timedelta(0)) + policy.max_hold)] = MANAGED
    soonest = min((at for at in limits if at is not None), default=None)
    if soonest is not None:
        return {"expires_at": soonest, "expires_by": limits[soonest]}
    return {"expires_by": topics.RETENTION_BYTES} if topics.RETENTION_BYTES in topics.limits_in_force(own) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """What a pipeline has not loaded of its topic. `records` None: they cannot be counted, for the reason in `problem`."""

    pipeline: str
    topic: str
    records: int | None
    hours: int = 0
    problem: str | None = None

    def __str__(self) -> str:
        if self.records is None:
            return f"{self.pipeline} (how many is unknown: {self.problem})"
        return f"{self.pipeline} ({many(self.records, 'record')} in {many(self.hours, 'closed hour')} and the open one)"

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"pipeline": self.pipeline, "topic": self.topic, "records": self.records, "problem": self.problem}


def unloaded_of(engine: Engine, log: topics.SettingsLog, names: Collection[str], now: datetime) -> Iterator[Unloaded]:
    """Of the pipelines that read these topics, those that have not loaded everything."""
    with engine.connect() as connection:
        places = [(row["name"], row["topic"]) for row in rows.pipeline_rows(connection) if row["topic"] in names]
    for name, topic in places:
        lag = lag_of(engine, log, name, now)
        if lag.problem is not None:
            yield Unloaded(pipeline=name, topic=topic, records=None, problem=lag.problem)
        elif lag.records + lag.records_open:
            yield Unloaded(pipeline=name, topic=topic, records=lag.records + lag.records_open, hours=lag.hours_behind)
