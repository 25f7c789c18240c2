from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from logbus.errors import GroupActive, TopicMissing, TopicRecreated, UserError
from logbus.model import OffsetRange
from logbus.status import group_offsets
from logbus.status.group_offsets import Target, TopicChoice

from tests.support.fake_groups import FakeGroups
from tests.support.fake_ledger import window
from tests.support.fake_log import FakeLog

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
FIRST_MS = int(START.timestamp() * 1000)


@pytest.fixture
def log() -> FakeLog:
    """Two partitions with ten records each, a second apart; the first two of partition 1 are deleted."""
    log = FakeLog.of("t", *2 * [range(FIRST_MS, FIRST_MS + 10_000, 1000)])
    log.delete_records("t", 2, partition=1)
    return log


@pytest.fixture
def groups(groups: FakeGroups) -> FakeGroups:
    groups.commit("g", {("t", 0): 4})
    return groups


def new_offsets(groups: FakeGroups, log: FakeLog, target: Target, *choices: str) -> list[int]:
    chosen = [TopicChoice.parse(choice) for choice in choices or ["t"]]
    return [move.new for move in group_offsets.plan(groups, log, "g", chosen, target)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (group_offsets.earliest, [0, 2]),
        (group_offsets.latest, [10, 10]),
        (group_offsets.current, [4, 10]),
        (group_offsets.offset(5), [5, 5]),
        (group_offsets.offset(1), [1, 2]),
        (group_offsets.offset(99), [10, 10]),
        (group_offsets.instant(START + timedelta(seconds=6.5)), [7, 7]),
        (group_offsets.instant(START + timedelta(days=1)), [10, 10]),
        (group_offsets.listed({("t", 0): 3, ("t", 1): 8}), [3, 8]),
    ],
)
def test_each_target_means_what_kafkas_tool_means_by_it(
    groups: FakeGroups, log: FakeLog, target: Target, expected: list[int]
) -> None:
    assert new_offsets(groups, log, target) == expected


@pytest.mark.parametrize(("by", "expected"), [(3, 7), (-3, 1), (-9, 0), (99, 10)])
def test_a_shift_stays_within_the_log(groups: FakeGroups, log: FakeLog, by: int, expected: int) -> None:
    assert new_offsets(groups, log, group_offsets.shift(by), "t:0") == [expected]


def test_a_shift_from_nowhere_names_the_partition(groups: FakeGroups, log: FakeLog) -> None:
    with pytest.raises(UserError, match="nothing is committed for partition 1 of t"):
        new_offsets(groups, log, group_offsets.shift(1))


def test_a_window_is_its_first_record_and_a_later_partition_begins_at_its_own(groups: FakeGroups, log: FakeLog) -> None:
    ranges = (OffsetRange(topic="t", partition=0, start_offset=6, end_offset=8),)
    frozen = window(START, ranges=ranges, topic="t", topic_id=log.ids["t"])
    assert new_offsets(groups, log, group_offsets.window(frozen)) == [6, 2]


def test_a_window_of_a_topic_that_was_recreated_is_refused(groups: FakeGroups, log: FakeLog) -> None:
    with pytest.raises(TopicRecreated):
        new_offsets(groups, log, group_offsets.window(window(START, topic="t", topic_id="older")))


def test_a_move_says_where_the_group_is_and_its_target(groups: FakeGroups, log: FakeLog) -> None:
    first, second = group_offsets.plan(groups, log, "g", [TopicChoice(topic="t")], group_offsets.offset(99))
    assert (first.current, first.target, first.new) == (4, 99, 10)
    assert second.current is None


def test_planning_changes_nothing_and_executing_commits_the_plan(groups: FakeGroups, log: FakeLog) -> None:
    moves = group_offsets.plan(groups, log, "g", [TopicChoice(topic="t")], group_offsets.latest)
    assert groups.committed("g") == {("t", 0): 4}
    group_offsets.execute(groups, moves, "a note")
    assert groups.committed("g") == {("t", 0): 10, ("t", 1): 10}
    assert groups.notes[-1] == "a note"


def test_an_active_group_is_refused_with_its_members(groups: FakeGroups, log: FakeLog) -> None:
    groups.members["g"] = ("dashboard-1", "dashboard-2")
    with pytest.raises(GroupActive, match=r"dashboard-1, dashboard-2.*Stop them"):
        new_offsets(groups, log, group_offsets.earliest)


@pytest.mark.parametrize(("choice", "error"), [("u", TopicMissing), ("t:0,7", UserError)])
def test_a_topic_or_partition_that_is_not_there_is_named(
    groups: FakeGroups, log: FakeLog, choice: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"'u'|no partition 7; its partitions are 0 to 1|partition 7"):
        new_offsets(groups, log, group_offsets.earliest, choice)


@pytest.mark.parametrize(("text", "partitions"), [("t", None), ("t:1", (1,)), ("t:1,0,1", (0, 1))])
def test_a_choice_of_partitions_is_read_as_kafka_reads_it(text: str, partitions: tuple[int, ...] | None) -> None:
    assert TopicChoice.parse(text) == TopicChoice(topic="t", partitions=partitions)


@pytest.mark.parametrize("text", ["t:", "t:a", "t:0,"])
def test_a_choice_that_cannot_be_read_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(UserError, match="write it like t:0,1"):
        TopicChoice.parse(text)
