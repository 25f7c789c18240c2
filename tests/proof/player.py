"""Plays a story on the product's own code: ledger, driver, tasks and audit on a real PostgreSQL, without Spark.

The player reports to the checker whatever the product does and whatever is done to the log; it judges nothing itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from logbus.errors import LogbusError
from logbus.kafka.client import Client
from logbus.loads import commit
from logbus.loads.audit import audit_window
from logbus.loads.ledger import Ledger
from logbus.loads.redrive import Redrive, windows_to_redrive
from logbus.loads.sinks import MaintenanceOptions, sink_for
from logbus.model import Attempt, FrozenWindow, Interval, Pipeline
from logbus.parsing import parser_for
from logbus.status.ledger_checks import check_all
from logbus.windows import recovery
from logbus.windows.catch_up import runs
from logbus.windows.freezing import freeze_together
from logbus_spark.application import Application, LoadState
from logbus_spark.records import Records, Run

from tests.proof.bench import Bench
from tests.proof.by_hand import ByHand
from tests.proof.checker import Checker
from tests.proof.logs import Log, MemoryLog
from tests.proof.story import Step, Story
from tests.proof.truth import HOUR, Partition, Record, ms
from tests.support.cutting import Killed
from tests.support.in_process import Tasks

DAY = datetime(2015, 5, 17, tzinfo=UTC)
FIRST = DAY + 9 * HOUR  # no record has an earlier timestamp
BEGIN = DAY + timedelta(hours=10, minutes=20)
LATENESS = timedelta(minutes=5)
IN_2099 = datetime(2099, 1, 1, tzinfo=UTC)
COLUMNS = {"columns": {"name": "text"}}


class Reading(Tasks):
    """Tasks with a faulty reader: it leaves a record out, or returns one twice."""

    reader: str | None = None

    def read(self, run: Run, topic: str) -> Iterator[Records]:
        for records in super().read(run, topic):
            places = list(range(len(records)))
            if self.reader == "skips":
                places.pop()
            elif self.reader == "doubles":
                places.append(places[-1])
            self.reader = None
            if places:
                yield Records(
                    window_id=records.window_id,
                    partition=records.partition,
                    offsets=[records.offsets[place] for place in places],
                    stamps_ms=[records.stamps_ms[place] for place in places],
                    keys=[records.keys[place] for place in places],
                    values=[records.values[place] for place in places],
                )


class Player:
    """One story, step by step. The steps' kinds are methods of this class, or of `ByHand`."""

    def __init__(self, bench: Bench, story: Story, log: Log) -> None:
        self.bench, self.story, self.log = bench, story, log
        self.name = bench.new_name()
        self.now, self.parse = BEGIN, story.parse
        self.ledger = Ledger(bench.engine)
        self.begun: list[list[Attempt]] = []
        self.saved: tuple[Any, Any] | None = None
        self.serials, self.runs = itertools.count(1), itertools.count(1)
        self.directory = bench.directory / self.name
        self.hand = ByHand(bench.engine, self.name, self.directory if story.sink == "iceberg" else None)
        self.truth = Checker(
            self.name,
            story.length,
            healthy=not story.faults,
            files=self.hand.public_rows if story.sink == "iceberg" else None,
        )
        self.log.create(self.name, story.partitions)
        self.ledger.register(self.pipeline(), self.log.asked, self.now)
        self.truth.registered(story.partitions)

    def pipeline(self, **changes: Any) -> Pipeline:
        settings: dict[str, Any] = {**COLUMNS, "max_error_rate": 1, **({"offset_gaps": True} if self.story.gaps else {})}
        if self.story.sink == "iceberg":
            settings |= {"sink": "iceberg", "warehouse": str(self.directory)}
        values: dict[str, Any] = {
            "name": self.name,
            "topic": self.name,
            "table": self.name,
            "parse": self.parse,
            "interval": self.story.length,
            "lateness": LATENESS,
            "settings": settings,
        }
        return Pipeline(**{**values, **changes})

    def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            getattr(self.hand if hasattr(self.hand, step.kind) else self, step.kind)(**step.arguments)

    @contextmanager
    def refusable(self, what: str, start: datetime | None = None) -> Iterator[None]:
        """The product may refuse this; the checker decides whether it was right to."""
        try:
            yield
        except LogbusError as error:
            self.truth.refused(what, start, str(error))

    # Records and time

    def produce(self, partition: float, minutes: Sequence[Any], kinds: Sequence[str]) -> None:
        number = chosen(range(len(self.partitions)), partition)
        records = [Record(self.stamp(ago), self.value(kind)) for ago, kind in zip(minutes, kinds, strict=True)]
        self.log.append_values(self.name, records, number)
        self.truth.produced(number, records)

    @property
    def partitions(self) -> list[Partition]:
        return self.truth.parts

    def stamp(self, minutes_ago: Any) -> int:
        if minutes_ago is None:
            return -1
        return ms(IN_2099 if minutes_ago == "2099" else self.now - timedelta(minutes=minutes_ago))

    def value(self, kind: str) -> bytes:
        name = f"r{next(self.serials)}"
        return {"json": f'{{"name": "{name}"}}'.encode(), "text": name.encode(), "bytes": b"\xff" + name.encode()}[kind]

    def regrow(self, partition: int, count: int) -> None:
        share = (partition + 0.5) / len(self.partitions)
        if count:
            self.produce(share, [0] * count, ["json"] * count)

    def pass_time(self, hours: float) -> None:
        self.now += timedelta(hours=hours)

    # The ordinary day

    def closed(self) -> list[datetime]:
        count = (self.now - LATENESS - FIRST) // self.story.length
        return [FIRST + number * self.story.length for number in range(count)]

    def interval(self, start: datetime) -> Interval:
        return Interval(start, start + self.story.length)

    def freeze(self, places: Sequence[float]) -> None:
        for place in places:
            self.freeze_hour(chosen(self.closed(), place))

    def freeze_hour(self, start: datetime) -> None:
        with self.refusable("freeze", start):
            self.froze(self.ledger.freeze_or_get(self.name, self.interval(start), self.log.asked, self.now))

    def freeze_backlog(self) -> None:
        """As a catch-up does: adjacent hours together, or one by one if that is impossible."""
        known = self.truth.known.windows
        for touching in runs(self.interval(start) for start in self.closed() if start not in known):
            together: list[FrozenWindow] | None = None
            with self.refusable("freeze"):
                pipeline = self.ledger.pipeline(self.name)
                together = freeze_together(self.bench.engine, pipeline, touching, self.log.asked, self.now)
            for window in together or ():
                self.froze(window)
            for hour in () if together else touching:
                self.freeze_hour(hour.start)

    def froze(self, window: FrozenWindow) -> None:
        ranges = {part.partition: (part.start_offset, part.end_offset) for part in window.ranges}
        self.truth.froze(window.interval.start, ranges, self.now)

    def load(self, places: Sequence[float], **disturbance: Any) -> None:
        self.run(self.begin_some(places), **disturbance)

    def begin(self, places: Sequence[float]) -> None:
        """An attempt is taken; its driver starts later, or much later."""
        self.begun.append(self.begin_some(places))

    def drive(self) -> None:
        """The driver of the oldest waiting attempt."""
        if self.begun:
            self.run(self.begun.pop(0))

    def begin_some(self, places: Sequence[float]) -> list[Attempt]:
        frozen = sorted(self.truth.known.windows)
        return self.begin_at(sorted({chosen(frozen, place) for place in places}) if frozen else [])

    def begin_at(self, starts: Sequence[datetime]) -> list[Attempt]:
        attempts: list[Attempt] = []
        self.catch_up()
        with self.refusable("begin"):
            if starts:
                attempts = self.ledger.begin_attempts(self.name, starts, f"run {next(self.runs)}", 1, self.now)
        for attempt in attempts:
            self.truth.begun(attempt.interval.start, (attempt.number, attempt.key), self.parse)
        return attempts

    def run(
        self,
        attempts: Sequence[Attempt],
        at: int | None = None,
        steps: Sequence[Step] = (),
        kill: int | None = None,
        repeats: bool = False,
        reader: str | None = None,
    ) -> None:
        """A driver. Before its n-th transaction other steps run, or it is killed; a retry follows, as from Airflow."""
        if not attempts:
            return
        tasks = Reading(log=self.log.asked, repeats=itertools.cycle([repeats]))
        tasks.reader = reader
        do: Callable[[], None] = die if kill is not None else lambda: self.play(steps)
        with self.refusable("load"), self.bench.before_transaction(kill if at is None else at, do), suppress(Killed):
            self.driver(tasks, self.report).load(self.name, [attempt.token for attempt in attempts])
        self.catch_up()
        if kill is not None:
            known = self.truth.known.windows
            self.run(self.begin_at([attempt.interval.start for attempt in attempts if attempt.interval.start in known]))

    def catch_up(self) -> None:
        with self.bench.engine.connect() as connection:
            self.truth.catch_up(connection)

    def driver(self, tasks: Tasks, report: Callable[[Any], None]) -> Application:
        return Application(
            ledger=Ledger(self.bench.driver),
            log=self.log.asked,
            client=Client(self.log.client_config(tasks)),
            now=lambda: self.now,
            report=report,
        )

    def report(self, outcome: Any) -> None:
        start, number = outcome.attempt.interval.start, outcome.attempt.number
        window = self.truth.known.windows.get(start)
        if outcome.state is LoadState.COMMITTED:
            with self.bench.engine.connect() as connection:
                self.truth.committed(connection, start, (number, outcome.attempt.key))
        elif outcome.state is LoadState.FAILED or window is None or number == window.newest:
            self.truth.refused("load", start, outcome.error)

    def audit(self, place: float) -> None:
        frozen = sorted(self.truth.known.windows)
        if frozen:
            self.audit_hour(chosen(frozen, place))

    def audit_hour(self, start: datetime) -> None:
        with self.refusable("audit", start):
            report = audit_window(self.bench.engine, self.log.asked, self.name, start, self.now, sink_for)
            with self.bench.engine.connect() as connection:
                self.truth.audited(connection, start, report.problems)

    def reparse(self) -> None:
        """The parser is fixed: the definition changes, loaded data stays."""
        parse = "json" if self.parse == "lines" else "lines"
        with self.refusable("register"):
            self.ledger.register(self.pipeline(parse=parse), self.log.asked, self.now)
            self.parse = parse

    def register_again(self) -> None:
        with self.refusable("register"):
            self.ledger.register(self.pipeline(), self.log.asked, self.now)

    def redrive(self) -> None:
        pipeline = self.ledger.pipeline(self.name)
        work = Redrive(
            engine=self.bench.engine,
            pipeline=pipeline,
            parser=parser_for(pipeline.parse, pipeline.settings),
            run_id="redrive",
            now=lambda: self.now,
        )
        for window in windows_to_redrive(self.bench.engine, pipeline):
            with self.refusable("redrive", window.interval.start):
                work.run(window)
                self.truth.redriven(window.interval.start, self.parse)

    def add_partition(self) -> None:
        if len(self.partitions) < 3 and self.truth.known.chain == self.truth.log:
            self.log.add_partitions(self.name, len(self.partitions) + 1)
            self.truth.widened()

    def retention(self, partition: float, share: float) -> None:
        """Records are deleted that are loaded, from the first hour on without a gap."""
        number, done = chosen(range(len(self.partitions)), partition), 0
        for start in self.closed():
            window = self.truth.known.windows.get(start)
            if window is None or window.rows is None or window.chain != self.truth.log:
                break
            done = window.ranges.get(number, (0, 0))[1]
        self.delete(number, int(share * (done + 1)))

    def delete(self, number: int, offset: int) -> None:
        offset = min(offset, len(self.partitions[number].records))
        if offset > self.partitions[number].start:
            self.log.delete_records(self.name, offset, number)
            self.truth.deleted(number, offset)

    def upkeep(self) -> None:
        """The nightly maintenance, much later: hours become days, unneeded files are deleted."""
        later = datetime.now(UTC) + timedelta(days=400)
        sink = sink_for(self.ledger.pipeline(self.name), self.bench.engine)
        sink.maintain(MaintenanceOptions(now=later, sleep=lambda seconds: None))

    # What goes wrong with the log

    def ends(self) -> dict[int, int]:
        return {number: len(part.records) for number, part in enumerate(self.partitions)}

    def back_up(self) -> None:
        self.log.back_up(self.ends())

    def restored(self, share: float, regrow: int) -> None:
        for number, offset in self.log.restored(self.name, self.ends(), share).items():
            self.truth.cut(number, offset)
            self.regrow(number, regrow)

    def election(self, partition: float, count: int, regrow: int) -> None:
        number = chosen(range(len(self.partitions)), partition)
        offset = max(0, len(self.partitions[number].records) - count)
        self.memory.cut(self.name, offset, number)
        self.truth.cut(number, offset)
        self.regrow(number, regrow)

    @property
    def memory(self) -> MemoryLog:
        """For what a broker does not do on command."""
        assert isinstance(self.log, MemoryLog)
        return self.log

    def made_again(self, partitions: int, regrow: int) -> None:
        self.log.create(self.name, partitions)
        self.truth.made_again(partitions)
        for number in range(partitions):
            self.regrow(number, regrow)

    def rebase(self) -> None:
        with self.refusable("rebase"):
            recovery.rebase(self.ledger.engine, self.name, self.log.asked, self.now)
            self.truth.rebased()

    def compacted(self, partition: float, share: float) -> None:
        """Some or all records except the newest are compacted away."""
        number = chosen(range(len(self.partitions)), partition)
        gone = [at for at, _ in self.partitions[number].readable()][: -1 : 2 if share < 0.5 else 1]
        self.memory.compact(self.name, *gone, partition=number)
        self.truth.compacted(number, gone)

    def greedy_retention(self, partition: float, share: float) -> None:
        number = chosen(range(len(self.partitions)), partition)
        self.delete(number, int(share * (len(self.partitions[number].records) + 1)))

    def hanging(self, partition: float) -> None:
        number = chosen(range(len(self.partitions)), partition)
        part = self.partitions[number]
        if part.open_from is None:
            part.open_from = len(part.records)
            self.memory.open_transaction(self.name, number, part.open_from)

    def end_transactions(self) -> None:
        for number, part in enumerate(self.partitions):
            if part.open_from is not None:
                part.open_from = None
                self.memory.end_transaction(self.name, number)
                self.truth.produced(number, [None])

    # What goes wrong with the table, the ledger, the configuration

    def save_ledger(self) -> None:
        self.saved = self.hand.dump(), self.truth.save()

    def restore_ledger(self) -> None:
        if self.saved:
            self.hand.restore(self.saved[0])
            self.truth.restore(self.saved[1])
            self.saved = None

    def sink_moved(self) -> None:
        before = self.directory
        self.directory = self.bench.directory / f"{self.name}-moved"
        with self.refusable("register"):
            self.ledger.register(self.pipeline(), self.log.asked, self.now)
            self.hand.directory = self.directory
            return
        self.directory = before

    def alias(self, own_topic: bool, swaps: bool) -> None:
        """Another pipeline writes to this one's table, under a different name."""
        other = f"{self.name}q"
        topic = other if own_topic else self.name
        if own_topic:
            self.log.create(other, 1)
            self.log.append_values(other, [Record(self.stamp(90), b'{"name": "stranger"}')], 0)
        pipeline = self.pipeline(name=other, topic=topic, table=f"public.{self.name}", parse="json")
        frozen = sorted(self.truth.known.windows)
        with self.refusable("register"):
            self.ledger.register(pipeline, self.log.asked, self.now)
            window = self.ledger.freeze_or_get(other, self.interval(frozen[-1]), self.log.asked, self.now)
            (attempt,) = self.ledger.begin_attempts(other, [window.interval.start], "stranger", 1, self.now)
            limit, commit.SWAPPED_ROWS_MIN = commit.SWAPPED_ROWS_MIN, 0 if swaps else commit.SWAPPED_ROWS_MIN
            try:
                self.driver(Tasks(log=self.log.asked), lambda outcome: None).load(other, [attempt.token])
            finally:
                commit.SWAPPED_ROWS_MIN = limit

    # The end

    def settle(self) -> None:
        """The next hour closes: everything that still can be is frozen, loaded and audited."""
        self.end_transactions()
        while self.begun:
            self.drive()
        self.now += HOUR + timedelta(minutes=10)
        self.freeze_backlog()
        for start in self.closed():
            if (window := self.truth.known.windows.get(start)) is None or window.rows is None:
                self.freeze_hour(start)
        self.run(self.begin_at([start for start, window in sorted(self.truth.known.windows.items()) if window.rows is None]))
        for start in sorted(self.truth.known.windows):
            if self.truth.known.windows[start].rows is not None:
                self.audit_hour(start)
        findings = check_all(self.ledger, self.log.asked, [self.ledger.pipeline(self.name)], self.now)
        self.truth.found([(str(found.severity), found.message) for found in findings])
        with self.bench.engine.connect() as connection:
            self.truth.finish(connection)


def chosen(things: Sequence[Any], share: float) -> Any:
    return things[min(int(share * len(things)), len(things) - 1)]


def die() -> None:
    raise Killed
