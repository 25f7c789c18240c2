"""Managed retention with a real ledger, where windows are frozen, loaded and audited, and a log whose records it deletes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.cli.retention import tell_under_way
from logbus.errors import RecordsLost, UserError
from logbus.status.retention_plan import Deletion, RetentionPolicy, TopicPlan
from logbus.status.retention_run import DELETED, UNKNOWN, RetentionRun, RetentionStore, lock_topic
from logbus.waiting import PATIENCE_SECONDS, wait_until
from sqlalchemy import Engine, text

from tests.support.ledgers import World, at
from tests.support.loads import Loading, load_hours

# Eight hours are kept, and it is 20:30 on a day whose hours 8 to 15 hold two records each: hours up to 12 may be deleted.
LATER = at(20.5)
TWO_AN_HOUR = [hour + part for hour in range(8, 16) for part in (0.1, 0.6)]
KEPT = RetentionPolicy(topic="t", retain=timedelta(hours=8), max_hold=timedelta(hours=2))


@pytest.fixture
def retention(world: World) -> RetentionRun:
    """Hours 8 to 15 are frozen; each test loads and audits some of them."""
    world.fill(*TWO_AN_HOUR, freeze=range(8, 16))
    return RetentionRun(world.ledger.engine, world.log)


def load(world: World, *hours: int) -> None:
    load_hours(world, *hours)
    for number in hours:
        assert world.audit(number).ok


def start(world: World) -> int:
    return world.log.topics["t"][0].start_offset


def keep(retention: RetentionRun, now: datetime = LATER, **changes: object) -> None:
    retention.store.set_policy(RetentionPolicy(**{**{name: getattr(KEPT, name) for name in KEPT.__slots__}, **changes}), now)  # type: ignore[arg-type]


def test_a_plan_changes_nothing_and_a_run_deletes_what_it_says(world: World, retention: RetentionRun) -> None:
    load(world, 8, 9)
    keep(retention)
    planned = retention.plan(LATER)
    assert (planned.records, start(world), retention.store.deletions(9)) == (4, 0, [])
    done = retention.run(LATER, "manual")
    assert (done.records, start(world), done.alarms) == (4, 4, ())
    (deletion,) = retention.store.deletions(9)
    assert (deletion["state"], deletion["start_offset"], deletion["end_offset"], deletion["run_id"]) == (DELETED, 0, 4, "manual")
    assert deletion["log_start_offset"] == 4
    assert retention.run(LATER, "again").records == 0


def test_what_is_not_loaded_or_is_loaded_again_stays_until_it_is_done(world: World, retention: RetentionRun) -> None:
    load(world, 8, 10)
    keep(retention)
    assert retention.run(LATER, "manual").plans[0].holds[0].offset == start(world) == 2
    again = Loading.of(world, 9).begin()
    retention.run(LATER, "manual")
    assert start(world) == 2
    again.create().run_task(1).commit()
    assert world.audit(9).ok
    retention.run(LATER, "manual")
    assert start(world) == 6


def waits_for_a_lock(engine: Engine) -> bool:
    query = "select exists(select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())"
    with engine.connect() as connection:
        return bool(connection.execute(text(query)).scalar_one())


# What keeps the records, and what a run says of it.
KEEPING: dict[str, tuple[Callable[[World, RetentionRun], Any], str]] = {
    "a hold": (lambda _, run: run.store.hold("t", "court order", None, LATER), "hold 1 until it is released: court order"),
    "a policy that is removed": (lambda _, run: run.store.remove_policy("t"), "policy was changed or removed"),
    "a policy that keeps more": (lambda _, run: keep(run, retain=timedelta(days=30)), "policy was changed or removed"),
    "a new pipeline": (lambda world, _: world.register(name="q", table="q"), "by pipeline q: "),
    "an attempt": (lambda world, _: world.begin(8), "by pipeline p: "),
}


@pytest.mark.parametrize("question", ["end_offsets", "first_at_or_after"])
@pytest.mark.parametrize(("act", "said"), KEEPING.values(), ids=KEEPING)
def test_what_keeps_records_counts_though_it_comes_while_the_broker_is_asked(
    world: World, retention: RetentionRun, question: str, act: Callable[[World, RetentionRun], Any], said: str
) -> None:
    load(world, 8)
    keep(retention)
    world.log.before(question, lambda: act(world, retention))
    (plan,) = retention.run(LATER, "manual").plans
    assert (plan.records, start(world), retention.store.deletions(9)) == (0, 0, [])
    assert said in " ".join([*plan.notes, *map(str, plan.holds)])


def test_a_window_that_changes_while_the_deletion_is_decided_stops_it(world: World, retention: RetentionRun) -> None:
    load(world, 8)
    keep(retention)
    engine = world.ledger.engine
    with ThreadPoolExecutor(1) as other:
        with engine.begin() as redrive:
            redrive.execute(text("update logbus.window set audited_at = null where starts_at = '2015-05-17T08:00:00Z'"))
            run = other.submit(retention.run, LATER, "manual")
            wait_until(lambda: waits_for_a_lock(engine), what="the session that waits for a lock")
        report = run.result(PATIENCE_SECONDS)
    assert "a window changed, or an attempt at it began" in report.alarms[0]
    assert (start(world), retention.store.deletions(9)) == (0, [])


def test_a_hold_waits_for_a_deletion_that_is_being_decided_and_lists_it(world: World, retention: RetentionRun) -> None:
    load(world, 8, 9)
    keep(retention)
    store, under_way = retention.store, []

    def look() -> None:
        store.hold("t", "court order", None, LATER)
        under_way.extend((deletion.partition, deletion.end_offset) for deletion in store.under_way("t"))

    world.log.before("delete_before", look)
    with ThreadPoolExecutor(1) as other, world.ledger.engine.begin() as deciding:
        lock_topic(deciding, "t")
        order = other.submit(store.hold, "t", "another", None, LATER)
        wait_until(lambda: waits_for_a_lock(world.ledger.engine), what="the session that waits for a lock")
        assert not order.done()
        assert store.holds(LATER) == []
        deciding.commit()
        store.release(order.result(PATIENCE_SECONDS).id, LATER)
    retention.run(LATER, "manual")
    assert (under_way, start(world), store.under_way("t")) == ([(0, 4)], 4, [])


def test_what_a_run_that_was_killed_was_deleting_is_not_under_way_once_there_is_a_later_run(retention: RetentionRun) -> None:
    store = retention.store
    deletion = Deletion(topic="t", topic_id="t", partition=0, start_offset=0, end_offset=4, reason="loaded")
    with store.only_run("killed", LATER) as number:
        store.intend(number, "t", lambda connection: TopicPlan(policy=KEPT, deletions=(deletion,)))
    assert store.under_way("t") == [deletion]
    with store.only_run("later", LATER) as number:
        store.end_run(number, [], None, LATER)
    assert store.under_way("t") == []


class Deleting(RetentionStore):
    """A run is deleting from the topic when somebody looks for the first time, and has ended that when he looks again."""

    def under_way(self, topic: str) -> list[Deletion]:
        found = super().under_way(topic)
        self.settle(1, topic, {0: 4}, LATER)
        return found


@pytest.mark.parametrize("has_ended", [False, True])
def test_whoever_makes_a_hold_is_told_what_was_being_deleted_then(
    retention: RetentionRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_ended: bool
) -> None:
    monkeypatch.setattr("logbus.cli.retention.UNDER_WAY_SECONDS_MAX", 60.0 if has_ended else 0.0)
    deletion = Deletion(topic="t", topic_id="t", partition=0, start_offset=0, end_offset=4, reason="loaded")
    store = (Deleting if has_ended else RetentionStore)(retention.store.engine)
    with store.only_run("manual", LATER) as number:
        store.intend(number, "t", lambda connection: TopicPlan(policy=KEPT, deletions=(deletion,)))
        store.hold("t", "court order", None, LATER)
        tell_under_way(store, "t")
    said = "it has finished, and deletes nothing more" if has_ended else "it has not recorded the outcome yet"
    assert f"a run had already begun to delete partition 0 up to offset 4; {said}" in capsys.readouterr().err


def test_an_order_without_an_answer_is_on_record_as_unknown(world: World, retention: RetentionRun) -> None:
    load(world, 8, 9)
    keep(retention)

    def die() -> None:
        raise RecordsLost("the broker went away")

    world.log.before("delete_before", die)
    report = retention.run(LATER, "manual")
    assert "the broker went away" in report.alarms[0]
    assert [one["state"] for one in retention.store.deletions(9)] == [UNKNOWN]
    retention.run(LATER, "manual")
    assert start(world) == 4
    assert [one["state"] for one in retention.store.deletions(9)] == [DELETED, UNKNOWN]


def test_overdue_hours_are_an_alarm_every_time(world: World, retention: RetentionRun) -> None:
    keep(retention)
    for _ in range(2):
        (alarm,) = retention.run(LATER, "manual").alarms
        assert "pipeline p has held back 9 records for 3.5 hours, 2 hours are allowed" in alarm
    assert start(world) == 0


def test_overdue_hours_are_deleted_only_when_told_so_and_the_ledger_names_the_loss(world: World, retention: RetentionRun) -> None:
    keep(retention, when_overdue="delete")
    report = retention.run(LATER, "manual")
    assert [window.interval.start for window in report.plans[0].given_up] == [at(8), at(9)]
    assert start(world) == 4
    with pytest.raises(RecordsLost, match=r"t-0 \[0, 2\)"):
        world.freeze(8)


def test_hours_of_a_pipeline_that_stands_still_are_frozen_before_they_are_given_up(world: World) -> None:
    world.fill(*TWO_AN_HOUR)
    retention = RetentionRun(world.ledger.engine, world.log)
    keep(retention, when_overdue="delete")
    retention.run(LATER, "manual")
    assert [window.interval.start for window in world.ledger.windows("p")] == [at(8), at(9)]
    assert start(world) == 4


def test_a_hold_stops_a_topic_until_it_ends_or_is_released(world: World, retention: RetentionRun) -> None:
    load(world, 8)
    keep(retention)
    hold = retention.store.hold("t", "a look at yesterday", at(21), LATER)
    assert retention.run(LATER, "manual").records == 0
    retention.store.release(hold.id, LATER)
    retention.store.hold("t", "another", at(20.75), LATER)
    assert retention.run(LATER, "manual").records == 0
    assert retention.run(at(20.75), "manual").records == 2


def test_a_hold_of_a_topic_from_which_no_run_deletes_says_so(retention: RetentionRun, warehouse_url: str) -> None:
    def hold(topic: str) -> tuple[str, str]:
        words = ["retention", "hold", topic, "--reason", "a look at yesterday", "--warehouse", warehouse_url]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    mistyped, note = hold("tt")
    assert mistyped == "topic tt: hold 1 until it is released: a look at yesterday\n"
    assert "topic tt is not managed and no pipeline in the ledger reads it" in note
    assert "so this hold has no effect; topics it knows: t. If" in note
    assert "`logbus retention release 1`" in note
    unmanaged, note = hold("t")
    assert unmanaged.startswith("topic t: hold 2 ")
    assert "topic t is not managed, so the broker still deletes by the topic's own limits: `logbus retention adopt t`" in note
    keep(retention)
    assert hold("t")[1] == ""


def test_a_hold_without_sense_is_refused(retention: RetentionRun) -> None:
    with pytest.raises(UserError, match="would already be over"):
        retention.store.hold("t", "a reason", at(3), LATER)
    with pytest.raises(UserError, match="needs a reason"):
        retention.store.hold("t", " ", None, LATER)
    with pytest.raises(UserError, match="no hold 77 is in force"):
        retention.store.release(77, LATER)


def test_two_runs_do_not_work_beside_each_other(retention: RetentionRun) -> None:
    keep(retention)
    other = RetentionStore(retention.store.engine)
    with other.only_run("the first", LATER), pytest.raises(UserError, match="another retention run is under way"):
        retention.run(LATER, "the second")
    assert retention.run(LATER, "afterwards").number


def test_a_topic_that_is_gone_is_an_alarm_and_the_others_go_on(world: World, retention: RetentionRun) -> None:
    load(world, 8, 9)
    keep(retention)
    keep(retention, topic="gone")
    report = retention.run(LATER, "manual")
    assert "no topic 'gone'" in report.alarms[0]
    assert start(world) == 4


def test_adopting_takes_the_topics_own_limits_over_and_giving_back_restores_them(world: World, retention: RetentionRun) -> None:
    world.log.change_settings("t", {"retention.ms": "28800000", "retention.bytes": "1000"})
    policy = retention.adopt("t", LATER)
    assert (policy.retain, policy.retain_bytes) == (timedelta(hours=8), 1000)
    assert retention.store.policies() == [policy]
    assert world.log.own_settings["t"] == {"retention.ms": "-1", "retention.bytes": "-1"}
    with pytest.raises(UserError, match="no limit of its own to adopt"):
        retention.adopt("t", LATER)
    retention.give_back("t")
    assert world.log.own_settings["t"] == {"retention.ms": "28800000", "retention.bytes": "1000"}
    assert retention.store.policies() == []


def test_a_topic_that_no_pipeline_reads_is_not_adopted(world: World, retention: RetentionRun) -> None:
    world.log.create("other")
    with pytest.raises(UserError, match="no pipeline reads topic other"):
        retention.adopt("other", LATER)


def test_a_topic_that_is_only_compacted_is_not_adopted(world: World, retention: RetentionRun) -> None:
    world.log.change_settings("t", {"cleanup.policy": "compact"})
    with pytest.raises(UserError, match="topic t is only compacted"):
        retention.adopt("t", LATER)
    assert "retention.ms" not in world.log.own_settings["t"]


def test_a_topic_without_a_policy_says_how_to_give_it_one(retention: RetentionRun) -> None:
    with pytest.raises(UserError, match="`logbus retention set` sets others"):
        retention.plan(LATER, ["t"])


def test_what_is_held_back_is_said_in_metrics(world: World, retention: RetentionRun) -> None:
    keep(retention)
    assert retention.plan(LATER).metrics() == [
        'logbus_retention_held_records{topic="t",partition="0",pipeline="p"} 9',
        'logbus_retention_held_seconds{topic="t",partition="0",pipeline="p"} 12600',
    ]
