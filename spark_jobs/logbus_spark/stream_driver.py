"""The driver of a stream: epoch after epoch, each of them one Spark job over exact offsets and one commit.

It keeps nothing. Before each epoch it reads from the ledger what is committed, plans from there, has the tasks read and add up,
and commits their sums together with the offsets that they are of. Where a commit's answer is lost, the next reading of the ledger
tells what became of it. So a killed driver leaves nothing behind that its successor would have to know or could believe wrongly.

A broker or a warehouse that is away is waited for. A job that fails is repeated a few times: nothing of it has been written.
What ends a stream is what waiting cannot mend: a driver that has begun since, another topic under the same name, records that
are gone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logbus import errors, formatting, model, waiting
from logbus.kafka.topics import OffsetLog
from logbus.loads import attempts as attempts_of
from logbus.loads import commit_checks
from logbus.parsing import batches, parser_for
from logbus.parsing.decoders import FORMATS
from logbus.streams import epoch_commit, stream_ledger
from logbus.streams.definition import Stream
from logbus.streams.epochs import EpochPart, EpochPlanner, FrozenHour, PlannedPart, Repair, reached_in
from logbus.streams.kinds import collector_of
from logbus.streams.stream_ledger import Ownership
from logbus.windows import boundaries
from logbus.windows.log_changes import refuse_if_recreated
from sqlalchemy import Engine
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from logbus_spark import records, session
from logbus_spark.application import Application, Preparation, cause
from logbus_spark.records import TASKS_PER_CORE, PlanSlice, pack_slices
from logbus_spark.stream_task import EpochJob, EpochTaskResult, PartTally, epoch_plans, row_columns

if TYPE_CHECKING:
    from logbus.streams.kinds import Collector


# One after another, without an epoch that succeeds: as often as Spark tries a task on a cluster (spark.task.maxFailures).
FAILED_JOBS_MAX = 4
PLANS_IN_VAIN_MAX = 5  # a window may be frozen while an epoch is computed, but not each time
AWAY_POLL_SECONDS = 1.0

AWAY = (
    errors.BrokerUnavailable,
    errors.RegistryUnavailable,
    errors.WarehouseUnavailable,
    InterfaceError,
    OperationalError,
)


RunTasks = Callable[[EpochJob, Sequence[PlanSlice], Mapping[str, Any]], list[EpochTaskResult]]


class ServerAway(errors.LogbusError):
    """Broker, warehouse or Spark have not done what they were asked, and may the next time."""


class Step(StrEnum):
    """What there was to do."""

    EPOCH = "epoch"
    REPAIR = "repair"
    AGAIN = "again"  # a window was frozen meanwhile, and cuts the epoch otherwise
    NOTHING = "nothing"
    STOPPED = "stopped"


@dataclass(slots=True, kw_only=True)
class StreamRun:
    """What a driver has committed, as far as it knows."""

    epochs: int = 0
    repairs: int = 0
    read: int = 0


@dataclass(slots=True)
class SparkTasks:
    """Runs an epoch's tasks in a Spark session, which is started by the first that has any."""

    task_count: int = 0  # asked for once: it takes a round trip

    def __call__(self, job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        spark = session.started()
        self.task_count = self.task_count or TASKS_PER_CORE * session.parallelism(spark)
        plans = pack_slices(slices, self.task_count)
        return session.run_plans(spark, plans, epoch_plans(job, config), at_once=len(plans))


@dataclass(kw_only=True)
class StreamDriver:
    """One run of the program. `application` is a load's, which knows the pipeline's columns, schemas and table; `stop` ends it
    after the epoch that it is at."""

    application: Application
    name: str
    run_id: str
    say: waiting.Say
    stop: threading.Event = field(default_factory=threading.Event)
    run_tasks: RunTasks = field(default_factory=SparkTasks)
    away_poll_seconds: float = AWAY_POLL_SECONDS
    beat_seconds: float = attempts_of.HEARTBEAT_SECONDS
    repair_rows_max: int = epoch_commit.REPAIR_ROWS_MAX
    has_lost_spark: Callable[[], bool] = lambda: False  # for good: the JVM that this process belongs to has ended
    checkpoint_location: str | None = None  # which Spark's settings name: of no use here
    done: StreamRun = field(default_factory=StreamRun, init=False)
    failed_jobs: int = field(default=0, init=False)
    plans_in_vain: int = field(default=0, init=False)
    waits_because: str = field(default="", init=False)
    goal: dict[int, int] | None = field(default=None, init=False)  # where the log ends, with `once` where it ended at the start
    checked: set[model.Interval] = field(default_factory=set, init=False)  # windows that all parts are known to keep to
    hours: dict[int, tuple[int, datetime]] = field(default_factory=dict, init=False)  # by partition where our last part ended
    ended_by: errors.LogbusError | None = field(default=None, init=False)
    ownership: stream_ledger.Ownership = field(init=False)
    pipeline: model.Pipeline = field(init=False)
    prepared: Preparation = field(init=False)
    collector: Collector = field(init=False)

    @property
    def engine(self) -> Engine:
        return self.application.ledger.engine

    @property
    def log(self) -> OffsetLog:
        return self.application.log

    @property
    def now(self) -> Callable[[], datetime]:
        return self.application.now

    @cached_property
    def stream(self) -> Stream:
        with self.engine.connect() as connection:
            return stream_ledger.find(connection, self.name)

    @cached_property
    def topic_id(self) -> str:
        """Of the log that the stream's offsets are in."""
        with self.engine.connect() as connection:
            return str(stream_ledger.row_of(connection, self.name)["topic_id"])

    @property
    def planner(self) -> EpochPlanner:
        offsets_max = self.stream.max_offsets_per_trigger
        return EpochPlanner(pipeline=self.pipeline, log=self.log, now=self.now, offsets_max=offsets_max)

    def run(self, *, once: bool = False) -> StreamRun:
        """Until it is stopped; with `once` until everything is committed that the log had at the start. From here on no driver
        that began before can commit."""
        self.prepare()
        self.ownership = stream_ledger.begin(self.engine, self.name, self.run_id, self.now())
        if self.checkpoint_location:
            self.say(overruled_checkpoint(self.checkpoint_location, self.ownership))
        try:
            with attempts_of.heartbeats(self.beat, self.beat_seconds):
                self.loop(once=once)
            if self.ended_by is not None:
                raise self.ended_by
        except errors.AttemptSuperseded:
            raise
        except Exception as error:
            with suppress(SQLAlchemyError, errors.LogbusError):
                stream_ledger.end(self.engine, self.ownership, self.now(), error=formatting.first_line(str(error)))
            raise
        stream_ledger.end(self.engine, self.ownership, self.now())
        return self.done

    def beat(self) -> None:
        """Says that the driver is alive. Only here does one that has nothing to commit learn that another has begun, or that the
        stream is gone."""
        try:
            stream_ledger.heartbeat(self.engine, self.ownership, self.now(), error=self.waits_because or None)
        except errors.LogbusError as error:
            self.ended_by = error
            self.stop.set()

    def prepare(self) -> None:
        """As a load that begins now: the pipeline as it is registered, with the columns that records have shown so far."""
        self.pipeline = self.application.ledger.pipeline(self.stream.pipeline)
        if self.pipeline.parse in FORMATS:
            book = commit_checks.schema_book(self.engine, self.pipeline.name)
            prefixes = records.sampled_prefixes(self.application.client.config, self.pipeline, self.unread())
            self.take(self.application.meet(self.pipeline, book, prefixes))
            return
        inferred = self.application.infer(self.pipeline, self.unread()) if self.pipeline.options.infer else self.pipeline
        self.take(self.application.with_target(inferred))

    def take(self, prepared: Preparation) -> None:
        parser = parser_for(prepared.pipeline.parse, prepared.pipeline.settings, prepared.book)
        self.prepared, self.collector = prepared, collector_of(self.stream.content, row_columns(parser))

    def unread(self) -> list[model.OffsetRange]:
        positions = stream_ledger.positions(self.engine, self.name)
        ends = self.log.end_offsets(self.pipeline.topic, positions, self.pipeline.isolation_level)
        return [
            model.OffsetRange(topic=self.pipeline.topic, partition=partition, start_offset=start, end_offset=ends[partition])
            for partition, start in positions.items()
        ]

    def loop(self, *, once: bool) -> None:
        while True:
            began = time.monotonic()
            step = waiting.wait_until(
                lambda: self.step(once=once),
                what="broker, warehouse and Spark",
                timeout_seconds=waiting.PATIENCE_SECONDS if once else threading.TIMEOUT_MAX,
                poll_seconds=self.away_poll_seconds,
                not_yet=ServerAway,
            )
            if step == Step.STOPPED or (once and step == Step.NOTHING):
                return
            if not once and step != Step.AGAIN:
                self.stop.wait(max(0.0, self.stream.trigger.total_seconds() - (time.monotonic() - began)))

    def step(self, *, once: bool) -> Step:
        """An epoch or a repair, if there is anything to read. `ServerAway` if it is to be tried again."""
        if self.stop.is_set():
            return Step.STOPPED
        if self.has_lost_spark():  # asked here, since a job that would fail is not begun while broker or warehouse are away
            raise errors.LoadFailed("the JVM of this stream's driver has ended, and no epoch can be computed: start it again")
        try:
            step = self.next_step(once=once)
        except (errors.AccessDenied, errors.NotAskable):
            raise
        except AWAY as error:
            raise self.away(error) from error
        except errors.EpochStraddles as error:
            self.plans_in_vain += 1
            if self.plans_in_vain >= PLANS_IN_VAIN_MAX:
                raise
            self.say(f"planned again: {error}")
            return Step.AGAIN
        self.failed_jobs, self.plans_in_vain, self.waits_because = 0, 0, ""
        return step

    def away(self, error: Exception) -> ServerAway:
        reason = formatting.first_line(str(error))
        if reason != self.waits_because:
            self.say(f"trying again: {reason}")
        self.waits_because = reason
        return ServerAway(reason)

    def next_step(self, *, once: bool) -> Step:
        # The ledger before the broker: what was committed or frozen by then is in the log whose end is asked for afterwards.
        positions, frozen = stream_ledger.positions(self.engine, self.name), epoch_commit.frozen_hours(self.engine, self.name)
        windows = {window.interval for window in frozen}
        if not windows <= self.checked:
            self.prepare()
            if (repair := epoch_commit.find_repair(self.engine, self.name)) is not None:
                self.repair(repair)
                return Step.REPAIR
        self.checked = windows
        topic = self.log.topic(self.pipeline.topic)
        refuse_if_recreated(topic.name, self.topic_id, topic.topic_id)
        if added := set(topic.partitions) - positions.keys():
            self.ownership = stream_ledger.add_partitions(self.engine, self.ownership, added)
            return Step.AGAIN
        if self.goal is None or not once:
            self.goal = self.log.end_offsets(topic.name, topic.partitions, self.pipeline.isolation_level)
        positions = {partition: position for partition, position in positions.items() if partition in self.goal}
        hours = {partition: hour for partition, (end, hour) in self.hours.items() if positions.get(partition) == end}
        parts = self.planner.plan(reached_in(frozen, positions, hours), self.goal)
        if not parts:
            return Step.NOTHING
        epoch = self.compute(parts, frozen)
        self.ownership = epoch_commit.commit_epoch(self.engine, self.ownership, epoch, self.now())
        self.hours |= {part.partition: (part.end_offset, part.hour) for part in parts}
        self.done.epochs += 1
        self.done.read += epoch.read
        return Step.EPOCH

    def repair(self, repair: Repair) -> None:
        """Windows were frozen otherwise than foreseen: these hours are read again, cut as they are."""
        # As much as an epoch may have is no more than this driver was given memory for.
        rows_max = max(self.repair_rows_max, self.stream.max_offsets_per_trigger)
        epoch_commit.refuse_large(self.engine, self.name, repair, rows_max)
        since = model.instant_text(min(repair.hours))
        self.say(f"reading again from {since} on: the ledger has frozen its windows otherwise than foreseen")
        starts = {partition: start for partition, (start, _) in repair.ranges.items()}
        ends = {partition: end for partition, (_, end) in repair.ranges.items()}
        offsets = sum(ends.values()) - sum(starts.values())
        planner = replace(self.planner, offsets_max=offsets, parts_max=offsets)
        epoch = self.compute(planner.plan(reached_in(repair.frozen, starts), ends), repair.frozen)
        self.ownership = epoch_commit.replace_hours(self.engine, self.ownership, repair, epoch, self.now())
        self.hours.clear()
        self.done.repairs += 1

    def compute(self, parts: Sequence[PlannedPart], frozen: Sequence[FrozenHour]) -> epoch_commit.Epoch:
        """What the parts hold, read by one Spark job; by more if values name schemas that the driver has not met."""
        while True:
            results = self.read(parts, frozen)
            if not (unmet := frozenset[bytes]().union(*(result.unmet for result in results))):
                break
            assert self.prepared.book is not None, "only values that name a schema have one that is unmet"
            self.take(self.application.meet(self.pipeline, self.prepared.book, unmet))
        # Afterwards too, as a load does: a topic that was made again during the job has other records at the same offsets.
        refuse_if_recreated(self.pipeline.topic, self.topic_id, self.log.topic(self.pipeline.topic).topic_id)
        tallies: dict[int, PartTally] = {}
        for result in results:
            for number, tally in result.tallies.items():
                tallies[number] = tallies.get(number, PartTally()) + tally
        number = self.next_number()
        newest_ms = max((tally.newest_ms for tally in tallies.values()), default=-1)
        return epoch_commit.Epoch(
            number=number,
            parts=[epoch_part(number, part, tallies.get(index, PartTally())) for index, part in enumerate(parts)],
            deltas=self.collector.merge(result.deltas for result in results if result.deltas is not None),
            newest_timestamp=model.instant(newest_ms) if 0 <= newest_ms <= batches.CALENDAR_MS_MAX else None,
        )

    def next_number(self) -> int:
        """Read, not counted: the answer to a commit may have been lost."""
        with self.engine.connect() as connection:
            return stream_ledger.last_epoch(connection, self.name) + 1

    def read(self, parts: Sequence[PlannedPart], frozen: Sequence[FrozenHour]) -> list[EpochTaskResult]:
        pipeline = self.prepared.pipeline
        starts = [readable_from(part, frozen) for part in parts]
        slices = [
            PlanSlice(window_id=number, partition=part.partition, start_offset=start, end_offset=part.end_offset)
            for number, (part, start) in enumerate(zip(parts, starts, strict=True))
            if start < part.end_offset
        ]
        if not slices:
            return []
        job = EpochJob(
            content=self.stream.content,
            topic=pipeline.topic,
            isolation_level=pipeline.isolation_level,
            parse=pipeline.parse,
            settings=pipeline.settings,
            hours={number: part.hour for number, part in enumerate(parts)},
            horizon_ms=boundaries.horizon_ms(self.now(), boundaries.max_ahead(pipeline)),
            book=self.prepared.book,
        )
        try:
            return self.run_tasks(job, slices, self.application.client.broker_config)
        except errors.LogbusError:
            raise
        except Exception as error:  # Spark raises many kinds: a worker's, the JVM's, Py4J's
            failure = errors.LoadFailed(f"the Spark job failed: {cause(error)}")
            self.failed_jobs += 1
            if self.failed_jobs >= FAILED_JOBS_MAX:
                raise failure from error
            raise self.away(failure) from error


def readable_from(part: PlannedPart, frozen: Sequence[FrozenHour]) -> int:
    """Where its records begin: of a window whose loss was accepted, those that retention has left."""
    of_partition = [window.ranges[part.partition] for window in frozen if part.partition in window.ranges]
    lost = [each.readable_from for each in of_partition if each.start_offset <= part.start_offset < each.end_offset]
    return max([part.start_offset, *lost])


def epoch_part(epoch: int, part: PlannedPart, tally: PartTally) -> EpochPart:
    return EpochPart(
        partition=part.partition,
        start_offset=part.start_offset,
        end_offset=part.end_offset,
        epoch=epoch,
        hour=part.hour,
        read=tally.read,
        fingerprint=tally.fingerprint,
        filtered=tally.filtered,
        dead_lettered=tally.dead_lettered,
        untimed=tally.untimed,
    )


# Where Structured Streaming would keep a checkpoint. A stream has none, and says what it overrules: nothing is read from there
# but what the line says, and nothing that lies there keeps a stream from running.
CHECKPOINT_SETTING = "spark.sql.streaming.checkpointLocation"

OFFSETS_NAMED_MAX = 20
QUERIES_NAMED_MAX = 3
# What is looked at, so that no directory holds a stream up: queries without a name leave one each time they are started.
QUERIES_MAX = 100
BATCHES_MAX = 10_000  # Spark keeps a hundred
METADATA_BYTES_MAX = 4_096
LOOK_SECONDS = 5.0  # a directory of another machine may not answer for as long as that is away

UNREADABLE_CHECKPOINT = (OSError, LookupError, TypeError, ValueError, RecursionError)


def overruled_checkpoint(location: str, ownership: Ownership) -> str:
    """The line for a stream that begins here."""
    offsets = [f"{partition}:{offset}" for partition, offset in ownership.positions.items()]
    queries: list[str] = []
    look = threading.Thread(target=lambda: queries.extend(checkpoints_in(location)), daemon=True)
    look.start()
    look.join(LOOK_SECONDS)
    holds = formatting.several(list(queries), QUERIES_NAMED_MAX, separator="; ")
    return formatting.printable(
        f"{CHECKPOINT_SETTING} = {location} is overruled: a stream keeps no checkpoint, and by the ledger {ownership.stream} is "
        f"at epoch {ownership.epoch:,}, offsets {formatting.several(offsets, OFFSETS_NAMED_MAX)}"
        f"{'. The directory holds ' if holds else ''}{holds}{'. The directory does not answer' if look.is_alive() else ''}"
    )


def checkpoints_in(location: str) -> Iterator[str]:
    """Those whose checkpoint the directory is or, as Spark has it where this setting alone names it, directories below it are."""
    root = Path(location.removeprefix("file:"))
    try:
        below = sorted(islice(root.iterdir(), QUERIES_MAX))
    except UNREADABLE_CHECKPOINT:  # nothing is there, or on another file system
        return
    for label, directory in [("", root), *((f"{path.name}: ", path) for path in below)]:
        if parts := [*checkpoint_query(directory), *checkpoint_batch(directory)]:
            yield label + ", ".join(parts)


def checkpoint_query(directory: Path) -> Iterator[str]:
    with suppress(*UNREADABLE_CHECKPOINT):
        if (directory / "metadata").is_file():  # opening a pipe would wait
            with (directory / "metadata").open("rb") as file:
                yield f"query {formatting.first_line(str(json.loads(file.read(METADATA_BYTES_MAX))['id']))}"


def checkpoint_batch(directory: Path) -> Iterator[str]:
    with suppress(*UNREADABLE_CHECKPOINT):
        names = [path.name for path in islice((directory / "offsets").iterdir(), BATCHES_MAX)]
        if numbers := [int(name) for name in names if name.isdecimal()]:
            yield f"last batch {max(numbers)}"
