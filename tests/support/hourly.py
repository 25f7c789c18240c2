"""A run of a small pipeline from registration to audit, as a DAG's tasks do it, and the check of its result.

Two hours, two partitions, the log in memory, the real warehouse; `tests.support.in_process.without_spark` is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from logbus.errors import LogbusError
from logbus.loads.audit import audit_window
from logbus.loads.engine import warehouse_url as sqlalchemy_url
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.model import Pipeline, WindowState
from logbus.parsing import parser_for
from logbus_spark.application import LoadState, WindowOutcome
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.support import oracle
from tests.support.cutting import Act, Cut, Killed
from tests.support.fake_log import FakeLog
from tests.support.in_process import TASKS, Tasks, driver
from tests.support.ledgers import NOW, at, hour, stamps

HOURS = (10, 11)


@dataclass
class Hourly:
    """One pipeline over two hours of two partitions, and a whole run over it."""

    url: str
    engine: Engine
    log: FakeLog
    name: str
    tasks: Tasks = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = Tasks(log=self.log)

    @classmethod
    def make(cls, url: str, engine: Engine, name: str) -> Hourly:
        log = FakeLog()
        log.fill(name, stamps(10, 10.2, 10.4, 11, 11.3, 12), stamps(10.1, 10.9, 11.5))
        return cls(url, engine, log, name)

    def run(self, engine: Engine) -> list[WindowOutcome]:
        """What a DAG's tasks do, one after another."""
        ledger = Ledger(engine)
        ledger.register(Pipeline(name=self.name, topic=self.name, table=self.name, parse="lines"), self.log, NOW)
        for number in HOURS:
            ledger.freeze_or_get(self.name, hour(number), self.log, NOW)
        attempts = ledger.begin_attempts(self.name, [at(number) for number in HOURS], "run", 1, NOW)
        tokens = [attempt.token for attempt in attempts]
        outcomes = driver(ledger, self.log, {TASKS: self.tasks}).load(self.name, tokens)
        for number in HOURS:
            audit_window(engine, self.log, self.name, at(number), NOW, sink_for=sink_for)
        return outcomes

    def check(self) -> set[int]:
        """Assert that the table holds exactly the windows that the ledger has as loaded; return their hours."""
        with self.engine.connect() as connection:
            has_ledger = connection.scalar(text("select to_regclass('logbus.pipeline') is not null"))
            if not has_ledger or not connection.scalar(text(f"select count(*) from logbus.pipeline where name = '{self.name}'")):
                return set()
        windows = [window for window in Ledger(self.engine).windows(self.name) if window.loaded_attempt is not None]
        expected = oracle.expected(windows, oracle.everything_in(self.log, self.name), parser_for("lines", {}))
        assert oracle.found(self.engine, self.name, self.name) == expected
        return {window.interval.start.hour for window in windows}

    def settle(self) -> None:
        """Run again, undisturbed: everything is loaded and audited, and no staging table is left."""
        assert [outcome.state for outcome in self.run(self.engine)] == [LoadState.COMMITTED] * len(HOURS)
        assert self.check() == set(HOURS)
        assert [window.state for window in Ledger(self.engine).windows(self.name)] == [WindowState.AUDITED] * len(HOURS)
        with self.engine.connect() as connection:
            assert connection.scalar(text("select count(*) from pg_tables where schemaname = 'logbus_staging'")) == 0


def cut_engine(url: str, cut: Cut) -> Engine:
    engine = create_engine(sqlalchemy_url(url), pool_pre_ping=True)
    engine.connect().close()  # the dialect's own first queries are not part of the run
    return cut.on(engine)


def cut_at(url: str, hourly: Hourly, act: Act, point: int) -> str:
    """Cut a run at the point. Returns what the point was."""
    cut = Cut(act, point)
    broken = cut_engine(url, cut)
    try:
        what_is_said_is_true(hourly, hourly.run(broken))
    except (Killed, DBAPIError, LogbusError):
        pass
    finally:
        broken.dispose()
    assert cut.is_done, f"the run has no point {point} this time"
    return cut.passed[point]


def what_is_said_is_true(hourly: Hourly, outcomes: list[WindowOutcome]) -> None:
    """A window is reported as committed exactly if it is."""
    for outcome in outcomes:
        window = Ledger(hourly.engine).window(hourly.name, outcome.attempt.interval.start)
        assert (outcome.state is LoadState.COMMITTED) == (window.loaded_attempt == outcome.attempt.number), outcome
