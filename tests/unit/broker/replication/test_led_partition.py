"""What is safe, which brokers may join and which must leave: the rules of one led partition, one by one."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.replication.led_partition import Departures, PartitionProgress

STATE = PartitionState(leader=0, leader_epoch=5, isr=(0, 1, 2), version=10)


def leading(
    state: PartitionState = STATE, *, insync_min: int = 2, end: int = 100, flushed: int = 90, visible: int = 80
) -> PartitionProgress:
    return PartitionProgress(
        0, state, (0, 1, 2), insync_min=insync_min, end_offset=end, flushed_offset=flushed, visible_offset=visible, now=0.0
    )


@pytest.fixture
def progress() -> PartitionProgress:
    return leading()


def safe(progress: PartitionProgress) -> tuple[int, int]:
    return progress.replicated_offset, progress.visible_offset


def fetch(progress: PartitionProgress, now: float, *followers: tuple[int, int]) -> None:
    """What the followers 1, 2 .. have written and flushed."""
    for broker, (written, flushed) in enumerate(followers, 1):
        progress.fetched(broker, 1, written, flushed, now)


def departures(progress: PartitionProgress, now: float, gone: dict[int, float] | None = None) -> Departures:
    since = gone or {}
    return progress.departures(now, lag_seconds=30, gone_seconds=0.5, gone_since=lambda broker: since.get(broker, inf))


def test_a_new_leader_begins_with_what_it_had_learnt_and_knows_nothing_of_others(progress: PartitionProgress) -> None:
    assert safe(progress) == (80, 80)
    progress.fetched(1, 1, 100, 100, 0.1)
    assert safe(progress) == (80, 80), "the third member has not told"


def test_replicated_is_the_least_written_and_visible_the_least_flushed(progress: PartitionProgress) -> None:
    fetch(progress, 0.1, (97, 85), (95, 88))
    assert safe(progress) == (95, 85)
    fetch(progress, 0.2, (100, 100), (100, 100))
    assert safe(progress) == (100, 90), "our own disk counts like any other"
    progress.flushed(100)
    assert safe(progress) == (100, 100)


def test_nobody_joins_without_what_the_leader_had_flushed_when_it_began() -> None:
    """An earlier leader may have exposed records up to there, though this one had only learnt of 80."""
    progress = leading(replace(STATE, isr=(0,)), insync_min=1, end=100, flushed=90, visible=80)
    assert progress.wanted_offset == 90, "or it would have to wait for its own interval"
    progress.fetched(1, 1, 100, 89, 0.1)
    assert not progress.may_join(1)
    progress.fetched(1, 1, 100, 90, 0.1)
    assert progress.may_join(1)


def test_a_follower_that_claims_to_have_flushed_more_than_it_wrote_is_not_believed(progress: PartitionProgress) -> None:
    fetch(progress, 0.1, (85, 100), (100, 100))
    assert safe(progress) == (85, 85)


def test_nothing_moves_while_the_set_is_smaller_than_min_insync() -> None:
    progress = leading(replace(STATE, isr=(0,)))
    progress.written(120, 0.1)
    progress.flushed(120)
    progress.fetched(1, 1, 120, 120, 0.2)
    assert progress.lacks_replicas
    assert safe(progress) == (80, 80)


def test_a_proposed_addition_does_not_make_the_set_large_enough() -> None:
    progress = leading(replace(STATE, isr=(0,)), end=80, flushed=80)
    progress.fetched(1, 1, 80, 80, 0.1)
    progress.propose({1: 1})
    progress.written(90, 0.2)
    progress.fetched(1, 1, 90, 90, 0.3)
    assert safe(progress) == (80, 80)


def test_nothing_moves_while_somebody_outside_of_the_set_may_be_elected() -> None:
    progress = leading(replace(STATE, isr=(0, 1), eligible=(2,)), insync_min=1)
    progress.fetched(1, 1, 100, 100, 0.1)
    assert safe(progress) == (80, 80)
    progress.learn(replace(STATE, isr=(0, 1), version=11), (0, 1, 2), 1, 0.2)
    assert safe(progress) == (100, 90)


def test_a_proposed_addition_counts_until_the_image_shows_what_became_of_it() -> None:
    progress = leading(replace(STATE, isr=(0, 1)), end=80, flushed=80)
    progress.fetched(1, 1, 80, 80, 0.1)
    progress.fetched(2, 4, 80, 80, 0.1)
    progress.propose({2: 4})
    progress.written(90, 0.2)
    progress.flushed(90)
    progress.fetched(1, 1, 90, 90, 0.3)
    assert safe(progress) == (80, 80), "it may be a member by now, and be elected"
    progress.learn(replace(STATE, isr=(0, 1)), (0, 1, 2), 2, 0.4)
    assert safe(progress) == (80, 80), "this version is the one that the proposal was made from"
    progress.learn(replace(STATE, isr=(0, 1), version=11), (0, 1, 2), 2, 0.5)
    assert safe(progress) == (90, 90), "another change came first: the proposal can never happen"


def test_a_withdrawn_addition_counts_no_longer() -> None:
    progress = leading(replace(STATE, isr=(0, 1)), end=80, flushed=80)
    progress.propose({2: 4})
    progress.written(90, 0.2)
    progress.fetched(1, 1, 90, 80, 0.3)
    assert progress.replicated_offset == 80
    progress.withdraw_additions()
    assert progress.replicated_offset == 90


def test_a_removal_counts_when_the_image_shows_it(progress: PartitionProgress) -> None:
    progress.fetched(1, 1, 100, 100, 0.1)
    assert safe(progress) == (80, 80)
    progress.learn(replace(STATE, isr=(0, 1), version=11), (0, 1, 2), 2, 0.2)
    assert safe(progress) == (100, 90), "waiting producers hang where it is not computed again (KAFKA-13091)"


def test_fetches_of_an_earlier_process_do_not_count(progress: PartitionProgress) -> None:
    assert progress.fetched(1, 7, 90, 90, 0.1)
    assert not progress.fetched(1, 6, 100, 100, 0.2)
    assert progress.followers[1].written == 90
    for broker, incarnation in ((1, 8), (1, 7), (9, 1)):  # of the second nothing is new, and the third is no follower
        progress.restarted(broker, incarnation)
    assert not progress.fetched(1, 7, 100, 100, 0.3)
    progress.fetched(2, 1, 100, 100, 0.3)
    assert safe(progress) == (80, 80), "nothing is known of the process that runs now"


def test_a_new_process_of_a_follower_begins_with_nothing_known(progress: PartitionProgress) -> None:
    progress.fetched(1, 7, 100, 100, 0.1)
    progress.fetched(1, 8, 70, 60, 0.2)
    progress.fetched(2, 1, 100, 100, 0.2)
    assert safe(progress) == (80, 80), "its disk may have been replaced"


def test_a_fetch_of_a_broker_outside_of_the_assignment_does_not_count(progress: PartitionProgress) -> None:
    assert not progress.fetched(7, 1, 100, 100, 0.1)


def test_a_replica_that_was_taken_away_and_comes_back_begins_with_nothing_known() -> None:
    progress = leading(replace(STATE, isr=(0, 1)))
    progress.fetched(2, 1, 100, 100, 0.1)
    progress.learn(replace(STATE, isr=(0, 1)), (0, 1), 2, 0.2)
    progress.learn(replace(STATE, isr=(0, 1)), (0, 1, 2), 2, 0.3)
    assert not progress.may_join(2)


def test_another_epoch_is_another_object() -> None:
    with pytest.raises(AssertionError):
        leading().learn(replace(STATE, leader_epoch=6, version=11), (0, 1, 2), 2, 0.1)


def test_who_has_everything_safe_may_join() -> None:
    progress = leading(replace(STATE, isr=(0, 1)), end=100, flushed=100, visible=100)
    progress.written(130, 0.1)
    progress.fetched(1, 1, 120, 110, 0.2)
    for written, flushed, may in ((119, 119, False), (120, 99, False), (120, 100, True)):
        progress.fetched(2, 1, written, flushed, 0.3)
        assert progress.may_join(2) is may, (written, flushed)
    assert not progress.may_join(1), "it is a member"


def test_nobody_joins_below_the_start_of_the_epoch() -> None:
    progress = leading(replace(STATE, isr=(0, 1)), end=100, visible=80)
    progress.fetched(2, 1, 99, 99, 0.1)
    assert not progress.may_join(2)
    progress.fetched(2, 1, 100, 99, 0.1)
    assert progress.may_join(2)


def test_who_has_everything_never_leaves() -> None:
    progress = leading(end=100, flushed=100)
    fetch(progress, 0.1, (100, 100), (100, 100))
    assert departures(progress, 10_000.0, gone={1: 0.2}) == Departures()
    progress.written(101, 10_000.0)
    assert departures(progress, 10_000.1) == Departures(), "until then it had everything"
    assert departures(progress, 10_030.5) == Departures(behind=(1, 2))


def test_who_keeps_up_without_ever_having_the_very_end_stays() -> None:
    progress = leading(end=100)
    fetch(progress, 0.0, (100, 100), (100, 100))
    for second in range(1, 60):
        progress.written(100 + 10 * second, float(second))
        # At each fetch it has only what was the log end at the previous one.
        progress.fetched(1, 1, 100 + 10 * (second - 1), 0, second + 0.5)
    assert departures(progress, 60.0) == Departures(behind=(2,))


def test_a_member_that_never_fetches_leaves_after_the_lag(progress: PartitionProgress) -> None:
    progress.fetched(1, 1, 100, 100, 0.1)
    assert departures(progress, 30.0) == Departures()
    assert departures(progress, 30.1) == Departures(behind=(2,))


def test_a_member_whose_connection_is_gone_leaves_at_once_where_it_lacks_something() -> None:
    progress = leading(end=100, flushed=100)
    fetch(progress, 0.1, (99, 99), (100, 99))
    assert departures(progress, 1.0, gone={1: 0.5, 2: 0.5}) == Departures()
    assert departures(progress, 1.1, gone={1: 0.5, 2: 0.5}) == Departures(behind=(1, 2)), "a flush may be waited for, too"


def test_a_member_that_does_not_flush_what_is_waited_for_leaves() -> None:
    progress = leading(end=100, flushed=100)
    fetch(progress, 0.1, (100, 90), (100, 90))
    assert departures(progress, 1_000.0) == Departures(), "nobody waits"
    progress.wanted(95, 1_000.0)
    progress.fetched(1, 1, 100, 95, 1_001.0)
    assert departures(progress, 1_030.0) == Departures()
    assert departures(progress, 1_030.1) == Departures(behind=(2,))


def test_a_member_that_says_that_it_stores_nothing_leaves_and_stays_away() -> None:
    """Though it has everything: nothing was written since, and it could not store the next batch."""
    progress = leading(end=100, flushed=100)
    fetch(progress, 0.1, (100, 100), (100, 100))
    progress.fetched(1, 1, 100, 100, 0.2, is_impaired=True)
    assert departures(progress, 0.2) == Departures(behind=(1,))
    progress.learn(replace(STATE, isr=(0, 2), version=11), (0, 1, 2), 2, 0.3)
    assert departures(progress, 0.3) == Departures(late=(1,))
    progress.fetched(1, 1, 100, 100, 0.4)
    assert departures(progress, 0.4) == Departures()
    progress.fetched(1, 1, 100, 100, 0.5, is_impaired=True)
    progress.restarted(1, 2)
    assert departures(progress, 0.6) == Departures(), "another process has said nothing yet"


def test_each_flush_that_is_waited_for_has_its_own_time() -> None:
    progress = leading(end=100, flushed=100)
    fetch(progress, 0.1, (100, 90), (100, 100))
    for second in range(90):
        progress.wanted(min(91 + second, 100), float(second))
        progress.fetched(1, 1, 100, min(90 + second, 100), second + 0.5)
        assert departures(progress, second + 0.6) == Departures()


def test_who_has_left_for_being_late_joins_once_it_keeps_up() -> None:
    """Nothing becomes safe without it, so it has everything that is, however late it is: that is not enough to rejoin."""
    progress = leading(end=100, flushed=100, visible=80)
    progress.fetched(2, 1, 100, 100, 0.1)
    progress.fetched(1, 1, 100, 100, 0.1)
    progress.written(110, 0.2)
    progress.fetched(2, 1, 110, 110, 31.0)
    assert departures(progress, 31.0) == Departures(behind=(1,))
    progress.learn(replace(STATE, isr=(0, 2), version=11), (0, 1, 2), 3, 31.0)
    assert progress.may_join(1)
    assert departures(progress, 31.1) == Departures(late=(1,))
    progress.fetched(1, 1, 110, 100, 31.2)
    assert departures(progress, 31.3) == Departures()


def test_who_has_left_for_its_flushes_joins_once_it_has_flushed() -> None:
    progress = leading(end=100, flushed=90)
    progress.flushed(100)
    fetch(progress, 0.1, (100, 90), (100, 100))
    progress.wanted(95, 1.0)
    assert departures(progress, 31.1) == Departures(behind=(1,))
    progress.learn(replace(STATE, isr=(0, 2), version=11), (0, 1, 2), 3, 31.1)
    assert progress.may_join(1)
    assert departures(progress, 31.2) == Departures(late=(1,))
    progress.fetched(1, 1, 100, 95, 31.3)
    assert departures(progress, 31.4) == Departures()


def test_a_member_that_lost_what_was_acknowledged_is_told_from_one_that_is_behind(progress: PartitionProgress) -> None:
    fetch(progress, 0.1, (100, 100), (100, 100))
    progress.fetched(2, 2, 70, 70, 0.2)
    assert departures(progress, 0.3) == Departures(lost=(2,))


def test_a_partition_whose_members_have_everything_has_no_laggards() -> None:
    progress = leading(end=100, flushed=100)
    assert progress.has_laggards
    fetch(progress, 0.1, (100, 100), (100, 100))
    assert not progress.has_laggards


def test_nobody_joins_who_has_not_deleted_what_clients_were_told_is_deleted() -> None:
    progress = leading(replace(STATE, isr=(0, 1)))
    progress.deleted(70)
    progress.fetched(2, 1, 100, 100, 0.1, log_start=69)
    assert not progress.may_join(2)
    progress.fetched(2, 1, 100, 100, 0.2, log_start=70)
    assert progress.may_join(2)


def test_the_start_of_the_members_logs_is_the_least_that_is_known(progress: PartitionProgress) -> None:
    progress.fetched(1, 1, 100, 100, 0.1, log_start=20)
    assert progress.log_start_of_followers == -1
    progress.fetched(2, 1, 100, 100, 0.1, log_start=10)
    assert progress.log_start_of_followers == 10
    progress.restarted(2, 2)
    assert progress.log_start_of_followers == -1
    alone = leading(replace(STATE, isr=(0,)))
    assert alone.log_start_of_followers is None
