"""Any operations in any order: no record twice, none missing, windows disjoint and adjacent, every table row accounted for.

A machine appends, freezes, loads, kills, clears, deletes, and checks after each step that the table holds exactly the records of
the committed windows. The ledger, the driver and the tasks are the real ones on a real PostgreSQL; only the log is in memory and
Spark is left out. Loads run concurrently, one transaction or task at a time, in the order that the example sets.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from logbus.errors import RecordsLost, TopicRecreated, TransactionOpen, WindowNotClosed, WindowOverlap
from logbus.ledger.ledger import Ledger
from logbus.model import Interval, Pipeline
from logbus.parsing import parser_for
from logbus.proof.audit import audit_window
from logbus.warehouse.embedded import EmbeddedPostgres
from logbus.warehouse.engine import warehouse_url as sqlalchemy_url
from logbus.warehouse.sinks import sink_for
from sqlalchemy import Engine, create_engine, text

from spark_jobs.application import Application
from spark_jobs.outcomes import LoadState, WindowOutcome
from tests.support.examples import examples
from tests.support.fake_log import value_of
from tests.support.in_process import TASKS, Tasks, is_dead
from tests.support.ledgers import at, hour
from tests.support.log_machine import FIRST_HOUR, LAST_HOUR, LATENESS, LogMachine, Row, Window
from tests.support.stepping import Stepped, pause_before_transactions
from tests.support.window_model import ChainModel, Lost, is_undecided


@dataclass
class Load:
    """A load in progress: its driver, the attempts it was given and how it parses."""

    driver: Stepped
    engine: Engine
    attempts: dict[datetime, int]
    parse: str
    outcomes: list[WindowOutcome] = field(default_factory=list)


class Interleavings(LogMachine):
    """One pipeline over its own topic, in a database shared with the other examples. `proven` counts what held to the end."""

    def __init__(self, url: str, engine: Engine, proven: Counter[str]) -> None:
        super().__init__(url, engine)
        self.proven = proven
        self.loads: list[Load] = []

    @rule(number=st.integers(FIRST_HOUR, LAST_HOUR - 1))
    def freeze(self, number: int) -> None:
        interval = hour(number)
        known = self.windows.get(interval.start)
        if known is not None:
            self.freeze_again(known)
        elif self.pipeline.starts_at is not None and interval.start < self.pipeline.starts_at:
            with pytest.raises(WindowOverlap):
                self.ledger.freeze_or_get(self.name, interval, self.log, self.now)
        elif self.now < interval.end + LATENESS:
            with pytest.raises(WindowNotClosed):
                self.ledger.freeze_or_get(self.name, interval, self.log, self.now)
        else:
            self.freeze_new(interval)

    def freeze_again(self, known: Window) -> None:
        """The same offsets forever; an unloaded window that was cut, or whose topic is gone, raises an error."""
        if known.loaded_attempt is None and not self.is_readable(known):
            with pytest.raises((RecordsLost, TopicRecreated)):
                self.ledger.freeze_or_get(self.name, known.frozen.interval, self.log, self.now)
            return
        assert self.ledger.freeze_or_get(self.name, known.frozen.interval, self.log, self.now).ranges == known.frozen.ranges

    def freeze_new(self, interval: Interval) -> None:
        if any(
            is_undecided(part, interval, self.now, self.reached(number, interval)) for number, part in enumerate(self.partitions)
        ):
            with pytest.raises(TransactionOpen):
                self.ledger.freeze_or_get(self.name, interval, self.log, self.now)
            return
        trial = ChainModel(dict(self.chain.anchors), {part: dict(found) for part, found in self.chain.boundaries.items()})
        try:
            expected = trial.freeze(self.partitions, interval, self.now, self.last_end())
        except Lost:
            with pytest.raises(RecordsLost):
                self.ledger.freeze_or_get(self.name, interval, self.log, self.now)
            return
        if self.cut_off_until is not None and interval.start < self.cut_off_until:
            with pytest.raises(RecordsLost, match="may have had records that are gone"):
                self.ledger.freeze_or_get(self.name, interval, self.log, self.now)
            found = self.ledger.accept_loss(self.name, interval, self.log, self.now, by="the machine", reason="a new topic")
        else:
            found = self.ledger.freeze_or_get(self.name, interval, self.log, self.now)
        assert {part.partition: (part.start_offset, part.end_offset, part.lost) for part in found.ranges} == expected
        self.chain = trial
        self.windows[interval.start] = Window(found)

    def reached(self, number: int, interval: Interval) -> int:
        """The last boundary before the interval's end."""
        return self.chain.around(number, interval.end)[0] if number in self.chain.anchors else 0

    def is_readable(self, window: Window) -> bool:
        """Whether the log still holds the window's records."""
        if window.frozen.topic_id != self.log.ids[self.name]:
            return False
        return all(
            not part.count or self.partitions[part.partition].start_offset <= part.start_offset for part in window.frozen.ranges
        )

    @precondition(lambda self: self.windows and len(self.loads) < 3)
    @rule(data=st.data(), parse=st.sampled_from(["lines", "json"]), repeats=st.lists(st.booleans(), min_size=4, max_size=4))
    def begin_a_load(self, data: st.DataObject, parse: str, repeats: list[bool]) -> None:
        """A first load, a retry, a clear or a backfill: the ledger treats them all alike."""
        starts = data.draw(st.lists(st.sampled_from(sorted(self.windows)), min_size=1, max_size=3, unique=True))
        self.start(starts, parse, repeats)

    def start(self, starts: list[datetime], parse: str, repeats: list[bool]) -> Load:
        pipeline = Pipeline(**{name: getattr(self.pipeline, name) for name in Pipeline.__dataclass_fields__} | {"parse": parse})
        self.ledger.register(pipeline, self.log, self.now)
        attempts = self.ledger.begin_attempts(self.name, starts, "run", 1, self.now)
        for attempt in attempts:
            window = self.windows[attempt.interval.start]
            window.newest_attempt += 1
            assert attempt.number == window.newest_attempt
        engine = create_engine(sqlalchemy_url(self.url))
        tokens, outcomes = [attempt.token for attempt in attempts], []

        def work(pause: Any) -> Any:
            pause_before_transactions(engine, pause)
            driver = Application(
                ledger=Ledger(engine),
                log=self.log,
                client_config={TASKS: Tasks(log=self.log, pause=pause, repeats=itertools.cycle(repeats))},
                now=lambda: self.now,
                report=outcomes.append,
            )
            return driver.load(self.name, tokens)

        load = Load(Stepped(work), engine, {found.interval.start: found.number for found in attempts}, parse, outcomes)
        self.loads.append(load)
        return load

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), steps=st.integers(1, 12))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        load = data.draw(st.sampled_from(self.loads))
        for _ in range(steps):
            self.step(load)

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def go_on_to_the_end(self, data: st.DataObject) -> None:
        self.run_to_the_end(data.draw(st.sampled_from(self.loads)))

    def run_to_the_end(self, load: Load) -> None:
        while not load.driver.is_done:
            self.step(load)
        self.loads.remove(load)
        load.engine.dispose()
        if load.driver.error is not None:
            raise load.driver.error
        states = {outcome.attempt.interval.start: outcome.state for outcome in load.outcomes}
        assert set(states) == set(load.attempts)
        for start, state in states.items():
            self.check_outcome(self.windows[start], load, start, state)

    def check_outcome(self, window: Window, load: Load, start: datetime, state: LoadState) -> None:
        number = load.attempts[start]
        if state is LoadState.SUPERSEDED:
            assert window.newest_attempt > number
        elif state is LoadState.COMMITTED:
            assert window.loaded_attempt is not None
            assert window.loaded_attempt >= number
        else:
            group = [self.windows[other] for other in load.attempts]
            assert not all(self.is_readable(other) for other in group), "nothing was lost, so nothing may fail"

    def step(self, load: Load) -> None:
        """One transaction or one task; it commits only what it was entitled to commit."""
        load.driver.step()
        with self.engine.connect() as connection:
            query = text(f"select starts_at, loaded_attempt from logbus.window where pipeline = '{self.name}'")
            loaded = {row.starts_at: row.loaded_attempt for row in connection.execute(query)}
        for start, window in self.windows.items():
            if loaded[start] != window.loaded_attempt:
                assert loaded[start] == load.attempts.get(start), "only who was told to go on commits"
                assert loaded[start] == window.newest_attempt, "an older attempt has committed"
                window.loaded_attempt, window.rows = loaded[start], self.expected_rows(window, load.parse)

    def expected_rows(self, window: Window, parse: str) -> frozenset[Row]:
        """A single-threaded reading of the window's ranges."""
        parser, start = parser_for(parse, {}), window.frozen.interval.start
        assert window.frozen.topic_id == self.log.ids[self.name], "another topic's records"
        return frozenset(
            (
                start,
                part.partition,
                record.offset,
                is_dead(parser, value_of(window.frozen.topic_id, part.partition, record.offset)),
            )
            for part in window.frozen.ranges
            for record in self.partitions[part.partition].all_records(part.start_offset, part.end_offset)
        )

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """SIGKILL: nothing is reported to the ledger."""
        load = data.draw(st.sampled_from(self.loads))
        load.driver.kill()
        load.engine.dispose()
        self.loads.remove(load)

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def audit(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.windows)))
        window = self.windows[start]
        report = audit_window(self.engine, self.log, self.name, start, self.now, sink_for=sink_for)
        assert report.ok == (window.loaded_attempt is not None), report.problems

    # What must hold at any time

    @invariant()
    def the_table_holds_what_was_committed(self) -> None:
        expected = [row for window in self.windows.values() for row in window.rows]
        assert sorted(self.public()) == sorted(expected)

    def public(self) -> Iterator[Row]:
        dead = (
            'select w.starts_at, "partition", "offset", true from logbus.dead_letter d join logbus.window w on w.id = d.window_id '
            f"where w.pipeline = '{self.name}'"
        )
        rows = f"select _window_start, _partition, _offset, false from {self.name} union all "
        with self.engine.connect() as connection:
            is_there = connection.execute(text(f"select to_regclass('{self.name}') is not null")).scalar_one()
            for row in connection.execute(text((rows if is_there else "") + dead)):
                yield tuple(row)  # type: ignore[misc]

    @invariant()
    def windows_are_disjoint_and_touch(self) -> None:
        for before, after in itertools.pairwise(self.windows[start].frozen for start in sorted(self.windows)):
            ends = {part.partition: part.end_offset for part in before.ranges}
            for part in after.ranges:
                if before.topic_id != after.topic_id or part.partition not in ends:
                    continue
                if before.interval.end == after.interval.start:
                    assert part.start_offset == ends[part.partition]
                else:
                    assert part.start_offset >= ends[part.partition]

    # What must hold at the end

    def teardown(self) -> None:
        """The clock moves on, every hour is frozen and loaded: each record still in the log is in the table, once."""
        try:
            if hasattr(self, "pipeline"):
                self.settle()
        finally:
            for load in self.loads:
                load.driver.kill()
                load.engine.dispose()
            with self.engine.begin() as connection:
                connection.execute(text(f"drop table if exists {self.name}"))

    def settle(self) -> None:
        self.end_transactions(False)
        self.now = at(LAST_HOUR + 4)
        first = FIRST_HOUR - 2 if self.pipeline.starts_at is None else self.pipeline.starts_at.hour
        for number in range(first, LAST_HOUR + 2):
            self.freeze(number)
        readable = [start for start, window in self.windows.items() if window.loaded_attempt is None and self.is_readable(window)]
        if readable:
            self.run_to_the_end(self.start(readable, "lines", [False]))
        self.the_table_holds_what_was_committed()
        self.windows_are_disjoint_and_touch()
        if not any(hour(number).start not in self.windows for number in range(first, LAST_HOUR + 2)):
            self.no_record_is_homeless()
        self.proven.update(histories=1, windows=len(self.windows), rows=sum(len(window.rows) for window in self.windows.values()))

    def no_record_is_homeless(self) -> None:
        held = {
            (part.partition, offset)
            for window in self.windows.values()
            if window.frozen.topic_id == self.log.ids[self.name]
            for part in window.frozen.ranges
            for offset in range(part.start_offset, part.end_offset)
        }
        for number, part in enumerate(self.partitions):
            anchor = self.chain.anchors[number][1]
            first = min((offset for partition, offset in held if partition == number), default=anchor)
            everything = range(anchor if self.pipeline.starts_at is None else first, len(part.stamps_ms))
            assert {(number, offset) for offset in everything} <= held


@pytest.mark.timeout(3600)  # for a long run
def test_no_record_twice_none_missing_windows_disjoint_and_touching(
    postgres_server: EmbeddedPostgres, without_spark: None
) -> None:
    url = postgres_server.create_database("interleavings")
    engine = create_engine(sqlalchemy_url(url))
    proven: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: Interleavings(url, engine, proven),
        settings=settings(
            max_examples=examples(30),
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    engine.dispose()
    assert all(proven[what] > 0 for what in ("histories", "windows", "rows")), f"nothing was tried: {dict(proven)}"
