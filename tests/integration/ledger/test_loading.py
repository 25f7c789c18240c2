from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from logbus import loading, spark_submit
from logbus.errors import AttemptSuperseded, LoadFailed, WindowBusy
from logbus.loading import Audits, Load, Loader, how_far, next_to_load
from logbus.model import WindowState
from logbus.resident_driver import ResidentDriver
from logbus.waiting import wait_until

from tests.support.ledgers import NOW, World, at
from tests.support.loads import Loading, load_hours


def ends_well(pipeline_name: str, arguments: Sequence[str], **chosen: object) -> list[str]:
    """Stands in for spark-submit: loads nothing."""
    return [sys.executable, "-m", "tests.support.staying_program", *arguments]


@pytest.fixture
def loader(world: World, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setattr(spark_submit, "command", ends_well)
    url = world.ledger.engine.url.render_as_string(hide_password=False)
    return Loader(warehouse_url=url, client_config={}, now=lambda: NOW, say=lambda line: None)


def frozen(world: World) -> None:
    """Freezes hour 1 of a log without records."""
    world.register()
    world.freeze(1)


def load_first_hour(loader: Loader) -> None:
    loader.reload(Load(pipeline="p"), [at(1)])


def test_an_application_that_ends_well_and_commits_nothing_has_not_loaded(world: World, loader: Loader) -> None:
    frozen(world)
    with pytest.raises(LoadFailed, match="2015-05-17T01:00:00Z: attempt 1 is failed"):
        load_first_hour(loader)


def test_a_load_that_somebody_took_over_says_so(world: World, loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen(world)

    def take_over(*arguments: object) -> None:
        world.ledger.begin_attempts("p", [at(1)], "another", 1, NOW)

    monkeypatch.setattr(Loader, "submit", take_over)
    with pytest.raises(AttemptSuperseded, match="attempt 2 of run another took over from attempt 1 and is at work on it"):
        load_first_hour(loader)


@pytest.fixture
def between(world: World, loader: Loader, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Hours 1 and 4 hold records, 2 and 3 none; any Spark application loads nothing and exits with status 1."""
    world.fill(1.2, 4.2)
    monkeypatch.setattr(loading, "Topics", lambda client: world.log)
    monkeypatch.setattr(spark_submit, "command", lambda *given, **chosen: ["false"])
    return loader


def states(world: World) -> list[WindowState]:
    return [window.state for window in world.ledger.windows("p")]


def test_empty_windows_are_exact_though_the_others_fail(world: World, between: Loader) -> None:
    with pytest.raises(LoadFailed, match="ended with code 1"):
        between.load(Load(pipeline="p"))
    assert states(world) == [WindowState.FROZEN, WindowState.AUDITED, WindowState.AUDITED, WindowState.FROZEN]


def test_a_load_of_empty_windows_alone_starts_no_spark(world: World, between: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    load_hours(world, 1, 4)
    monkeypatch.setattr(ResidentDriver, "start", lambda driver: pytest.fail("Spark is not needed"))
    said: list[str] = []
    reports = replace(between, say=said.append).load(Load(pipeline="p", only_missing=True))
    assert [(report.window.interval.start, report.verdict) for report in reports] == [(at(n), "exact") for n in (1, 2, 3, 4)]
    left = "loaded before and not audited: 2 windows, audited now"
    assert said == ["2 closed windows, 0 records", "without any record, by their boundaries: 2 windows", left]


def test_what_a_run_has_loaded_is_audited_while_it_loads_on_and_what_it_will_replace_is_not_taken_for_it(world: World) -> None:
    world.fill(1.2, 2.2)
    load_hours(world, 2)
    run = spark_submit.LoadRun(ledger=world.ledger, pipeline_name="p", run_id="r", now=lambda: NOW, say=print)
    audits = Audits(ledger=world.ledger, log=world.log, pipeline_name="p", now=lambda: NOW)
    first = Loading.of(world, 1)
    with audits.beside(run):
        first.load()
        run.attempts += [first.attempt, *world.begin(2)]
        wait_until(lambda: not world.ledger.unaudited("p"), what="the audits")
    assert [*audits.reports] == [at(1)]
    audits.complete([at(1), at(2)])
    assert [report.verdict for report in audits.reports.values()] == ["exact", "exact"]


def test_the_next_load_audits_what_an_interrupted_one_left_and_what_an_audit_found_wrong_it_leaves(
    world: World, between: Loader
) -> None:
    load_hours(world, 1, 2, 3, 4)
    world.execute("delete from t where _offset = 0")
    wanted = Load(pipeline="p", only_missing=True)
    assert [report.ok for report in between.load(replace(wanted, until=at(3)))] == [False, True]
    assert [report.window.interval.start for report in between.load(replace(wanted, since=at(3)))] == [at(3), at(4)]
    assert between.load(wanted) == []
    assert states(world) == [WindowState.LOADED, *[WindowState.AUDITED] * 3]


def test_windows_that_another_run_is_working_on_are_not_taken_from_it_unless_asked(world: World, between: Loader) -> None:
    world.freeze(1)
    world.ledger.begin_attempts("p", [at(1)], "a backfill", 1, NOW)
    with pytest.raises(
        WindowBusy, match="1 of these windows: attempt 1 at 2015-05-17T01:00:00Z by run a backfill, last .*--supersede"
    ):
        between.load(Load(pipeline="p"))
    assert {window.last_attempt for window in world.ledger.windows("p", at(2))} == {0}
    with pytest.raises(LoadFailed, match="ended with code 1"):
        between.load(Load(pipeline="p", supersede=True))
    assert world.ledger.window("p", at(1)).last_attempt == 2


def test_an_empty_window_is_nobodys_and_a_killed_runs_attempt_at_it_is_ended_where_asked(world: World, between: Loader) -> None:
    load_hours(world, 1, 4)
    world.freeze(2)
    world.ledger.begin_attempts("p", [at(2)], "killed", 1, NOW)
    span = Load(pipeline="p", since=at(2), until=at(4))
    assert [report.window.interval.start for report in between.load(span)] == [at(2), at(3)]  # frozen before, and now
    assert list(world.ledger.at_work_elsewhere("p", [at(2)], None, NOW)) == [at(2)]
    assert [report.verdict for report in between.load(replace(span, supersede=True))] == ["exact", "exact"]
    assert world.ledger.at_work_elsewhere("p", [at(2)], None, NOW) == {}


def test_empty_windows_that_were_frozen_before_are_listed_with_those_around_them(world: World, between: Loader) -> None:
    for number in (1, 2, 3, 4):
        world.freeze(number)
    plan = world.ledger.plan_load("p", world.log, NOW)
    assert [window.interval.start for window in world.ledger.freeze_plan(plan, world.log, NOW)] == [at(n) for n in (1, 2, 3, 4)]
    assert (plan.count, plan.to_load) == (4, 2)
    assert world.ledger.plan_load("p", world.log, NOW, only_missing=True).count == 2


def test_windows_that_another_run_takes_while_a_load_is_under_way_are_left_to_it(
    world: World, between: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_elsewhere(workers: object) -> None:
        """After the first look at who is at work."""
        world.ledger.begin_attempts("p", [at(1)], "a backfill", 1, NOW)

    monkeypatch.setattr(loading, "refuse_busy", begin_elsewhere)
    with pytest.raises(WindowBusy, match="attempt 1 at 2015-05-17T01:00:00Z by run a backfill"):
        between.load(Load(pipeline="p"))
    assert {window.last_attempt for window in world.ledger.windows("p", at(2))} == {0}
    assert world.ledger.window("p", at(1)).last_attempt == 1


def test_an_interrupt_says_how_far_the_load_came(world: World, loader: Loader) -> None:
    frozen(world)
    said: list[str] = []

    def interrupted_by_first_line(line: str) -> None:
        said.append(line)
        if line.startswith("process"):  # the driver's, which is at work
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_first_hour(replace(loader, say=interrupted_by_first_line))
    assert said[-1] == how_far("p", loaded=0, audited=0, count=1)
    with pytest.raises(LoadFailed, match="attempt 2 is failed"):  # the first has ended and blocks nothing
        load_first_hour(loader)


def test_what_an_interrupted_load_leaves_is_counted() -> None:
    rest = "`logbus load --pipeline p --only-missing` loads and audits the rest"
    assert how_far("p", loaded=1, audited=1, count=3) == f"1 of 3 windows is loaded for good: {rest}"
    unaudited = "2 of them not audited"
    assert how_far("p", loaded=1_002, audited=1_000, count=2_000) == (
        f"1,002 of 2,000 windows are loaded for good, {unaudited}: {rest}"
    )


def test_a_load_of_nothing_says_when_to_come_back(world: World) -> None:
    pipeline = world.register()
    assert next_to_load(pipeline, Load(pipeline="p"), NOW) == (
        "the window of 2026-11-21T12:00:00Z is open until 2026-11-21T13:05:00Z: load it then"
    )
    later = Load(pipeline="p", since=NOW.replace(year=2030, minute=0))
    assert next_to_load(pipeline, later, NOW) == (
        "2030-11-21T12:00:00Z is in the future: its window can be loaded from 2030-11-21T13:05:00Z on"
    )
    past = Load(pipeline="p", until=at(3))
    assert next_to_load(pipeline, past, NOW).startswith("every window before 2015-05-17T03:00:00Z is loaded already")
