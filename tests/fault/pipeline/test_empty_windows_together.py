"""Thousands of empty windows in two transactions, of which the server loses either: it is killed, its disk is full, it says no, it
comes back from a backup, or somebody else is at the same windows. Whatever happens, the next load leaves what loads one by one would.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import AttemptSuperseded, LoadFailed
from logbus.ledger import attempts
from logbus.ledger.ledger import Ledger
from logbus.ledger.table_moves import move
from logbus.model import FrozenWindow, WindowState
from logbus.proof.audit import audit_window
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.warehouse import empty_windows
from logbus.warehouse.commit import commit_window
from logbus.warehouse.embedded import EmbeddedPostgres
from logbus.warehouse.empty_windows import load_empty
from logbus.warehouse.engine import connect
from logbus.warehouse.engine import warehouse_url as sqlalchemy_url
from logbus.warehouse.sinks import sink_for
from sqlalchemy import Connection, Engine, create_engine, text

from tests.support.cutting import Cut
from tests.support.databases import LedgerDatabases
from tests.support.dumps import dump, restored
from tests.support.fake_log import FakeLog
from tests.support.hourly import cut_engine
from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading
from tests.support.postgres import SURVIVES_A_KILL, crash
from tests.support.quiet_hours import EMPTY, TABLES, execute, hours, loaded_together, rows, waiting, windows
from tests.support.small_disk import fill, run_alone, small_disk

ALONE, TOGETHER = 2, range(3, 8)  # an hour loaded by itself, and those that must look the same in the ledger
LOADS, ATTEMPTS = 'update logbus."window" set last_attempt', "insert into logbus.attempt"
AUDITS = 'update logbus."window" set audited_at'

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with (
        tempfile.TemporaryDirectory(prefix="logbus-test-", ignore_cleanup_errors=True) as directory,
        EmbeddedPostgres(Path(directory) / "pg", settings=SURVIVES_A_KILL) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def databases(server: EmbeddedPostgres) -> LedgerDatabases:
    return LedgerDatabases(server)


@pytest.fixture
def warehouse_url(databases: LedgerDatabases) -> Iterator[str]:
    name = databases.take()
    yield databases.url(name)
    databases.give_back(name)


def another_database(server: EmbeddedPostgres) -> str:
    """Empty, without a ledger."""
    return server.create_database(f"together_{next(_numbers)}")


@dataclass
class Behind(Cut):
    """Cuts behind the first statement that begins with the last of `steps`, after one that begins with each of those before it."""

    steps: list[str] = field(default_factory=list)

    def point(self, what: str, connection: Any) -> bool:
        if threading.get_ident() == self.thread and self.steps and " ".join(what.split()).startswith(self.steps[0]):
            self.steps.pop(0)
            if not self.steps:
                self.at = len(self.passed)
        return super().point(what, connection)


def load(engine: Engine, world: World, some: Sequence[FrozenWindow]) -> list[int]:
    """The hours that one load of these windows has loaded and audited."""
    return hours([report for found in load_empty(engine, world.log, "p", some, "together", lambda: NOW) for report in found])


def audit(world: World, number: int) -> None:
    assert audit_window(world.ledger.engine, world.log, "p", at(number), NOW, sink_for).ok


def load_alone(world: World, url: str) -> None:
    Loading(world, url, world.freeze(ALONE)).load()
    audit(world, ALONE)


def complete(world: World, url: str) -> None:
    """Loads what is not loaded, audits what is not audited; then nobody sees by the ledger that it was not all done one by one."""
    found = windows(world, *TOGETHER)
    load(world.ledger.engine, world, [window for window in found if window.loaded_attempt is None])
    for window in windows(world, *TOGETHER):
        if window.audited_at is None:
            audit(world, window.interval.start.hour)
    if world.ledger.window("p", at(ALONE)).loaded_attempt is None:
        load_alone(world, url)
    for table in TABLES:
        assert [rows(world, table, number) for number in TOGETHER] == [rows(world, table, ALONE)] * len(TOGETHER)


def when_loaded(world: World, act: Callable[[], object]) -> None:
    """Has `act` called once, between the two transactions."""

    def interrupt(question: str) -> None:
        if world.ledger.window("p", at(TOGETHER[0])).loaded_attempt is not None:
            world.log.interrupt = lambda question: None
            act()

    world.log.interrupt = interrupt


ONE_OR_NOTHING = (
    "5 windows without a record, 2015-05-17T03:00:00Z to 2015-05-17T08:00:00Z: the connection died; all of them are loaded, "
)
UNAUDITED = (
    "loaded; the connection died while they were audited .*Wait until the warehouse answers. `logbus load --pipeline p --since"
)
NONE, ALL = [WindowState.FROZEN] * len(TOGETHER), [WindowState.LOADED] * len(TOGETHER)
AUDITED = [WindowState.AUDITED] * len(TOGETHER)

# Behind which statements the server is killed, what the load says then, and in which state the windows are.
KILLED = {
    "while it loads": ([LOADS], ONE_OR_NOTHING, NONE),
    "before the load's commit": ([ATTEMPTS, "before commit"], ONE_OR_NOTHING, NONE),
    "when the load's commit is done and nobody knows": ([ATTEMPTS, "after commit"], ONE_OR_NOTHING, ALL),
    "behind the load's commit": ([ATTEMPTS, "SELECT logbus.attempt"], UNAUDITED, ALL),
    "between the sessions of the two": ([], None, AUDITED),  # it is there again when it is asked
    "while it audits": ([AUDITS], UNAUDITED, ALL),
    "when the audit's commit is done and nobody knows": ([AUDITS, "after commit"], UNAUDITED, AUDITED),
}


@pytest.mark.parametrize("when", list(KILLED))
def test_a_server_killed_in_a_load_of_many_leaves_all_or_none(
    quiet: World, server: EmbeddedPostgres, warehouse_url: str, when: str
) -> None:
    steps, said, states = KILLED[when]
    cut = Behind(lambda connection: crash(server), steps=list(steps))
    engine = cut_engine(warehouse_url, cut)
    if said is None:
        when_loaded(quiet, partial(cut.act, None))
        assert load(engine, quiet, windows(quiet, *TOGETHER)) == list(TOGETHER)
    else:
        with pytest.raises(LoadFailed, match=said):
            load(engine, quiet, windows(quiet, *TOGETHER))
    assert cut.is_done == bool(steps)
    assert [window.state for window in windows(quiet, *TOGETHER)] == states
    complete(quiet, warehouse_url)
    engine.dispose()


LAST = 1_000  # hours between two records: more than what fits into the pages that are there


@pytest.mark.parametrize(
    ("is_loaded", "said"),
    [
        (
            False,
            "1,000 windows .*none of them was loaded .*No space left on device.*Make room on the warehouse's disk. `logbus load ",
        ),
        (
            True,
            "1,000 windows .*loaded, and not audited .*No space left on device.*Make room on the warehouse's disk. `logbus load ",
        ),
    ],
)
def test_a_full_disk_leaves_all_or_none_and_says_what_to_do(server: EmbeddedPostgres, is_loaded: bool, said: str) -> None:
    url, postgres = another_database(server), connect(server.url("postgres"))
    name = sqlalchemy_url(url).database
    with small_disk() as disk:
        run_alone(postgres, f"create tablespace small location '{disk}'")
        run_alone(postgres, f"alter database {name} set default_tablespace = small")
        engine = connect(url)
        try:
            run_alone(engine, "create table filler (text text)")
            world = World(ledger=Ledger(engine), log=FakeLog())
            world.log.create("t")
            world.log.append("t", *stamps(1.2, LAST + 2.2))
            world.register()
            plan = world.ledger.plan_load("p", world.log, NOW)
            empty = [window for window in world.ledger.freeze_plan(plan, world.log, NOW) if not window.record_count]
            if is_loaded:
                when_loaded(world, partial(fill, engine))
            else:
                fill(engine)
            with pytest.raises(LoadFailed, match=said):
                load(engine, world, empty)
            state = WindowState.LOADED if is_loaded else WindowState.FROZEN
            found = [window for window in world.ledger.windows("p") if not window.record_count]
            assert {window.state for window in found} == {state}
            run_alone(engine, "drop table filler")
            assert len(load(engine, world, found)) == LAST
            counted = "select number, state, count(*) from logbus.attempt group by number, state order by number"
            with engine.connect() as connection:
                expected = [(number, "committed", LAST) for number in range(1, 2 + is_loaded)]
                assert [tuple(row) for row in connection.execute(text(counted))] == expected
        finally:
            engine.dispose()
            run_alone(postgres, f"drop database {name} with (force)")
            run_alone(postgres, "drop tablespace small")
            postgres.dispose()


@pytest.mark.parametrize("when", ["before it", "between its transactions", "after it"])
def test_a_ledger_that_comes_back_from_a_backup_loads_what_it_lacks_and_knows_its_own_attempts_alone(
    quiet: World, server: EmbeddedPostgres, warehouse_url: str, tmp_path: Path, when: str
) -> None:
    engine, path = quiet.ledger.engine, tmp_path / "warehouse.dump"
    load_alone(quiet, warehouse_url)
    if when == "before it":
        dump(engine, path)
    if when == "between its transactions":
        when_loaded(quiet, lambda: dump(engine, path))
    assert hours(loaded_together(quiet, *TOGETHER)) == list(TOGETHER)
    if when == "after it":
        dump(engine, path)
    since = quiet.ledger.begin_attempts("p", [at(4)], "since the backup", 1, NOW)[0]
    url = another_database(server)
    again = replace(quiet, ledger=Ledger(restored(path, url)))
    complete(again, url)
    # Numbers are given again, and what an attempt of the lost ledger does counts for nothing.
    if when == "after it":
        assert again.ledger.begin_attempts("p", [at(4)], "another", 1, NOW)[0].number == since.number
    else:
        since = replace(since, number=1)  # as the load that was lost, whose keys are others
    with again.ledger.engine.begin() as connection, pytest.raises(AttemptSuperseded, match="restored from a backup since"):
        attempts.lock_if_current(connection, since)
    again.ledger.engine.dispose()


def forget_windows(world: World) -> None:
    execute(world, 'truncate logbus."window", logbus.window_range, logbus.boundary restart identity cascade')


def test_a_load_that_outlives_its_ledger_takes_no_other_hours_for_its_own(
    quiet: World, server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """The windows were frozen after the backup and are frozen again in another order: their ids are other hours' now."""
    forget_windows(quiet)
    dump(quiet.ledger.engine, tmp_path / "warehouse.dump")
    for number in range(1, 9):
        quiet.freeze(number)
    known = windows(quiet, 3, 4)
    again = replace(quiet, ledger=Ledger(restored(tmp_path / "warehouse.dump", another_database(server))))
    for number in (1, 8, 7, 6, 4, 5, 3, 2):
        again.freeze(number)
    taken = {window.id for window in known} & {window.id for window in windows(again, 5, 6, 7)}
    assert taken, "some id is another hour's now"
    load(again.ledger.engine, again, known)
    assert {window.interval.start.hour for window in windows(again) if window.loaded_attempt is not None} <= {3, 4}
    again.ledger.engine.dispose()


@dataclass(frozen=True, kw_only=True)
class Other:
    """Somebody at the same windows, in the middle of whose transaction the load begins. `states` are those of the attempts at
    hour 4 when both are done."""

    prepare: Callable[[World, str], Callable[[Engine], object]]
    behind: str
    states: list[str]


def another_load_of_many(world: World, url: str) -> Callable[[Engine], object]:
    some = windows(world, 6, 5, 4)
    return lambda engine: load(engine, world, some)


def begins_a_load(world: World, url: str) -> Callable[[Engine], object]:
    return lambda engine: Ledger(engine).begin_attempts("p", [at(5), at(4)], "Spark", 1, NOW)


def commits_a_load(world: World, url: str) -> Callable[[Engine], object]:
    sealed = Loading(world, url, world.freeze(4)).begin().create().run_task(7).seal()
    return lambda engine: commit_window(engine, sealed, NOW)


def ends_its_attempts(world: World, url: str) -> Callable[[Engine], object]:
    """Their rows lie in the table from the last to the first, as heartbeats may leave them."""
    begun = world.ledger.begin_attempts("p", [at(number) for number in EMPTY], "Spark", 1, NOW)
    for attempt in reversed(begun):
        world.ledger.heartbeat([attempt], NOW)
    return lambda engine: Ledger(engine).fail_attempts(begun, "no more", NOW)


OTHERS = {
    "another load of many": Other(prepare=another_load_of_many, behind=ATTEMPTS, states=["committed"]),
    "an application that begins": Other(
        prepare=begins_a_load, behind="INSERT INTO logbus.attempt", states=["superseded", "committed"]
    ),
    "an application that commits": Other(prepare=commits_a_load, behind='UPDATE logbus."window" SET', states=["committed"]),
    "an application that ends its attempts": Other(
        prepare=ends_its_attempts, behind="UPDATE logbus.attempt SET state", states=["failed", "committed"]
    ),
}


@pytest.mark.parametrize("who", list(OTHERS))
def test_whoever_is_at_the_same_windows_is_waited_for_and_nothing_is_loaded_twice(
    quiet: World, warehouse_url: str, who: str
) -> None:
    other, errors, has_begun = OTHERS[who], list[BaseException](), threading.Event()
    work = other.prepare(quiet, warehouse_url)

    def let_the_load_wait(connection: Any) -> None:
        has_begun.set()
        wait_until(lambda: waiting(quiet) > 0, what="the session that waits for a lock")

    def run() -> None:
        try:
            work(cut_engine(warehouse_url, Behind(let_the_load_wait, steps=[other.behind])))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert has_begun.wait(PATIENCE_SECONDS)
    assert hours(loaded_together(quiet)) == list(EMPTY)
    thread.join(PATIENCE_SECONDS)
    assert errors == []
    assert [row["state"] for row in rows(quiet, "attempt", 4)] == other.states
    assert {window.state for window in windows(quiet)} == {WindowState.AUDITED}


def rebases(world: World) -> Callable[[], object]:
    """After all records were lost and others came: every window is set aside."""
    for partition in (0, 1):
        world.log.cut("t", 0, partition)
        world.log.append("t", *stamps(1.3), partition=partition)
    return lambda: world.ledger.rebase("p", world.log, NOW)


def moves_to_a_table_of_its_own(world: World) -> Callable[[], object]:
    """Two pipelines share a table in an old ledger: one of them gets another."""
    world.log.create("u")
    world.register(name="q", topic="u", table="u")
    execute(world, "update logbus.pipeline set table_name = 'public.t' where name = 'q'")
    return lambda: move(world.ledger.engine, "q", "q", NOW, is_executed=True)


@pytest.mark.parametrize("prepare", [rebases, moves_to_a_table_of_its_own])
def test_what_changes_all_windows_takes_them_in_the_same_order_as_their_audit(
    quiet: World, prepare: Callable[[World], Callable[[], object]]
) -> None:
    """Later hours were frozen first, as before a backfill: the audit has hours 7 and 6 and waits for 5, for which the other waits."""
    errors = list[BaseException]()
    forget_windows(quiet)
    for number in (1, *reversed(range(2, 9))):
        quiet.freeze(number)

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def let_both_go(third: Connection) -> None:
        wait_until(lambda: waiting(quiet) == 2, what="both sessions that wait for a lock")
        third.rollback()

    threads = list[threading.Thread]()

    def start(work: Callable[[], object]) -> None:
        threads.append(threading.Thread(target=run, args=(work,)))
        threads[-1].start()

    def begin_the_other() -> None:
        attempts.lock_windows(third, "p", [at(5)])
        start(prepare(quiet))
        wait_until(lambda: waiting(quiet) == 1, what="the session that waits for hour 5")
        start(partial(let_both_go, third))

    with quiet.ledger.engine.connect() as third:
        when_loaded(quiet, begin_the_other)
        run(lambda: loaded_together(quiet, *TOGETHER))
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert errors == []
    assert len(threads) == 2


# What the server says, and the settings of the load's sessions that make it say so while another session holds hour 5.
REFUSED = {
    "a lock timeout": ("lock timeout.*pg_stat_activity", ""),
    "a statement timeout": ("statement timeout.*Raise statement_timeout", "-c statement_timeout=10000"),
    "a deadlock": ("deadlock detected.*Let the other transaction end", "-c deadlock_timeout=6000"),
}


@pytest.mark.parametrize("what", list(REFUSED))
@pytest.mark.parametrize("is_loaded", [False, True], ids=["while it loads", "while it audits"])
def test_what_the_server_refuses_is_named_and_leaves_all_or_none(
    quiet: World, warehouse_url: str, monkeypatch: pytest.MonkeyPatch, is_loaded: bool, what: str
) -> None:
    said, options = REFUSED[what]
    monkeypatch.setattr(empty_windows, "COMMIT_LOCK_TIMEOUT_MS", 300 if "lock timeout" in said else 60_000)
    engine = create_engine(sqlalchemy_url(warehouse_url), connect_args={"options": options})
    with quiet.ledger.engine.connect() as other:
        hold = partial(attempts.lock_windows, other, "p", [at(5)])
        if is_loaded:
            when_loaded(quiet, hold)
        else:
            hold()
        if what == "a deadlock":
            other.execute(text("set local deadlock_timeout = '600s'"))  # so that it is not this session that is refused

            def want_what_the_load_holds() -> None:
                wait_until(lambda: waiting(quiet) > 0, what="the session that waits for a lock")
                attempts.lock_windows(other, "p", [at(3)])

            crossing = threading.Thread(target=want_what_the_load_holds)
            crossing.start()
        with pytest.raises(LoadFailed, match=f"{'loaded, and not audited' if is_loaded else 'none of them was loaded'} .*{said}"):
            load(engine, quiet, windows(quiet, *TOGETHER))
        if what == "a deadlock":
            crossing.join(PATIENCE_SECONDS)
        other.rollback()
    assert [window.state for window in windows(quiet, *TOGETHER)] == (ALL if is_loaded else NONE)
    complete(quiet, warehouse_url)
    engine.dispose()
