"""Brokers that join their cluster, in the simulation: what happens in the first seconds of a process."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.cluster import znodes
from logbus_broker.cluster.metadata_image import EVERY_BROKER, PartitionState
from logbus_broker.cluster.store import Create, Set
from logbus_broker.errors import BrokerError
from logbus_broker.filesystem import PARTITION_METADATA
from logbus_broker.log.checkpoint import RECOVERY_POINTS
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.metrics import health, metrics_page
from logbus_broker.replication import replicas

from tests.sim.cluster import ClusterStage, draw_story, quiet_stage
from tests.sim.cluster_nodes import ClusterNode
from tests.sim.nodes import DATA
from tests.sim.stage import TOPIC
from tests.sim.world import MS, SECOND, Timeline
from tests.sim.zookeeper import SimZooKeeper


@pytest.fixture
def stage() -> ClusterStage:
    """Three brokers and a topic with records, without any faults."""
    stage = quiet_stage()
    stage.run(5 * SECOND)
    assert not stage.ailments()
    return stage


def test_a_broker_that_enters_its_cluster_waits_for_answers_without_turning() -> None:
    stage = ClusterStage(replace(draw_story(1), faults=()))
    stage.begin()
    stage.run(SECOND)
    assert all(node.is_serving for node in stage.nodes)
    assert stage.world.events < 1_500, "each answer is a few events"


def test_a_start_waits_for_zookeeper_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    stage = ClusterStage(replace(draw_story(1), faults=()))
    stage.zookeeper.stop()
    for node in stage.nodes:
        node.start()
    stage.run(10 * SECOND)
    assert not any(node.is_serving for node in stage.nodes)
    assert "waiting for ZooKeeper at zookeeper:2181: no answer" in caplog.text
    stage.zookeeper.start()
    assert stage.until(lambda: all(node.is_serving for node in stage.nodes), 20 * SECOND)


def test_a_start_that_cannot_read_what_it_has_to_says_why(caplog: pytest.LogCaptureFixture, stage: ClusterStage) -> None:
    path, node = znodes.broker_settings_path(EVERY_BROKER), stage.nodes[0]
    _write_by_hand(stage, path, b"{}", is_new=True)
    node.restart()
    stage.run(stage.world.now + 10 * SECOND)
    assert not node.is_serving
    assert "still starting: reading the cluster metadata: cannot read the settings of brokers: <default>" in caplog.text
    _write_by_hand(stage, path, znodes.encode_settings({}))
    assert stage.until(lambda: node.is_serving, 20 * SECOND)


def test_serving_goes_on_while_zookeeper_is_away_for_minutes_and_health_says_so(stage: ClusterStage) -> None:
    stage.zookeeper.stop()
    stage.run(stage.world.now + 180 * SECOND)
    _, _, engine, cluster, partition = stage.leader()
    assert cluster.why_not(partition) is None
    assert cluster.serves_consumers(partition)
    is_healthy, text = health(engine)
    assert not is_healthy
    assert "ZooKeeper at zookeeper:2181 has not answered for 180 s: partitions led here are served" in text
    stage.zookeeper.start()
    assert stage.until(lambda: not stage.ailments() and health(engine)[0], 20 * SECOND), stage.ailments()


def test_metrics_say_who_is_controller_who_lacks_replicas_and_how_far_followers_are_behind(stage: ClusterStage) -> None:
    def shown(name: str) -> list[float]:
        pages = [b"".join(metrics_page(node.engine)).decode() for node in stage.nodes if node.engine is not None]
        return [float(line.split()[-1]) for page in pages for line in page.splitlines() if line.startswith(name)]

    assert sum(shown("kafka_controller_kafkacontroller_activecontrollercount")) == 1
    assert sum(shown("kafka_server_replicamanager_leadercount")) == 1
    assert shown('kafka_server_replicafetchermanager_maxlag{clientId="Replica"}') == [0, 0, 0]
    assert sum(shown("kafka_server_replicamanager_underreplicatedpartitions")) == 0
    stage.leader().node.kill()
    assert stage.until(lambda: sum(shown("kafka_server_replicamanager_underreplicatedpartitions")) == 1, 20 * SECOND)
    assert stage.until(lambda: sum(shown("kafka_controller_kafkacontroller_activecontrollercount")) == 1, 20 * SECOND)
    assert sum(shown("kafka_controller_kafkacontroller_offlinepartitionscount")) == 0


def test_a_log_that_is_gone_is_made_anew_and_not_taken_for_a_damaged_one(stage: ClusterStage) -> None:
    """The checkpoints still say how far the old log was flushed: they must forget it before the log is created again."""
    node = stage.nodes[0]
    stage.run(10 * SECOND)
    node.kill()
    node.disk.remove(DATA / f"{TOPIC}-0")
    node.start()
    assert stage.until(lambda: not stage.ailments(), 20 * SECOND), stage.ailments()


@pytest.fixture
def written() -> ClusterStage:
    """Three brokers that have the same records of one segment; nothing more is sent."""
    stage = quiet_stage(segment_bytes=1 << 20)
    stage.run(5 * SECOND)
    assert not stage.finish()
    stage.run(stage.world.now + 5 * SECOND)
    return stage


def _shorten(node: ClusterNode, *, damaged: bool = False) -> None:
    """Half of the log of a process that is gone is lost, by what had not been flushed or by a byte that has changed."""
    place = DATA / f"{TOPIC}-0"
    (name,) = [name for name in node.disk.list_names(place) if name.endswith(".log")]
    log = bytearray(node.disk.read_bytes(place / name))
    if damaged:
        log[len(log) // 2] ^= 1
    else:
        del log[len(log) // 2 :]
    node.disk.write_bytes(place / name, log)
    if RECOVERY_POINTS in node.disk.list_names(DATA):
        node.disk.remove(DATA / RECOVERY_POINTS)  # written before these records were


def _end_offsets(stage: ClusterStage) -> set[int]:
    partitions = [node.held(TOPIC, 0) for node in stage.nodes]
    return {partition.end_offset for partition in partitions if partition is not None}


def _start_after_a_power_failure(stage: ClusterStage, *order: int) -> None:
    """In which one of them has lost what it had not flushed."""
    for node in stage.nodes:
        node.kill()
        node.reboot()
    _shorten(stage.nodes[2])
    for number in order:
        stage.nodes[number].start()
        stage.run(stage.world.now + 2 * SECOND)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_after_a_power_failure_everywhere_the_longest_log_leads_whoever_starts_last(
    written: ClusterStage, order: tuple[int, ...]
) -> None:
    (end,) = _end_offsets(written)
    _start_after_a_power_failure(written, *order)
    assert written.until(lambda: not written.ailments(), 60 * SECOND), written.ailments()
    assert _end_offsets(written) == {end}


def test_whoever_starts_last_would_lead_if_nobody_remembered_how_far_other_logs_went(
    written: ClusterStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of the test above, switched off."""
    at_start = replicas.state_at_start

    def whoever_starts_last(me: int, state: PartitionState, *others: Any) -> PartitionState:
        return at_start(me, replace(state, withdrawn=()), *others)

    monkeypatch.setattr("logbus_broker.replication.lifecycle.state_at_start", whoever_starts_last)
    _start_after_a_power_failure(written, 0, 1, 2)
    assert written.invariants.broken.startswith("invariant 5"), "what was visible is not there any more"


def test_a_log_that_recovery_has_cut_is_not_vouched_for(written: ClusterStage) -> None:
    (end,) = _end_offsets(written)
    for node in written.nodes:
        node.kill()
    _shorten(written.nodes[2], damaged=True)
    for number in (2, 0, 1):
        written.nodes[number].start()
        written.run(written.world.now + 2 * SECOND)
    assert written.until(lambda: not written.ailments(), 60 * SECOND), written.ailments()
    assert _end_offsets(written) == {end}


def test_the_last_member_yields_to_a_replica_that_has_everything(written: ClusterStage) -> None:
    """It alone is in sync, and has lost its page cache; the replica that left before it has all that was acknowledged."""
    (end,) = _end_offsets(written)
    last = written.leader().node
    others = [node for node in written.nodes if node is not last]
    for node in others:
        node.kill()
    assert written.until(lambda: written.zookeeper.state(TOPIC).isr == (last.broker_id,), 20 * SECOND)
    last.kill()
    last.reboot()
    _shorten(last)
    for node in (last, *others):
        node.start()
        written.run(written.world.now + 2 * SECOND)
    assert written.until(lambda: not written.ailments(), 60 * SECOND), written.ailments()
    assert _end_offsets(written) == {end}


def test_nothing_is_made_on_the_disk_before_it_is_sure_who_this_broker_is(stage: ClusterStage) -> None:
    """A new disk has its own id, so other brokers see a stranger until the previous process's session has ended."""
    node = stage.nodes[0]
    node.kill()
    node.replace_disk()
    node.start()
    assert stage.until(lambda: not node.is_serving and node.held(TOPIC, 0) is None, SECOND)
    stage.run(stage.world.now + SECOND)
    assert node.held(TOPIC, 0) is None
    assert stage.until(lambda: not stage.ailments(), 20 * SECOND), stage.ailments()


def test_a_disk_that_refuses_while_strange_logs_are_set_aside_ends_the_start(
    stage: ClusterStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an unexpected error in one turn of the loop, and half of what the start had to do was done twice. The strange log is
    a copy: it has the id of a topic that exists, and is not removed with the replicas that this broker no longer has."""
    node = stage.nodes[0]
    node.kill()
    node.disk.make_directory(DATA / "stray-0")
    metadata = node.disk.read_bytes(DATA / f"{TOPIC}-0" / PARTITION_METADATA)
    node.disk.write_bytes(DATA / "stray-0" / PARTITION_METADATA, metadata)
    set_aside, refusals = LogDirectory.set_aside, [OSError(errno.EIO, "Input/output error")]

    def refused_once(directory: LogDirectory, name: str, index: int) -> Path:
        if refusals:
            raise refusals.pop()
        return set_aside(directory, name, index)

    monkeypatch.setattr(LogDirectory, "set_aside", refused_once)
    starts = node.starts
    node.start()
    assert stage.until(lambda: node.starts > starts + 1, 60 * SECOND)
    assert stage.until(lambda: not stage.ailments(), 20 * SECOND), stage.ailments()
    assert [name for name in node.disk.list_names(DATA) if name.startswith("stray-0.") and name.endswith("-stray")]
    assert not node.disk.is_directory(DATA / "stray-0")


def test_a_zookeeper_that_never_saw_the_directory_does_not_get_it_however_often_it_is_tried(stage: ClusterStage) -> None:
    """A wrong chroot, or a ZooKeeper that lost its data, under a service manager that keeps restarting the broker: no attempt
    may find that an earlier one has registered the broker there, and take the logs for those of deleted topics."""
    node = stage.nodes[0]
    node.kill()
    starts = node.starts
    node.set_zookeeper(SimZooKeeper(Timeline(stage.world), stage.world.chance("another zookeeper")))
    node.start()
    assert stage.until(lambda: node.starts > starts + 3, 60 * SECOND)
    assert not node.is_serving
    assert node.disk.is_directory(DATA / f"{TOPIC}-0")
    node.kill()
    node.set_zookeeper(stage.zookeeper)
    node.start()
    assert stage.until(lambda: not stage.ailments(), 20 * SECOND), stage.ailments()


def test_the_logs_of_a_topic_that_cannot_be_read_stay(stage: ClusterStage) -> None:
    """A node that a tool has damaged, or that a newer broker wrote: the topic is not gone. Neither a broker that reads everything
    again nor one that is starting may remove its logs of that topic; once the node is restored, the next start continues."""
    node = stage.nodes[0]
    path = znodes.topic_path(TOPIC)
    data = stage.zookeeper.node(path).data
    _write_by_hand(stage, path, b"{}")
    for other in stage.nodes:
        assert other.store is not None
        stage.zookeeper.expire(other.store.client_session_id)
    stage.run(stage.world.now + 10 * SECOND)
    assert all(other.disk.is_directory(DATA / f"{TOPIC}-0") for other in stage.nodes)
    node.restart()
    assert stage.until(lambda: node.is_serving, 20 * SECOND)
    assert node.disk.is_directory(DATA / f"{TOPIC}-0")
    _write_by_hand(stage, path, data)
    for other in stage.nodes:
        other.restart()
    assert stage.until(lambda: not stage.ailments(), 60 * SECOND), stage.ailments()


def _write_by_hand(stage: ClusterStage, path: str, data: bytes, *, is_new: bool = False) -> None:
    """As a tool does; the invariants cover only what brokers write."""
    observers, stage.zookeeper.observers = stage.zookeeper.observers, []
    store = stage.nodes[0].store
    assert store is not None
    write = Create(path=path, data=data) if is_new else Set(path=path, data=data, version=-1)
    store.commit([write], lambda outcome: None)
    stage.run(stage.world.now + 1 * SECOND)
    stage.zookeeper.observers = observers
    assert stage.zookeeper.node(path).data == data


def test_followers_go_on_at_once_when_a_leader_s_machine_is_back(stage: ClusterStage) -> None:
    """Their connections to it are half open, and the answers that they wait for on them will never come."""
    leader = stage.leader().node
    leader.cut_power()
    leader.start()
    assert stage.until(lambda: leader.is_serving, 2 * SECOND)
    joins = stage.invariants.joins
    assert stage.until(lambda: stage.invariants.joins > joins and not stage.ailments(), 4 * SECOND), stage.ailments()


def test_a_restarted_broker_begins_with_what_it_knew_to_be_visible(stage: ClusterStage) -> None:
    """Before it hears from any other broker, so a leader serves consumers at once, and a follower guards what they have seen."""
    assert not stage.finish()
    stage.run(stage.world.now + 10 * SECOND)  # long enough for a checkpoint
    _, node, _, _, before = stage.leader()
    assert before.visible_offset == before.end_offset > 0
    for broker in stage.nodes:
        broker.kill()
    node.start()
    assert stage.until(lambda: node.held(TOPIC, 0) is not None, 10 * SECOND)
    after = node.held(TOPIC, 0)
    assert after is not None
    assert after.visible_offset == before.visible_offset


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_cut_log_is_compacted_and_visible_no_further_than_it_was_cut(stage: ClusterStage, is_killed: bool) -> None:
    """Also if the process ends before the checkpoints record the cut."""
    assert not stage.finish()
    stage.run(stage.world.now + 10 * SECOND)
    leader = stage.leader().node
    node = next(node for node in stage.nodes if node is not leader)
    engine, partition = node.engine, node.held(TOPIC, 0)
    assert engine is not None
    assert engine.cluster is not None
    assert partition is not None
    here = engine.cluster.replica_manager.local_replica(engine.cluster.member.image.topics[TOPIC], 0)
    assert here is not None
    assert here.followed is not None
    engine._directory.checkpoints.note_cleaned_offset(TOPIC, 0, partition.end_offset)
    engine._write_cleaned_offsets()
    stage.run(stage.world.now + SECOND)
    here.followed.is_recovering = True
    engine.cluster._fetchers.forget(here.key)
    outcomes: list[BrokerError | None] = []
    here.followed.cut(partition.leader_epoch, 3, outcomes.append)
    stage.world.run(stage.world.now + 100 * MS, lambda: bool(outcomes))
    assert outcomes == [None]
    assert partition.end_offset == partition.visible_offset <= 3
    if is_killed:
        node.restart()
        stage.world.run(stage.world.now + 10 * SECOND, lambda: node.held(TOPIC, 0) is not None)
        assert node.engine is not None
        engine, held = node.engine, node.held(TOPIC, 0)
        assert held is not None
        assert held.visible_offset == held.end_offset <= 3
    assert engine._directory.checkpoints.cleaned_offset(TOPIC, 0) <= 3
