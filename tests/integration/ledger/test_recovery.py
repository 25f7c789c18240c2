"""A pipeline continues after its topic was recreated or its log replaced; what may be lost is named and never called exact."""

from __future__ import annotations

from datetime import datetime

import pytest
from logbus.errors import AnotherCluster, LogChanged, RecordsLost, UserError
from logbus.model import AuditReport, FrozenWindow, WindowState
from logbus.status.lag import lag_of
from logbus.windows import recovery
from logbus.windows.catch_up import freeze_between
from logbus.windows.recovery import Rebase

from tests.support.ledgers import NOW, World, at, hour, stamps
from tests.support.loads import Loading

SOON = at(16.5)

CLOCKS = {"max_ahead_minutes": 0}  # no clock runs ahead, so no extra hour is in doubt


def rebase(world: World, now: datetime = SOON) -> Rebase:
    done = recovery.rebase(world.ledger.engine, "p", world.log, now)
    assert done is not None
    return done


def accept(world: World, number: int, reason: str = "the disk is gone") -> FrozenWindow:
    return recovery.accept_loss(world.ledger.engine, "p", hour(number), world.log, SOON, by="mary", reason=reason)


def load(world: World, number: int) -> AuditReport:
    Loading.of(world, number).load()
    return world.audit(number)


@pytest.fixture
def made_again(world: World) -> World:
    """Hour 10 was loaded and 11 frozen, 12 and 13 were not, when the topic was recreated; its new records begin at 13:30."""
    world.fill(10, 10.5, 11, 12, 13, settings=CLOCKS)
    load(world, 10)
    world.freeze(11)
    world.log.fill("t", stamps(13.5, 14, 15))
    return world


def test_every_hour_whose_records_may_be_gone_is_named_and_refused(made_again: World) -> None:
    done = rebase(made_again)
    assert list(done.hours()) == [hour(12), hour(13)]
    assert done.unloaded == (hour(11),)
    for number in (12, 13):
        with pytest.raises(RecordsLost, match=f"2015-05-17T{number}.*`logbus window accept-loss --pipeline p"):
            made_again.freeze(number)
    assert made_again.offsets(14) == (1, 2)
    assert made_again.ledger.window("p", at(11)).head_unknown
    assert not made_again.ledger.window("p", at(10)).head_unknown


def test_records_of_clocks_that_run_ahead_may_be_of_a_later_hour_than_the_former_topic_lived(world: World) -> None:
    """The default allows an hour: what was written at 13:30 may be stamped 14:30."""
    world.fill(10, 11, freeze=[10])
    world.log.fill("t", stamps(13.5, 14, 15, 16))
    assert list(rebase(world).hours()) == [hour(11), hour(12), hour(13), hour(14)]
    with pytest.raises(RecordsLost):
        world.freeze(14)
    assert world.offsets(15) == (2, 3)


def test_an_hour_before_the_last_window_that_was_left_out_does_not_become_an_empty_one(world: World) -> None:
    world.fill(10, 11, 12, 13, freeze=[12], settings=CLOCKS)
    world.log.fill("t", stamps(14))
    rebase(world)
    for number in (10, 11):
        with pytest.raises(RecordsLost):
            world.freeze(number)


def test_hours_that_lost_what_they_had_are_not_frozen_in_bulk_as_empty_ones(world: World) -> None:
    world.fill(10, freeze=[10], settings=CLOCKS)
    world.log.fill("t", stamps(14.5, 17))
    rebase(world)
    first, last = accept(world, 11), world.freeze(15)
    assert list(freeze_between(world.ledger.engine, world.ledger.pipeline("p"), first, last, NOW)) == []
    with pytest.raises(RecordsLost):
        world.freeze(12)


def test_an_accepted_loss_is_loaded_and_says_so_for_ever_and_is_never_called_exact(made_again: World) -> None:
    rebase(made_again)
    for number, left in ((11, 0), (12, 0), (13, 1)):
        window = accept(made_again, number)
        assert (window.record_count, window.head_unknown) == (left, True)
        report = load(made_again, number)
        assert (report.problems, report.verdict) == ((), "loss accepted")
        assert any("accepted by mary at 2015-05-17T16:30:00Z: the disk is gone" in note for note in report.notes)
        assert made_again.ledger.window("p", at(number)).state is WindowState.AUDITED
    assert load(made_again, 14).verdict == "exact"


def test_who_accepted_a_loss_first_stays(made_again: World) -> None:
    rebase(made_again)
    accept(made_again, 12, "first")
    assert accept(made_again, 12, "second").loss_accepted == {"by": "mary", "at": "2015-05-17T16:30:00Z", "reason": "first"}


def test_a_loss_that_is_none_cannot_be_accepted(made_again: World) -> None:
    rebase(made_again)
    with pytest.raises(UserError, match="nothing of window .* is lost"):
        accept(made_again, 14)


@pytest.mark.parametrize("already_sent", [(), (9.5, 11)])
def test_a_new_topic_without_evidence_of_when_it_began_marks_all_hours_up_to_now(
    world: World, already_sent: tuple[float, ...]
) -> None:
    """It is empty, or was first sent older logs."""
    world.fill(10, freeze=[10], settings=CLOCKS)
    world.log.fill("t", stamps(*already_sent))
    assert list(rebase(world, now=at(13.5)).hours()) == [hour(11), hour(12), hour(13)]
    world.log.append("t", *stamps(13.9, 14))
    with pytest.raises(RecordsLost):
        world.freeze(13)
    assert world.freeze(14).record_count == 1


def test_a_pipeline_that_has_frozen_nothing_has_lost_what_came_before_the_new_topics_first_record(world: World) -> None:
    world.fill(10, 11, settings=CLOCKS)
    world.log.fill("t", stamps(12.5, 13))
    done = rebase(world)
    assert (done.since, done.until) == (None, at(13))
    with pytest.raises(RecordsLost):
        world.freeze(12)
    assert world.freeze(13).record_count == 1


def test_a_rebase_onto_the_same_log_does_nothing(world: World) -> None:
    world.fill(10, 11, freeze=[10], settings=CLOCKS)
    assert recovery.rebase(world.ledger.engine, "p", world.log, NOW) is None
    assert world.offsets(11) == (1, 2)


@pytest.fixture
def restored(world: World) -> World:
    """Hours 10 and 11 are loaded, 12 is frozen; then the log was truncated within hour 11 and grew again."""
    world.fill(10, 10.5, 11, 11.2, 11.5, 12, 13, settings=CLOCKS)
    for number in (10, 11):
        load(world, number)
    world.freeze(12)
    world.log.cut("t", 3)
    world.log.append("t", *stamps(14, 14.5, 15, 16, 17))
    return world


def test_a_log_that_became_another_one_goes_on_behind_what_still_holds(restored: World) -> None:
    with pytest.raises(LogChanged, match="logbus pipeline rebase p"):
        restored.freeze(13)
    done = rebase(restored)
    assert (done.since, done.until, done.unloaded, done.again) == (at(13), SOON, (hour(12),), ("t-0 [2, 6)",))
    assert accept(restored, 13).record_count == 1, (
        "the record of hour 11 that the log still holds; it is loaded twice, and that is said"
    )
    assert load(restored, 13).verdict == "loss accepted"
    assert [accept(restored, number).record_count for number in (14, 15)] == [2, 1]
    assert restored.freeze(17, now=NOW).record_count == 1
    assert recovery.rebase(restored.ledger.engine, "p", restored.log, SOON) is None


def test_windows_whose_records_still_lie_there_can_be_loaded_again_and_the_others_cannot(restored: World) -> None:
    rebase(restored)
    ids = {window.interval.start.hour: window.topic_id for window in restored.ledger.windows("p")}
    assert ids[10] == restored.log.ids["t"]
    assert ids[11] == ids[12] == f"{restored.log.ids['t']} until 2015-05-17T16:30:00Z"
    assert [restored.ledger.window("p", at(number)).state for number in (10, 11)] == [WindowState.AUDITED] * 2


def test_a_log_that_is_only_shorter_goes_on_at_its_end_and_loses_nothing_that_comes(world: World) -> None:
    world.fill(10, 10.5, 11, freeze=[10], settings=CLOCKS)
    world.log.cut("t", 1)
    rebase(world)
    world.log.append("t", *stamps(16, 17))
    assert accept(world, 11).record_count == 1
    assert world.freeze(17).record_count == 1


def test_a_partition_that_is_what_it_was_goes_on_as_if_nothing_were(world: World) -> None:
    world.log.fill("t", *[stamps(10, 11, 12)] * 2)
    world.register(settings=CLOCKS)
    world.freeze(10)
    world.log.cut("t", 0, partition=1)
    rebase(world)
    window = accept(world, 11)
    assert {part.partition: (part.start_offset, part.end_offset) for part in window.ranges} == {0: (1, 2), 1: (0, 0)}


def test_a_pipeline_that_comes_back_to_a_topic_goes_on_where_it_left_it(world: World) -> None:
    """A rebase onto a wrong broker, and back."""
    world.fill(10, 11, 12, 13, freeze=[10], settings=CLOCKS)
    right, right_id = world.log.topics["t"], world.log.ids["t"]
    world.log.create("t")
    rebase(world, now=at(13))
    assert [accept(world, number).record_count for number in (11, 12)] == [0, 0]
    world.log.topics["t"], world.log.ids["t"] = right, right_id
    rebase(world)
    window = accept(world, 13)
    assert (window.ranges[0].start_offset, window.record_count) == (1, 3)


def test_another_cluster_is_not_taken_for_a_topic_that_was_made_again(world: World) -> None:
    world.fill(10, 11, freeze=[10], settings=CLOCKS)
    world.log.create("t")
    world.log.cluster = "the wrong one"
    engine, said = world.ledger.engine, "is on topic t of cluster fake, .* belongs to the wrong one. Name the right one"
    for ask in (
        lambda: world.freeze(11),
        lambda: recovery.rebase(engine, "p", world.log, NOW),
        lambda: world.ledger.gaps("p", world.log, NOW),
        lambda: lag_of(engine, world.log, "p", NOW),
    ):
        with pytest.raises(AnotherCluster, match=said):
            ask()
    assert recovery.rebase(engine, "p", world.log, NOW, other_cluster=True) is not None


def test_a_broker_that_has_no_such_topic_may_be_of_another_cluster(world: World) -> None:
    world.register(settings=CLOCKS)
    world.freeze(10)
    del world.log.topics["t"]
    world.log.cluster = "the wrong one"
    with pytest.raises(AnotherCluster):
        world.freeze(11)
