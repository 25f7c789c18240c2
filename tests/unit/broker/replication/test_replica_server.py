"""What a leader answers its followers, with real logs and encoded requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.api import ErrorCode
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, LENGTH_END, read_header
from logbus_broker.replication.interfaces import TopicIdPartition
from logbus_broker.replication.led_partition import LedPartition

from tests.support.leading import ME, STATE, TOPIC_ID, Follower, LeaderScene, fetching, waiting, wants


@pytest.fixture
def scene(tmp_path: Path) -> LeaderScene:
    return LeaderScene(tmp_path)


def offsets(records: memoryview) -> list[int]:
    """The offsets of the records in all complete batches."""
    records_at: list[int] = []
    position = 0
    while len(records) - position >= BATCH_HEADER_BYTES:
        header = read_header(records, position)
        end = position + LENGTH_END + header.length
        if end > len(records):
            break
        records_at += range(header.base_offset, header.base_offset + header.last_offset_delta + 1)
        position = end
    return records_at


def begin_epoch(led: LedPartition, epoch: int) -> None:
    """A later lead over the same log."""
    assert isinstance(led.log, PartitionLog)
    led.log.epochs.begin(epoch)
    led.progress.epoch = epoch


def only(follower: Follower) -> tuple[int, list[int]]:
    """Error code and offsets of the only partition in the newest answer."""
    (row,) = follower.last().partitions
    return row.error, offsets(row.records)


def test_records_go_up_to_the_end_not_to_what_is_visible(scene: LeaderScene) -> None:
    led = scene.lead()
    scene.append(led, 3, 2)
    follower = fetching(scene)
    (row,) = follower.last().partitions
    assert offsets(row.records) == [0, 1, 2, 3, 4]
    assert (row.visible_offset, row.log_start_offset) == (0, 0)


def test_what_a_fetch_says_is_progress(scene: LeaderScene) -> None:
    led = scene.lead()
    scene.append(led, 10)
    scene.flush(led)
    first, second = Follower(scene, 1), Follower(scene, 2)
    first.send(wants(0, 10, flushed=7, last_epoch=0))
    second.send(wants(0, 9, flushed=9, last_epoch=0))
    assert (led.progress.replicated_offset, led.progress.visible_offset) == (9, 7)
    assert scene.moved == [0]


def test_the_visible_offset_rides_along_with_the_next_answer(scene: LeaderScene) -> None:
    led = scene.lead(state=replace(STATE, isr=(0, 1)))
    scene.append(led, 2)
    scene.flush(led)
    follower = fetching(scene)
    follower.send(wants(0, 2, flushed=2, last_epoch=0))
    assert led.progress.visible_offset == 2
    scene.turn_ends()
    assert len(follower.answers) == 1, "it wakes nobody"
    scene.pass_time(0.5)
    (row,) = follower.last().partitions
    assert (row.visible_offset, len(row.records)) == (2, 0)


def test_a_fetch_that_finds_nothing_waits_for_the_end_of_the_turn_that_brings_something(scene: LeaderScene) -> None:
    led, other = scene.lead(0), scene.lead(1)
    follower = waiting(scene, wants(0, 0), wants(1, 0))
    assert len(follower.answers) == 1
    assert scene.server.next_deadline == scene.now + 0.5
    scene.append(led, 1)
    scene.append(other, 2)
    assert len(follower.answers) == 1
    scene.turn_ends()
    assert [(row.partition_index, offsets(row.records)) for row in follower.last().partitions] == [(0, [0]), (1, [0, 1])]


def test_a_moved_replica_gets_no_more_than_the_leaders_rate_and_those_in_sync_all(scene: LeaderScene) -> None:
    led = scene.lead(state=replace(STATE, isr=(0, 1)))
    scene.append(led, *[1] * 10, value=b"v" * 1_000)
    scene.server.quota.learn(850, {TOPIC_ID: f"0:{ME},1:{ME}"})
    moved = fetching(scene, wants(0, 0, bytes_max=1_100), broker_id=2)
    assert offsets(moved.last().partitions[0].records) == [0]
    moved.send(wants(0, 1, last_epoch=0, bytes_max=1_100))
    moved.send()
    assert [len(answer.partitions) for answer in moved.answers] == [1, 0]
    assert len(offsets(fetching(scene, wants(0, 0)).last().partitions[0].records)) == 10
    free_at = scene.server.quota.free_at()
    assert scene.now < free_at <= scene.server.next_deadline
    scene.pass_time(free_at - scene.now)
    assert offsets(moved.last().partitions[0].records) == [1]
    moved.send(wants(0, 2, last_epoch=0))
    moved.send()
    scene.server.quota.learn(850, {TOPIC_ID: f"1:{ME},0:2"})
    scene.pass_time(0.01)
    assert len(offsets(moved.last().partitions[0].records)) == 8


def test_a_newer_fetch_releases_the_waiting_one_with_what_it_made_visible(scene: LeaderScene) -> None:
    led = scene.lead(state=replace(STATE, isr=(0, 1)))
    follower = fetching(scene)
    scene.append(led, 4)
    scene.flush(led)
    follower.send(wants(0, 0))
    follower.send(wants(0, 4, flushed=0, last_epoch=0))
    assert len(follower.answers) == 2
    follower.send(wants(0, 4, flushed=4, last_epoch=0))
    assert [len(answer.partitions) for answer in follower.answers] == [1, 1, 1]
    assert led.progress.visible_offset == 4
    (row,) = follower.last().partitions
    assert (row.visible_offset, len(row.records)) == (4, 0)
    scene.pass_time(0.5)
    assert follower.last().partitions == [], "it is told once"


def test_what_a_newer_fetch_names_for_the_first_time_is_not_in_the_released_answer(scene: LeaderScene) -> None:
    """The follower could not use it, and the update would be lost."""
    old, new = scene.lead(0), scene.lead(1, visible=0)
    scene.append(new, 3)
    scene.flush(new)
    new.progress.fetched(2, 1, 3, 3, scene.now)
    follower = waiting(scene)
    follower.send(wants(1, 3, flushed=3, last_epoch=0))
    assert new.progress.visible_offset == 3
    assert follower.last().partitions == []
    scene.pass_time(0.5)
    (row,) = follower.last().partitions
    assert (row.partition_index, row.visible_offset) == (1, 3)
    assert old.progress.visible_offset == 0


def test_records_that_come_with_a_newer_fetch_are_its_own(scene: LeaderScene) -> None:
    """Records written in the same turn are not sent twice, nor with the answer to a request that did not ask for them."""
    led = scene.lead()
    follower = waiting(scene)
    scene.append(led, 2)
    follower.send(wants(0, 0))
    assert [[offsets(row.records) for row in answer.partitions] for answer in follower.answers[1:]] == [[], [[0, 1]]]


def test_a_round_says_only_what_moved(scene: LeaderScene) -> None:
    led = [scene.lead(index) for index in range(20)]
    follower = fetching(scene, *[wants(index, 0) for index in range(20)])
    follower.send()
    scene.append(led[7], 1)
    scene.turn_ends()
    assert [row.partition_index for row in follower.last().partitions] == [7]
    follower.send(wants(7, 1, last_epoch=0))
    assert len(follower.answers) == 2, "nothing more to say"


def test_somebody_who_waits_for_a_flush_is_told_to_the_follower_at_once_and_once(scene: LeaderScene) -> None:
    led = scene.lead()
    scene.append(led, 6)
    follower = fetching(scene)
    follower.send(wants(0, 6, flushed=0, last_epoch=0))
    led.progress.wanted(6, scene.now)
    scene.server.flush_requested(led)
    scene.turn_ends()
    (row,) = follower.last().partitions
    assert (row.wanted_offset, len(row.records)) == (6, 0)
    follower.send()
    scene.server.flush_requested(led)
    scene.turn_ends()
    assert len(follower.answers) == 2
    follower.send(wants(0, 6, flushed=6, last_epoch=0))
    scene.pass_time(1)
    assert [row.wanted_offset for row in follower.last().partitions] in ([], [-1])


# The order of the checks


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (wants(0, 0, epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (wants(0, 0, epoch=6), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (wants(9, 0, epoch=5), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (wants(0, 0, epoch=5, topic_id=bytes(16)), ErrorCode.UNKNOWN_TOPIC_ID),
        (wants(0, 1, epoch=5, last_epoch=5), ErrorCode.NONE),
        (wants(0, 11, epoch=5), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_each_error_has_its_code(scene: LeaderScene, part: object, code: ErrorCode) -> None:
    scene.server.is_known_topic = lambda topic_id: topic_id == TOPIC_ID
    led = scene.lead(state=replace(STATE, leader_epoch=5))
    scene.append(led, 10, epoch=0)
    follower = Follower(scene)
    follower.send(part)  # type: ignore[arg-type]
    assert follower.last().partitions[0].error == code


def test_a_newer_epoch_than_ours_is_reported(scene: LeaderScene) -> None:
    reported: list[tuple[TopicIdPartition, int]] = []
    Follower(scene).send(wants(0, 0, epoch=2))  # nobody listens yet
    scene.server.on_newer_epoch = lambda key, epoch: reported.append((key, epoch))
    led = scene.lead()
    Follower(scene).send(wants(0, 0, epoch=3))
    assert reported == [(led.key, 3)]


def test_the_epoch_is_checked_before_the_assignment(scene: LeaderScene) -> None:
    scene.lead(state=replace(STATE, leader_epoch=5, isr=(0, 1)), replicas=(0, 1))
    stranger = Follower(scene, 2)
    stranger.send(wants(0, 0, epoch=4))
    assert stranger.last().partitions[0].error == ErrorCode.FENCED_LEADER_EPOCH
    stranger.send(wants(0, 0, epoch=5))
    assert stranger.last().partitions[0].error == ErrorCode.UNKNOWN_LEADER_EPOCH, "an empty answer would hide it"


def test_a_follower_that_diverges_makes_no_progress(scene: LeaderScene) -> None:
    led = scene.lead(state=replace(STATE, isr=(0, 1)))
    scene.append(led, 5, epoch=0)
    begin_epoch(led, 3)
    scene.append(led, 5, epoch=3)
    follower = fetching(scene, wants(0, 8, flushed=8, epoch=3, last_epoch=0))
    (row,) = follower.last().partitions
    assert (row.error, row.diverging_epoch, len(row.records)) == (0, (0, 5), 0)
    assert led.progress.followers[1].written == -1
    follower.send(wants(0, 5, flushed=5, epoch=3, last_epoch=0))
    assert only(follower) == (0, [5, 6, 7, 8, 9])
    assert led.progress.followers[1].written == 5


def test_an_epoch_that_the_leader_never_had_parts_at_the_end_of_the_one_before(scene: LeaderScene) -> None:
    led = scene.lead()
    scene.append(led, 5, epoch=0)
    begin_epoch(led, 3)
    follower = fetching(scene, wants(0, 7, epoch=3, last_epoch=2))
    assert follower.last().partitions[0].diverging_epoch == (0, 5)


def test_a_log_without_records_parts_from_all_others_at_its_start(scene: LeaderScene) -> None:
    led = scene.lead(state=replace(STATE, leader_epoch=3))
    begin_epoch(led, 3)
    follower = fetching(scene, wants(0, 7, epoch=3, last_epoch=2))
    (row,) = follower.last().partitions
    assert row.error == 0
    assert row.diverging_epoch is not None
    assert row.diverging_epoch[1] == 0


def test_below_the_start_is_out_of_range_before_epochs_are_compared(scene: LeaderScene) -> None:
    led = scene.lead()
    scene.append(led, 5, 5)
    scene.flush(led)
    assert isinstance(led.log, PartitionLog)
    led.log.log_start_offset = 5
    follower = fetching(scene, wants(0, 4, last_epoch=9))
    (row,) = follower.last().partitions
    assert (row.error, row.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 5), "it says where to begin anew"
    assert led.progress.followers[1].written == -1


# Sessions


def test_a_request_of_another_cluster_is_refused(scene: LeaderScene) -> None:
    follower = Follower(scene)
    follower.cluster_id = "another"
    follower.send(wants(0, 0))
    assert (follower.last().error, follower.last().session_id) == (ErrorCode.INCONSISTENT_CLUSTER_ID, 0)


def test_a_request_of_an_earlier_process_is_refused(scene: LeaderScene) -> None:
    led = scene.lead()
    Follower(scene, incarnation=5).send(wants(0, 0))
    old = Follower(scene, incarnation=4)
    old.send(wants(0, 0))
    assert old.last().error == ErrorCode.STALE_BROKER_EPOCH
    for incarnation in (6, 5):
        scene.server.restarted(1, incarnation, scene.now)
    assert led.followed == {}
    assert scene.server.gone_since == {1: scene.now}
    late = Follower(scene, incarnation=5)
    late.send(wants(0, 0))
    assert late.last().error == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_session_epoch_that_is_not_the_next_one_ends_the_session(scene: LeaderScene, epoch: int) -> None:
    scene.lead()
    follower = waiting(scene)
    follower.send(epoch=epoch)
    assert follower.last().error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert len(follower.answers) == 3, "the waiting one is answered, too"
    follower.send(epoch=2)
    assert follower.last().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_opening_a_session_ends_the_one_before(scene: LeaderScene) -> None:
    led = scene.lead()
    old, new = waiting(scene), fetching(scene)
    assert old.last().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert new.last().session_id != old.session_id
    assert led.followed[1].session is new.session


def test_the_last_request_of_a_session_closes_it(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = fetching(scene)
    follower.send(epoch=-1)
    assert follower.last().session_id == 0
    assert led.followed == {}


def test_what_is_forgotten_is_followed_no_longer(scene: LeaderScene) -> None:
    led, other = scene.lead(0), scene.lead(1)
    follower = fetching(scene, wants(0, 0), wants(1, 0))
    follower.send(forgotten=[led.key])
    scene.append(led, 1)
    scene.append(other, 1)
    scene.turn_ends()
    assert [row.partition_index for row in follower.last().partitions] == [1]
    assert led.followed == {}


def test_who_waits_learns_at_once_that_the_lead_is_over(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = waiting(scene)
    del scene.led[led.key]
    scene.server.ended(led)
    scene.turn_ends()
    assert only(follower) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    assert led.followed == {}


def test_a_replica_that_was_taken_away_is_told(scene: LeaderScene) -> None:
    led = scene.lead(state=replace(STATE, isr=(0,)))
    follower = waiting(scene)
    led.progress.learn(replace(STATE, isr=(0,)), (0, 2), 1, scene.now)
    scene.server.reassigned(led)
    scene.turn_ends()
    assert only(follower) == (ErrorCode.UNKNOWN_LEADER_EPOCH, [])


def test_records_that_are_on_their_way_are_not_sent_twice(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = waiting(scene)
    scene.append(led, 3)
    scene.turn_ends()
    assert only(follower) == (0, [0, 1, 2])
    follower.send(wants(0, 0, flushed=0))  # its flush had completed before the answer arrived
    scene.append(led, 2)
    scene.turn_ends()
    assert len(follower.answers) == 2
    follower.send(wants(0, 3, last_epoch=0))
    assert only(follower) == (0, [3, 4])


def test_records_that_could_not_be_stored_are_sent_again(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = fetching(scene)
    scene.append(led, 3)
    follower.send(wants(0, 0))
    assert only(follower) == (0, [0, 1, 2])
    follower.send(forgotten=[led.key])
    follower.send(wants(0, 0))
    assert only(follower) == (0, [0, 1, 2])


def test_records_that_are_asked_for_again_and_again_are_sent_again(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = fetching(scene)
    scene.append(led, 3)
    follower.send(wants(0, 0))
    follower.send(wants(0, 0))
    follower.send()
    assert len(follower.answers) == 3
    follower.send()
    assert only(follower) == (0, [0, 1, 2])


# Limits


def test_an_answer_is_limited_and_nobody_starves(tmp_path: Path) -> None:
    scene = LeaderScene(tmp_path, response_bytes_max=3_000)
    led = [scene.lead(index) for index in range(3)]
    for one in led:
        for _ in range(3):
            scene.append(one, 1, value=bytes(1_200))
    follower = Follower(scene)
    has = [0, 0, 0]
    follower.send(*[wants(index, 0) for index in range(3)])
    rounds = 0
    while has != [3, 3, 3]:
        rows = follower.last().partitions
        assert sum(len(row.records) for row in rows) <= 3_000
        for row in rows:
            has[row.partition_index] += len(offsets(row.records))
        got = [row.partition_index for row in rows if len(row.records)]
        follower.send(*[wants(index, has[index], last_epoch=0) for index in got])
        rounds += 1
        if rounds == 3:
            assert min(has) > 0
        assert rounds < 10


def test_a_batch_larger_than_the_limits_is_sent_where_it_is_the_first(tmp_path: Path) -> None:
    scene = LeaderScene(tmp_path, response_bytes_max=3_000)
    led, other = scene.lead(0), scene.lead(1)
    scene.append(led, 1, value=bytes(9_000))
    scene.append(other, 1, value=bytes(9_000))
    follower = fetching(scene, wants(0, 0, bytes_max=10), wants(1, 0, bytes_max=10))
    assert [row.partition_index for row in follower.last().partitions if len(row.records)] == [0]
    follower.send(wants(0, 1, last_epoch=0))
    assert [row.partition_index for row in follower.last().partitions if len(row.records)] == [1]


# Which followers are alive


def test_a_follower_whose_connection_is_closed_is_gone_until_it_fetches_again(scene: LeaderScene) -> None:
    scene.lead()
    follower = fetching(scene)
    assert follower.session is not None
    scene.now = 105.0
    scene.server.disconnected(follower.session, scene.now)
    assert scene.server.gone_since == {1: 105.0}
    fetching(scene)
    assert scene.server.gone_since == {}


def test_the_end_of_a_connection_that_was_replaced_says_nothing(scene: LeaderScene) -> None:
    scene.lead()
    old, _ = fetching(scene), fetching(scene)
    assert old.session is not None
    scene.server.disconnected(old.session, scene.now)
    assert scene.server.gone_since == {}


def test_a_request_says_that_its_sender_was_alive_when_it_was_given_the_last_answer_but_one(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = Follower(scene)
    follower.send(wants(0, 0))  # 0, answered at 100
    assert scene.server.alive_at(1, led) == -float("inf")
    scene.now = 110.0
    follower.send()  # 1 carries the session id: sent after the answer to 0
    assert scene.server.alive_at(1, led) == 100.0
    scene.now = 120.0
    follower.send()  # 2 may have been sent before the answer to 1, which is given only now
    assert scene.server.alive_at(1, led) == 100.0
    scene.now = 130.0
    follower.send()  # 3 was sent after the answer to 1
    assert scene.server.alive_at(1, led) == 120.0


def test_a_fetch_that_lay_in_the_socket_while_the_leader_was_stopped_is_no_news(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = waiting(scene)
    scene.now = 101.0
    scene.server.expire(scene.now)
    follower.send()
    scene.now = 200.0  # both had been in flight
    follower.send()
    assert scene.server.alive_at(1, led) == 101.0


def test_a_follower_that_gave_the_partition_up_is_not_alive_for_it(scene: LeaderScene) -> None:
    led = scene.lead()
    follower = fetching(scene)
    follower.send(forgotten=[led.key])
    assert scene.server.alive_at(1, led) == -float("inf")


def test_what_a_follower_asks_for_again_is_suspect_and_what_it_had_not_received_yet_is_not(scene: LeaderScene) -> None:
    led = scene.lead()
    suspected: list[tuple[int, int, int]] = []
    scene.server.on_suspect = lambda led, *what: suspected.append(what)
    scene.append(led, 3, 2)
    early = fetching(scene)
    early.send(wants(0, 0))
    assert suspected == [], "it was on its way when the answer was sent"
    follower = fetching(scene, broker_id=2)
    for offset, last_epoch in ((3, 0), (5, 0)):
        follower.send()
        follower.send(wants(0, offset, last_epoch=last_epoch))
    assert suspected == []
    again = fetching(scene, incarnation=2)
    again.send()
    again.send(wants(0, 0, bytes_max=1_000))
    assert suspected == [(0, 1_000, -1)]


def test_a_follower_that_can_store_nothing_suspects_nobody(scene: LeaderScene) -> None:
    led = scene.lead()
    suspected: list[tuple[int, int, int]] = []
    scene.server.on_suspect = lambda led, *what: suspected.append(what)
    scene.append(led, 3)
    follower = fetching(scene)
    follower.send()
    follower.send(wants(0, 0)._replace(is_impaired=True))
    assert suspected == []
