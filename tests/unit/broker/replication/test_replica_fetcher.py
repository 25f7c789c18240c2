"""What a follower requests from its leader, and what it does with the answers: real logs, and a leader that the test scripts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from logbus_broker.errors import OutOfOrderSequence
from logbus_broker.log.partition import Staged
from logbus_broker.protocol.api import ErrorCode
from logbus_broker.replication.replica_fetcher import SLICE_SECONDS, ReplicaFetcherManager

from tests.support.batches import produced, stamped, validated
from tests.support.following import INCARNATION, ME, TOPIC_ID, FollowerScene, batches, encode, row


@pytest.fixture
def idle(tmp_path: Path) -> FollowerScene:
    """It follows nothing yet."""
    return FollowerScene(tmp_path)


@pytest.fixture
def scene(idle: FollowerScene) -> FollowerScene:
    """It follows one partition: its session is open, and a request waits at the leader."""
    following(idle)
    return idle


def following(scene: FollowerScene, *indexes: int) -> None:
    """Follow the partitions, with an open session and a request that waits at the leader."""
    for index in indexes or (0,):
        scene.follow(index)
    scene.reach()
    scene.answer()


def begin_epoch(scene: FollowerScene, epoch: int) -> None:
    """The partition gets another leader's epoch, and asks for it."""
    scene.follow(0, epoch=epoch)
    scene.turn()


def diverge(scene: FollowerScene, epoch: int, end_offset: int) -> None:
    """The leader's answer that what follows is not in its log, and the cut."""
    scene.answer(row(0, diverging=(epoch, end_offset)))
    scene.run_jobs()


def positions(scene: FollowerScene) -> list[tuple[int, int, int]]:
    """Index, fetch offset and last epoch of every partition in the newest request."""
    return [(part.partition_index, part.fetch_offset, part.last_fetched_epoch) for part in scene.named()]


# -- the session -----------------------------------------------------------------------------------------------------------------


def test_a_session_begins_with_everything_named(idle: FollowerScene) -> None:
    for index in (1, 0):
        idle.follow(index, epoch=3)
    idle.reach()
    fetch = idle.asked()
    assert (fetch.replica_id, fetch.replica_epoch, fetch.cluster_id) == (ME, INCARNATION, "aCluster")
    assert (fetch.session_id, fetch.session_epoch) == (0, 0)
    named = [(part.topic_id, part.partition_index, part.leader_epoch) for part in fetch.partitions]
    assert named == [(TOPIC_ID.bytes, 0, 3), (TOPIC_ID.bytes, 1, 3)]


def test_a_partition_is_fetched_from_its_newest_leader_alone(tmp_path: Path) -> None:
    scenes = {leader: FollowerScene(tmp_path) for leader in (2, 3)}
    fetchers = ReplicaFetcherManager(lambda leader: scenes[leader].fetcher)
    replica = scenes[2].open()
    fetchers.follow(replica, 2)
    assert [list(scenes[leader].fetcher._entries) for leader in (2, 3)] == [[replica.key], []]
    fetchers.follow(replica, 3)
    assert [list(scenes[leader].fetcher._entries) for leader in (2, 3)] == [[], [replica.key]]
    fetchers.forget(replica.key)
    assert not scenes[3].fetcher._entries
    fetchers.changed(replica.key)
    for broker in (2, 4):
        fetchers.reached(broker)
        fetchers.closed(broker)


def test_nothing_is_asked_while_there_is_no_connection(idle: FollowerScene) -> None:
    idle.follow()
    idle.turn()
    assert not idle.peers.sent


def test_while_a_session_is_being_opened_nothing_else_is_asked(idle: FollowerScene) -> None:
    idle.follow(0)
    idle.reach()
    idle.follow(1)
    idle.turn()
    assert len(idle.peers.sent) == 1
    idle.answer()
    assert (idle.asked().session_id, idle.asked().session_epoch) == (5, 1)
    assert positions(idle) == [(1, 0, -1)]


def test_a_round_names_only_what_moved(idle: FollowerScene) -> None:
    following(idle, 0, 1, 2)
    assert idle.named() == []
    idle.answer(row(1, batches(0, 3)))
    assert positions(idle) == [(1, 3, 0)]
    idle.answer()
    assert idle.named() == []


def test_lag_is_what_is_visible_at_the_leader_and_not_here(scene: FollowerScene) -> None:
    replica = scene.replicas[0]
    assert replica.lag == 0
    scene.answer(row(records=batches(0, 2), visible=5))
    assert replica.lag == 3
    scene.answer(row(records=batches(2, 4), visible=5))
    assert replica.lag == 0


def test_a_follower_whose_disk_is_full_says_so_and_deletes_what_its_leader_deletes(
    scene: FollowerScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, partition = scene.replicas[0], scene.partitions[0]
    scene.answer(row(records=batches(0, 4), visible=0))
    scene.flush()
    for _ in range(2):
        scene.answer(row(visible=4))

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("logbus_broker.log.segment.Segment.append", refuse)
        scene.answer(row(records=batches(4, 3), visible=4, start=2))
        assert scene.refused == [0]
        assert (replica.end_offset, replica.log_start_offset) == (4, 2)
        assert replica.lag == 3, "though nothing new is visible at the leader"
        partition.impaired_reason = "it is full"
        scene.turn(1_000)
        assert [(part.fetch_offset, part.is_impaired) for part in scene.named()] == [(4, True)]
        scene.answer()
    partition.impaired_reason = ""
    scene.fetcher.changed(replica.key)
    scene.turn(1_000)
    assert [(part.fetch_offset, part.is_impaired) for part in scene.named()] == [(4, False)]
    scene.answer()
    scene.answer(row(records=batches(4, 3), visible=4, start=2))
    assert (replica.end_offset, replica.lag) == (7, 0)


def test_a_flush_is_told_with_a_second_request(scene: FollowerScene) -> None:
    scene.answer(row(0, batches(0, 3)))
    assert len(scene.peers.sent) == 1
    assert scene.named()[0].flushed_offset == 0
    scene.flush()
    assert len(scene.peers.sent) == 2
    assert (scene.named()[0].fetch_offset, scene.named()[0].flushed_offset) == (3, 3)


def test_at_most_two_requests_are_on_their_way(idle: FollowerScene) -> None:
    following(idle, 0, 1)
    idle.answer(row(0, batches(0, 3)), row(1, batches(0, 3)))
    idle.flush(0)
    idle.flush(1)
    assert len(idle.peers.sent) == 2
    assert positions(idle) == [(0, 3, 0)]
    idle.answer()
    assert len(idle.peers.sent) == 2
    assert positions(idle) == [(1, 3, 0)], "what could not be told before is told now"


def test_a_flush_that_brought_nothing_new_is_not_told(scene: FollowerScene) -> None:
    scene.flush()
    assert len(scene.peers.sent) == 1


def test_a_partition_that_is_followed_no_longer_is_given_up(idle: FollowerScene) -> None:
    following(idle, 0, 1)
    idle.fetcher.forget(idle.replicas[0].key)
    idle.turn()
    assert idle.peers.sent[-1][0].forgotten == [(TOPIC_ID.bytes, 0)]


def test_the_last_partition_takes_the_session_with_it(scene: FollowerScene) -> None:
    scene.fetcher.forget(scene.replicas[0].key)
    scene.turn()
    assert scene.peers.sent[-1][0].session_epoch == -1
    scene.answer()
    scene.answer()
    assert not scene.peers.sent
    begin_epoch(scene, 1)
    assert scene.asked().session_epoch == 0


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_that_the_leader_forgot_is_opened_anew(idle: FollowerScene, error: ErrorCode) -> None:
    following(idle, 0, 1)
    idle.answer(error=error, session_id=0)
    assert idle.asked().session_epoch == 0
    assert positions(idle) == [(0, 0, -1), (1, 0, -1)]
    idle.answer(error=error, session_id=0)
    assert not idle.peers.sent, "the second time after a pause"
    idle.turn(milliseconds=40)
    assert idle.asked().session_epoch == 0


def test_a_lost_connection_begins_a_new_session(scene: FollowerScene) -> None:
    scene.answer(row(0, batches(0, 2)))
    scene.close_connection()
    assert not scene.peers.sent
    scene.reach()
    assert scene.asked().session_epoch == 0
    assert positions(scene) == [(0, 2, 0)]


def test_what_an_old_connection_brings_late_is_not_used(scene: FollowerScene) -> None:
    (_, old) = scene.peers.sent.popleft()
    scene.reach()
    old(memoryview(encode((row(0, batches(0, 2)),), error=0, session_id=5)))
    scene.turn()
    assert scene.replicas[0].end_offset == 0


def test_a_thousand_partitions_are_named_at_a_time(idle: FollowerScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logbus_broker.replication.replica_fetcher.NAMED_MAX", 2)
    for index in range(5):
        idle.follow(index)
    idle.reach()
    idle.answer()
    named = [[part.partition_index for part in fetch.partitions] for fetch, _ in idle.peers.sent]
    assert named == [[2, 3], [4]]


# -- records ---------------------------------------------------------------------------------------------------------------------


def test_records_are_stored_as_they_came(scene: FollowerScene) -> None:
    sent = batches(0, 3, 2)
    scene.answer(row(0, sent))
    log = scene.partitions[0].log
    assert b"".join(log.batches_from(0)) == sent
    assert scene.written == [0]


def test_what_is_visible_is_what_the_leader_says_and_this_disk_has(scene: FollowerScene) -> None:
    scene.answer(row(0, batches(0, 3), visible=2))
    assert scene.partitions[0].visible_offset == 0
    scene.flush()
    assert scene.partitions[0].visible_offset == 2


def test_the_leader_is_told_at_once_that_records_were_deleted(idle: FollowerScene) -> None:
    idle.follow()
    idle.reach()
    idle.answer(row(records=batches(0, 2, 2), visible=0))
    idle.flush()
    idle.answer()
    assert [part.log_start_offset for part in idle.named()] == [0]
    idle.answer(row(visible=4, start=3))
    assert [part.log_start_offset for part in idle.named()] == [3]
    idle.answer(row(visible=4, start=3))
    assert idle.named() == [], "once"


def test_what_the_leader_deleted_is_deleted_when_a_flush_makes_it_visible(idle: FollowerScene) -> None:
    replica = idle.follow()
    idle.reach()
    idle.answer(row(records=batches(0, 2, 2), visible=4, start=3))
    assert replica.log_start_offset == 0
    idle.flush()
    assert replica.log_start_offset == 3
    assert [part.log_start_offset for part in idle.named()] == [3]


def test_who_waits_at_the_leader_has_the_follower_flush(scene: FollowerScene) -> None:
    scene.answer(row(0, batches(0, 3), wanted=3))
    assert scene.wants_flush == [0]
    scene.flush()
    scene.answer(row(0, wanted=3))
    assert scene.wants_flush == [0], "it is flushed already"


@pytest.mark.parametrize(
    "damaged",
    [batches(0, 3)[:-1] + b"\xff", batches(0, 3)[:40], b"nonsense" * 20, batches(0, 3, epoch=9)],
    ids=["checksum", "torn", "nonsense", "epoch"],
)
def test_damage_is_never_stored(scene: FollowerScene, damaged: bytes) -> None:
    scene.answer(row(0, damaged), row(1))
    assert scene.replicas[0].end_offset == 0
    assert scene.named() == [], "it is not asked for at once"
    scene.turn(milliseconds=20)
    assert positions(scene) == [(0, 0, -1)]
    scene.answer()
    scene.answer(row(0, batches(0, 3)))
    assert scene.replicas[0].end_offset == 3


def test_a_log_that_a_write_takes_offline_is_told_to_whoever_gives_the_roles(
    idle: FollowerScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = idle.follow()
    idle.reach()

    def fails(*arguments: object) -> None:
        raise OSError("refused")

    active = idle.partitions[0].log.segments.active
    monkeypatch.setattr(type(active), "append", fails)
    monkeypatch.setattr(type(active), "cut", fails)
    idle.answer(row(records=batches(0, 2)))
    assert replica.is_offline
    assert idle.offline == [0]


def test_one_partition_that_fails_does_not_hold_the_others(idle: FollowerScene) -> None:
    following(idle, 0, 1)
    idle.answer(row(0, b"nonsense" * 20), row(1, batches(0, 3)))
    assert idle.replicas[1].end_offset == 3
    assert positions(idle) == [(1, 3, 0)]


def test_pauses_double_up_to_a_limit(scene: FollowerScene) -> None:
    pauses = []
    for _ in range(8):
        scene.answer(row(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        pause = round((scene.fetcher.due - scene.clock.monotonic()) * 1000)
        pauses.append(pause)
        scene.turn(milliseconds=pause + 1)
        scene.answer()
    assert pauses == [20, 40, 80, 160, 320, 640, 1000, 1000]
    scene.answer(row(0, batches(0, 1)))
    scene.answer(row(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert round((scene.fetcher.due - scene.clock.monotonic()) * 1000) == 20


def test_a_moved_replica_is_asked_for_no_faster_than_the_followers_rate_until_it_is_in_sync(idle: FollowerScene) -> None:
    following(idle, 0, 1)
    records = batches(0, 3)
    idle.quota.learn(len(records) // 2, {TOPIC_ID.bytes: f"0:{ME},1:2"})
    idle.answer(row(0, records), row(1, records))
    assert [replica.end_offset for replica in idle.replicas.values()] == [3, 3]
    assert positions(idle) == [(1, 3, 0)]
    idle.turn(milliseconds=999)
    idle.answer()
    assert positions(idle) == []
    idle.turn(milliseconds=50)
    assert positions(idle) == [(0, 3, 0)]
    idle.answer()
    idle.answer(row(0, batches(3, 3)))
    assert positions(idle) == []
    idle.quota.learn(1, {TOPIC_ID.bytes: ""})
    idle.fetcher.quota_changed()
    idle.turn()
    assert positions(idle) == [(0, 6, 0)]
    idle.quota.learn(1, {TOPIC_ID.bytes: "*"})
    idle.replicas[0].is_in_sync = True
    idle.answer()
    idle.answer(row(0, batches(6, 3)))
    assert positions(idle) == [(0, 9, 0)]


def test_a_large_answer_is_stored_in_slices(idle: FollowerScene) -> None:
    following(idle, 0, 1)
    idle.clock.tick_ms = int(SLICE_SECONDS * 1000)
    idle.answer_with(encode((row(0, batches(0, 1)), row(1, batches(0, 1))), error=0, session_id=5))
    idle.fetcher.work(idle.clock.monotonic())
    assert [idle.replicas[index].end_offset for index in (0, 1)] == [1, 0]
    assert idle.fetcher.due <= idle.clock.monotonic()
    idle.fetcher.work(idle.clock.monotonic())
    assert idle.replicas[1].end_offset == 1


# -- answers to outdated requests ------------------------------------------------------------------------------------------------


def test_an_answer_of_an_earlier_epoch_is_not_used(scene: FollowerScene) -> None:
    begin_epoch(scene, 1)
    scene.answer(row(0, batches(0, 3), visible=3))
    assert scene.replicas[0].end_offset == 0
    scene.answer(row(0, batches(0, 2)))
    assert scene.replicas[0].end_offset == 2


def test_what_an_answer_of_an_earlier_epoch_calls_visible_is_not_believed(scene: FollowerScene) -> None:
    with_records(scene, 3)
    scene.flush()
    begin_epoch(scene, 1)
    scene.answer(row(0, visible=3))
    assert scene.partitions[0].visible_offset == 0
    scene.answer()
    scene.answer(row(0, visible=2))
    assert scene.partitions[0].visible_offset == 2


def test_an_answer_for_what_is_led_here_now_is_not_used(scene: FollowerScene) -> None:
    scene.fetcher.forget(scene.replicas[0].key)
    scene.partitions[0].become_leader(1)
    scene.turn()
    scene.answer(row(0, batches(0, 3)))
    assert scene.replicas[0].end_offset == 0


def test_a_divergence_of_an_earlier_position_cuts_nothing(scene: FollowerScene) -> None:
    scene.answer(row(0, batches(0, 3)))
    scene.flush()
    scene.answer(row(0, batches(3, 2)))
    assert scene.replicas[0].end_offset == 5
    diverge(scene, 0, 3)
    assert scene.replicas[0].end_offset == 5


def test_records_and_a_flush_that_crossed_are_stored(scene: FollowerScene) -> None:
    scene.answer(row(0, batches(0, 3)))
    scene.flush()
    assert len(scene.peers.sent) == 2
    scene.answer(row(0, batches(3, 2)))
    assert scene.replicas[0].end_offset == 5, "the flush said nothing about the position"


# -- truncation ------------------------------------------------------------------------------------------------------------------


def with_records(scene: FollowerScene, *counts: int, epoch: int = 0) -> None:
    scene.answer(row(0, batches(0, *counts)))
    scene.answer()
    if epoch:
        begin_epoch(scene, epoch)
        scene.answer()


def test_a_follower_that_diverges_cuts_and_asks_again(scene: FollowerScene) -> None:
    with_records(scene, 3, 2, epoch=1)
    scene.answer(row(0, diverging=(0, 3), visible=3))
    assert scene.named() == [], "not while the log is cut"
    scene.run_jobs()
    assert scene.replicas[0].end_offset == 3
    assert positions(scene) == [(0, 3, 0)]


def test_a_cut_is_told_to_whoever_keeps_the_checkpoints(idle: FollowerScene) -> None:
    idle.follow(epoch=2)
    idle.reach()
    idle.answer(row(records=batches(0, 1, 1, 1, epoch=1)))
    diverge(idle, 1, 2)
    assert idle.cut == [2]


def test_an_epoch_that_is_not_known_here_cuts_all_that_is_newer(scene: FollowerScene) -> None:
    begin_epoch(scene, 4)
    scene.answer()
    scene.answer(row(0, batches(0, 3, epoch=0) + batches(3, 2, epoch=3)))
    diverge(scene, 1, 4)
    assert positions(scene) == [(0, 3, 0)], "epoch 0 is the largest that both know"


def test_what_was_visible_is_never_cut(scene: FollowerScene) -> None:
    with_records(scene, 3, 2)
    scene.flush()
    scene.answer(row(0, visible=5))
    scene.answer()
    begin_epoch(scene, 1)
    scene.answer(row(0, diverging=(0, 3)))
    diverge(scene, 0, 3)
    assert scene.replicas[0].end_offset == 5
    assert scene.offline == [0]
    assert scene.replicas[0].is_offline


def test_after_an_unclean_election_what_was_visible_may_be_cut(scene: FollowerScene) -> None:
    with_records(scene, 3, 2)
    scene.flush()
    scene.answer(row(0, visible=5))
    scene.answer()
    scene.replicas[0].is_recovering = True
    begin_epoch(scene, 1)
    scene.answer()
    diverge(scene, 0, 3)
    assert (scene.replicas[0].end_offset, scene.partitions[0].visible_offset) == (3, 3)


def test_too_far_behind_it_begins_anew_where_the_leader_does(scene: FollowerScene) -> None:
    with_records(scene, 3)
    scene.answer(row(0, error=ErrorCode.OFFSET_OUT_OF_RANGE, start=1_000))
    scene.run_jobs()
    assert positions(scene) == [(0, 1_000, -1)]
    assert scene.replicas[0].log_start_offset == 1_000
    scene.answer()
    scene.answer(row(0, batches(1_000, 2)))
    assert scene.replicas[0].end_offset == 1_002


def test_while_a_log_is_cut_nothing_is_stored_in_it(scene: FollowerScene) -> None:
    with_records(scene, 3, 2, epoch=1)
    scene.flush()
    assert len(scene.peers.sent) == 2
    scene.answer(row(0, diverging=(0, 3)))
    scene.answer(row(0, batches(5, 2), visible=5))
    assert scene.replicas[0].end_offset == 5
    scene.run_jobs()
    assert scene.replicas[0].end_offset == 3


def test_a_role_that_changes_during_a_cut_is_not_disturbed_by_its_end(scene: FollowerScene) -> None:
    with_records(scene, 3, 2, epoch=1)
    scene.answer(row(0, diverging=(0, 3)))
    scene.fetcher.forget(scene.replicas[0].key)
    assert scene.replicas[0].is_changing
    scene.run_jobs()
    assert not scene.replicas[0].is_changing
    assert scene.peers.sent[-1][0].session_epoch == -1


# -- producers -------------------------------------------------------------------------------------------------------------------


def test_a_follower_that_leads_knows_the_last_batches_of_each_producer(scene: FollowerScene) -> None:
    scene.answer(row(0, numbered(range(0, 14, 2))))
    assert [led(scene, sequence) for sequence in (4, 6, 8, 10, 12)] == [Staged(offset, True) for offset in (4, 6, 8, 10, 12)]
    with pytest.raises(OutOfOrderSequence):
        led(scene, 2)
    assert led(scene, 14) == Staged(14, False)


def test_a_batch_that_a_follower_has_cut_off_is_new_to_it(scene: FollowerScene) -> None:
    scene.answer(row(0, numbered(range(0, 14, 2))))
    scene.answer()
    begin_epoch(scene, 1)
    scene.answer()
    diverge(scene, 0, 10)
    assert led(scene, 8) == Staged(8, True)
    assert led(scene, 10) == Staged(10, False)


def numbered(sequences: range) -> bytes:
    """A producer's batches of two records, each at the offset of its sequence."""
    return b"".join(bytes(stamped(produced(7, sequence, 2), sequence, 0)[0]) for sequence in sequences)


def led(scene: FollowerScene, sequence: int) -> Staged:
    """What the same producer is answered once this broker leads."""
    scene.partitions[0].become_leader(2)
    return scene.partitions[0].stage(validated(produced(7, sequence, 2)))
