"""Windows frozen in a real PostgreSQL, over an in-memory log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from logbus import errors
from logbus.kafka.topics import OffsetAndTimestamp
from logbus.model import Interval, WindowState, Witness, milliseconds
from logbus.windows import recovery
from logbus.windows.handover import parse_content
from logbus.windows.rows import HEARTBEAT_EXPIRY

from tests.support.fake_log import NO_TIMESTAMP
from tests.support.ledgers import NOW, World, at, hour, stamps

IN_2099 = milliseconds(datetime(2099, 1, 1, tzinfo=UTC))


def test_an_hour_is_the_offsets_between_its_boundaries(world: World) -> None:
    world.fill(10, 10.5, 11, 11.2, 11.9, 12)
    assert [world.offsets(number) for number in (10, 11, 12)] == [(0, 2), (2, 5), (5, 6)]


def test_a_frozen_window_never_changes_whatever_is_appended_or_asked_again(world: World) -> None:
    world.fill(10, 11)
    before = world.freeze(10)
    world.log.append("t", *stamps(10.1, 10.2, 10.9, 12))
    assert world.freeze(10) == before
    assert before.state is WindowState.FROZEN


def test_a_late_record_belongs_to_a_later_window_and_is_not_lost(world: World) -> None:
    world.fill(10, 11, freeze=[10])
    world.log.append("t", *stamps(10.5, 12))
    assert [world.offsets(number) for number in (10, 11, 12)] == [(0, 1), (1, 3), (3, 4)]


def test_hours_frozen_in_any_order_touch_and_do_not_overlap(world: World) -> None:
    world.fill(10, 11.5, 10.9, 12, 11.1, 13)
    for number in (13, 10, 12, 11):
        world.freeze(number)
    ranges = [world.offsets(number) for number in (10, 11, 12, 13)]
    assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]


def test_a_quiet_hour_is_an_empty_window(world: World) -> None:
    world.fill(10, 13)
    assert world.offsets(11) == (1, 1)
    assert world.freeze(11).record_count == 0


def test_a_quiet_partition_closes_by_the_clock_alone(world: World) -> None:
    world.log.fill("t", [], stamps(10, 10.5))
    world.register()
    assert (world.offsets(10, 0), world.offsets(10, 1)) == ((0, 0), (0, 2))


def test_a_stamp_of_2099_does_not_move_the_boundaries_and_at_the_head_of_the_log_goes_with_the_first_hour(world: World) -> None:
    world.log.append("t", IN_2099, *stamps(10), IN_2099, *stamps(10.5, 11, 12))
    world.register()
    assert [world.offsets(number) for number in (10, 11, 12)] == [(0, 4), (4, 5), (5, 6)]


@pytest.mark.parametrize("unusable", [IN_2099, NO_TIMESTAMP])
def test_a_log_that_begins_without_a_usable_time_loses_none_of_it(world: World, unusable: int) -> None:
    world.log.append("t", unusable, unusable)
    world.register()
    first = world.offsets(9)
    world.log.append("t", unusable, *stamps(10.5, 11))
    assert [first, world.offsets(10), world.offsets(11)] == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize("minutes", [0, 59, 64])
def test_a_window_is_not_frozen_before_its_end_and_lateness_have_passed(world: World, minutes: int) -> None:
    world.register()
    with pytest.raises(errors.WindowNotClosed, match="closes at 2015-05-17T11:05:00Z"):
        world.freeze(10, now=at(10) + timedelta(minutes=minutes))


def test_a_window_is_frozen_as_soon_as_its_lateness_has_passed(world: World) -> None:
    world.register()
    assert world.freeze(10, now=at(11) + timedelta(minutes=5)).interval == hour(10)


def test_an_interval_that_overlaps_a_frozen_window_is_refused(world: World) -> None:
    world.register()
    world.freeze(10)
    with pytest.raises(errors.WindowOverlap, match="overlaps the frozen window"):
        world.ledger.freeze_or_get("p", Interval(at(10), at(12)), world.log, NOW)


def test_a_long_window_takes_everything_since_the_last_hour(world: World) -> None:
    world.fill(10, 12, 15, freeze=[10])
    since_then = world.ledger.freeze_or_get("p", Interval(at(11), at(16)), world.log, NOW)
    assert since_then.record_count == 2


def test_a_pipeline_that_starts_at_an_instant_leaves_earlier_records_alone(world: World) -> None:
    world.fill(9, 10, 11, starts_at=at(10))
    assert world.offsets(10) == (1, 2)
    with pytest.raises(errors.WindowOverlap, match="where pipeline p starts"):
        world.freeze(9)


def test_a_partition_first_seen_later_enters_behind_what_is_frozen_and_loses_nothing(world: World) -> None:
    world.fill(10, 11, freeze=[11])
    new = type(world.log.topics["t"][0])(stamps_ms=stamps(10.5, 11.5, 12.5))
    world.log.topics["t"].append(new)
    assert [part.partition for part in world.freeze(11).ranges] == [0]
    assert world.offsets(10, partition=1) == (0, 0)
    assert world.offsets(12, partition=1) == (0, 3)


def test_registering_again_after_a_partition_was_added_does_not_begin_its_chain_behind_its_records(world: World) -> None:
    """Every run of a DAG registers its pipeline again."""
    world.fill(10, 11, freeze=[10])
    world.log.add_partitions("t", 2)
    world.log.append("t", *stamps(10.5, 11.5), partition=1)
    world.register()
    assert world.offsets(11, partition=1) == (0, 2)


def test_a_partition_added_while_an_hour_is_frozen_is_not_missed_when_a_later_hour_was_faster(world: World) -> None:
    """The process freezing 11 has seen one partition; before it records that, another process freezes 12 with two."""
    world.fill(11, 12, 13, freeze=[10])

    def overtake() -> None:
        world.log.add_partitions("t", 2)
        world.log.append("t", *stamps(11.5, 12.5, 13.5), partition=1)
        world.freeze(12)

    world.log.before("start_offsets", overtake)
    assert [world.offsets(number, partition=1) for number in (11, 12)] == [(0, 1), (1, 2)]


def test_a_broker_that_shows_fewer_partitions_than_windows_have_is_refused(world: World) -> None:
    world.log.create("t", partitions=2)
    world.register()
    world.freeze(10)
    del world.log.topics["t"][1]
    with pytest.raises(errors.BrokerUnavailable, match="the same cluster"):
        world.freeze(11)


def test_a_pipeline_rebased_while_an_hour_is_frozen_freezes_it_on_the_new_topic(world: World) -> None:
    world.fill(10, 11)

    def make_again() -> None:
        world.log.fill("t", stamps(11.2))
        recovery.rebase(world.ledger.engine, "p", world.log, NOW)

    world.log.append("t", IN_2099)
    world.log.before("records", make_again)
    window = world.accept_loss(12)
    assert window.topic_id == world.log.ids["t"]
    world.accept_loss(11)
    assert world.offsets(11) == (0, 1)


def test_a_frozen_window_that_retention_cut_names_the_lost_range(world: World) -> None:
    world.fill(10, 10.1, 10.2, 11, freeze=[10])
    world.log.delete_records("t", before_offset=2)
    with pytest.raises(errors.RecordsLost, match=r"t-0 \[0, 2\)") as caught:
        world.freeze(10)
    assert caught.value.lost == ("t-0 [0, 2)",)


def test_a_frozen_window_whose_loss_is_accepted_keeps_its_boundaries(world: World) -> None:
    world.fill(10, 10.1, 10.2, 11, freeze=[10])
    world.log.delete_records("t", before_offset=2)
    window = world.accept_loss(10)
    assert (world.offsets(10), window.ranges[0].lost, window.record_count, window.head_unknown) == ((0, 3), 2, 1, True)
    world.log.delete_records("t", before_offset=4)
    assert (world.freeze(10).ranges[0].lost, world.freeze(10).record_count) == (3, 0)


def test_nothing_is_given_up_under_an_attempt_that_is_alive(world: World) -> None:
    world.fill(10, 10.1, 11, freeze=[10])
    world.begin(10)
    world.log.delete_records("t", before_offset=1)
    with pytest.raises(errors.UserError, match="nothing of window"):
        world.accept_loss(10)
    assert world.accept_loss(10, now=NOW + 2 * HEARTBEAT_EXPIRY).ranges[0].lost == 1


def test_hours_that_retention_took_before_they_were_frozen_do_not_look_empty(world: World) -> None:
    world.fill(10, 11, 12, 12.5, 13, settings={"max_ahead_minutes": 0})
    world.log.delete_records("t", before_offset=3)
    for number in (10, 11, 12):
        with pytest.raises(errors.RecordsLost, match="below 3"):
            world.freeze(number)
    assert world.offsets(13) == (4, 5)


def test_what_retention_took_may_be_of_the_hour_after_that_of_what_is_left(world: World) -> None:
    """Clocks may be an hour ahead, and records late: what was appended before a record of 12:30 that is still there may be
    stamped 13:20."""
    world.fill(10, 11, 13.3, 12.5, 13, 14)
    world.log.delete_records("t", before_offset=3)
    for number in (10, 11, 12, 13):
        with pytest.raises(errors.RecordsLost, match="below 3"):
            world.freeze(number)
    assert world.offsets(14) == (5, 6)


def test_a_loss_that_was_accepted_does_not_hide_that_of_the_next_hour(world: World) -> None:
    """The boundary frozen with the first hour is where the log was cut, or after a timestamp of 2099: it proves nothing."""
    world.log.append("t", *stamps(10, 11.1, 10.9), 4_070_908_800_000)
    world.register()
    world.log.delete_records("t", before_offset=3)
    world.accept_loss(10)
    with pytest.raises(errors.RecordsLost, match="may have had records that are gone"):
        world.freeze(11)


def test_a_cut_between_two_frozen_boundaries_names_exactly_what_is_lost(world: World) -> None:
    world.fill(10, 11, 11.2, 11.4, 12, freeze=[10])
    world.log.delete_records("t", before_offset=3)
    with pytest.raises(errors.RecordsLost, match=r"t-0 \[1, 3\)"):
        world.freeze(11)


def test_an_accepted_loss_is_on_record_and_the_rest_is_loaded(world: World) -> None:
    world.fill(10, 11, 11.2, 11.4, 12, freeze=[10])
    world.log.delete_records("t", before_offset=3)
    window = world.accept_loss(11)
    assert window.head_unknown
    assert (window.ranges[0].lost, window.ranges[0].readable_from, window.record_count) == (2, 3, 1)


def test_every_hour_that_a_loss_may_have_touched_has_an_unknown_head(world: World) -> None:
    """Partition 1 has lost nothing and is quiet: on its own it makes no hour's head unknown."""
    world.log.create("t", partitions=2)
    world.fill(10, 11, 12, 12.5, 13, 14, settings={"max_ahead_minutes": 0})
    world.log.delete_records("t", before_offset=3)
    windows = {number: (world.accept_loss if number < 13 else world.freeze)(number) for number in (10, 11, 12, 13, 14)}
    assert [number for number, window in windows.items() if window.head_unknown] == [10, 11, 12]
    assert [windows[number].record_count for number in (10, 11, 12, 13)] == [0, 0, 1, 1]
    assert sum(part.lost for window in windows.values() for part in window.ranges) == 3


def test_a_refused_freeze_leaves_nothing_behind(world: World) -> None:
    world.fill(10, 11, 12)
    world.log.delete_records("t", before_offset=2)
    with pytest.raises(errors.RecordsLost):
        world.freeze(10)
    assert world.ledger.windows("p") == []


def test_a_topic_made_again_between_the_questions_is_noticed(world: World) -> None:
    world.fill(10, 11)

    world.log.before("start_offsets", lambda: world.log.create("t"))
    with pytest.raises(errors.TopicRecreated):
        world.freeze(10)


def test_a_log_that_ends_before_a_frozen_boundary_is_refused_and_named(world: World) -> None:
    world.fill(10, 10.1, 10.2, 11, freeze=[10])
    world.log.cut("t", 1)
    with pytest.raises(
        errors.LogChanged, match="t-0 ends at offset 1, and windows are frozen up to 3.*backup.*logbus pipeline rebase p"
    ):
        world.freeze(11)
    assert [window.interval for window in world.ledger.windows("p")] == [hour(10)]


def test_a_log_that_lost_its_end_and_grew_over_it_is_refused_though_the_stamps_are_the_same(world: World) -> None:
    world.fill(10, 10.1, 10.2, 11, freeze=[10])
    world.log.cut("t", 1)
    world.log.append("t", *stamps(10.1, 10.2, 11, 11.1))
    with pytest.raises(
        errors.LogChanged, match=r"t-0 held at offset 2 a record stamped 2015-05-17T10:12:00Z \(epoch 0, .* \(epoch 1, "
    ):
        world.freeze(11)


def test_only_what_lies_behind_the_last_boundary_may_be_cut_without_a_word(world: World) -> None:
    """No window held those records."""
    world.fill(10, 10.1, 11, 11.1, freeze=[10])
    world.log.cut("t", 2)
    world.log.append("t", *stamps(11.2, 12))
    assert world.offsets(11) == (2, 3)


def test_a_log_that_ends_before_the_anchor_is_refused(world: World) -> None:
    world.log.append("t", *stamps(8, 9, 10))
    world.log.delete_records("t", before_offset=2)
    world.register()
    world.log.cut("t", 1)
    with pytest.raises(errors.LogChanged, match="t-0 ends at offset 1, and windows are frozen up to 2"):
        world.freeze(10)


def test_one_partition_that_is_another_log_is_named_and_the_others_are_not(world: World) -> None:
    world.log.fill("t", *[stamps(10, 10.5, 11)] * 3)
    world.register()
    world.freeze(10)
    world.log.cut("t", 1, partition=1)
    world.log.append("t", *stamps(11, 11.5), partition=1)
    with pytest.raises(errors.LogChanged, match="t-1 held at offset 1") as caught:
        world.freeze(11)
    assert not {"t-0", "t-2"} & set(re.findall(r"t-\d", str(caught.value)))


def test_a_log_whose_witnesses_retention_took_is_no_other_log(world: World) -> None:
    world.fill(10, 10.5, 11, 12, freeze=[10])
    world.log.delete_records("t", before_offset=2)
    assert world.offsets(11) == (2, 3)


def test_a_record_before_a_boundary_that_is_gone_is_a_fault_unless_the_pipeline_has_declared_compaction(world: World) -> None:
    world.fill(10, 10.5, 11, 12, freeze=[10])
    world.log.compact("t", 1)
    with pytest.raises(errors.LogChanged, match="t-0 held at offset 1 .* and now none .*offset_gaps"):
        world.freeze(11)
    world.register(settings={"offset_gaps": True})
    assert world.offsets(11) == (2, 3)


@pytest.mark.parametrize("answered", range(5))
def test_compaction_of_the_head_between_the_questions_leaves_a_hole_and_not_a_shorter_hour(world: World, answered: int) -> None:
    world.fill(10, 10.1, 10.2, 11)
    questions: list[str] = []

    def compact(question: str) -> None:
        if len(questions) == answered:
            world.log.compact("t", 0, 1)
        questions.extend([question] if question == "first_at_or_after" else [])

    world.log.interrupt = compact
    assert world.offsets(10) == (0, 3)
    assert len(questions) == 3


def test_a_leader_that_shows_less_for_a_moment_after_its_election_is_no_other_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers ListOffsets only once it knows the high watermark that was exposed; until then a fetch finds no record."""
    world.fill(10, 10.5, 11, 12, freeze=[10])
    questions: list[str] = []
    world.log.interrupt = questions.append
    real = world.log.last_records

    def elected(topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Witness]:
        is_known = questions.count("end_offsets") > 2  # the first two calls are the freeze's own
        return {part: one for part, one in real(topic, ranges).items() if is_known or one.offset != 1}

    monkeypatch.setattr(world.log, "last_records", elected)
    assert world.offsets(11) == (2, 3)
    assert questions.count("end_offsets") == 3


def test_a_boundary_that_somebody_freezes_behind_the_end_we_were_told_is_no_fault(world: World) -> None:
    """The process freezing 10 has read the log's end; the log grows, and another process freezes 12 before the next query."""
    world.fill(10)

    def overtake() -> None:
        world.log.append("t", *stamps(12, 12.5, 13))
        world.freeze(12)

    world.log.before("first_at_or_after", overtake)
    assert [world.offsets(number) for number in (10, 12)] == [(0, 1), (1, 3)]


def test_an_hour_with_records_of_an_open_transaction_waits_for_its_end(world: World) -> None:
    world.fill(10, 10.1, 10.2, 10.3)
    part = world.log.topics["t"][0]
    part.stable_end = 1
    with pytest.raises(errors.TransactionOpen, match=r"t-0 \[1, 4\).*transaction.timeout.ms"):
        world.freeze(10)
    world.log.append("t", *stamps(11))
    with pytest.raises(errors.TransactionOpen, match=r"t-0 \[1, 4\)"):
        world.freeze(10)
    part.stable_end = None
    assert world.offsets(10) == (0, 4)


def test_a_transaction_that_began_after_the_hour_holds_nothing_up(world: World) -> None:
    world.fill(10, 10.1, 11, 11.1)
    world.log.topics["t"][0].stable_end = 2
    assert world.offsets(10) == (0, 2)
    with pytest.raises(errors.TransactionOpen, match=r"t-0 \[2, 4\)"):
        world.freeze(11)


def test_what_is_appended_between_the_questions_is_no_open_transaction(world: World) -> None:
    world.fill(10)
    ends = iter(range(2))

    def append(question: str) -> None:
        if question == "end_offsets" and next(ends) == 1:
            world.log.append("t", *stamps(10.1))
            world.log.interrupt = lambda question: world.log.append("t", *stamps(11.5)) if question == "start_offsets" else None

    world.log.interrupt = append
    assert world.offsets(10) == (0, 2)


def test_a_pipeline_that_reads_uncommitted_records_waits_for_no_transaction(world: World) -> None:
    world.fill(10, 10.1, isolation_level="read_uncommitted")
    world.log.topics["t"][0].stable_end = 1
    assert world.offsets(10) == (0, 2)


def test_every_boundary_keeps_the_last_record_before_it_whatever_lies_between(world: World) -> None:
    """`None` stands for a transaction marker. Hour 13 is empty, and 12 is frozen last."""
    world.log.fill("t", [*stamps(10, 10.5), None, None, *stamps(11), None, *stamps(12, 12.5), None], [])
    world.register()
    for number in (10, 11, 13, 12):
        world.freeze(number)
    rows = world.rows('select "partition", at, witness_offset from logbus.boundary')
    assert {instant.hour: offset for partition, instant, offset in rows if partition == 0} == {
        10: None,
        11: 1,
        12: 4,
        13: 7,
        14: 7,
    }
    assert {offset for partition, _, offset in rows if partition == 1} == {None}


def test_windows_are_handed_over_on_the_log_on_which_they_were_frozen_and_on_no_other(world: World) -> None:
    pipeline = world.fill(10.1, 10.2, 11.1, 11.5, 12.1)
    windows = [world.freeze(number) for number in (10, 11)]
    content = world.ledger.hand_over(pipeline, windows, world.log)
    assert (content["topic_id"], content["witnesses"]["0"][0]) == (world.log.ids["t"], 3)
    world.log.cut("t", 3)
    world.log.append("t", *stamps(11.6, 12.1, 12.2))
    with pytest.raises(errors.LogChanged, match="t-0 held at offset 3"):
        world.ledger.hand_over(pipeline, windows, world.log)
    with pytest.raises(errors.LogChanged, match="t-0 held at offset 3"):
        parse_content(content).refuse_another_log(world.log)
    world.log.create("t")
    for number in (10, 11):
        world.mark(number, loaded_attempt=1)  # a loaded window is given without a look at the log
    with pytest.raises(errors.TopicRecreated, match="was deleted and recreated"):
        world.ledger.hand_over(pipeline, [world.freeze(10)], world.log)


def test_behind_a_stamp_of_2099_each_record_is_read_once_however_many_hours_are_frozen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.append("t", IN_2099, *stamps(*(10 + minute / 60 for minute in range(0, 240, 5))))
    world.register()
    read: list[int] = []
    records = world.log.records

    def counted(topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        for record in records(topic, partition, start_offset, end_offset):
            read.append(record.offset)
            yield record

    monkeypatch.setattr(world.log, "records", counted)
    assert [world.offsets(number) for number in (10, 11, 12)] == [(0, 13), (13, 25), (25, 37)]
    again = {offset for offset, times in Counter(read).items() if times > 1}
    assert again == {0, 1, 13, 25}  # to find the first hour's start; each hour's end is the next one's first record
