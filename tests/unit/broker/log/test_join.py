"""A standalone broker's directory on its way into a cluster, on the simulated ZooKeeper."""

from __future__ import annotations

import gc
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logbus_broker import join
from logbus_broker.cluster import metadata_image, metadata_watcher, metadata_writes, store
from logbus_broker.cluster.topic_registry import AUDIT_PARTITIONS
from logbus_broker.errors import BrokerError, StartupError
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.security.state import AUDIT_TOPIC, SecurityState, encode_state
from logbus_broker.settings import BrokerConfig

from tests.support.engine import Harness, batch
from tests.support.manual_clock import ManualClock
from tests.support.stores import SimulatedStores

BROKER = 7
SECURITY = SecurityState(quotas={frozenset({("user", "ann")}): {"producer_byte_rate": 1_000.0}})
SETTINGS = {"broker": {"log.retention.ms": "7"}, "default": {"log.retention.bytes": "8"}}


class Killed(BaseException):
    """The command has ended between two requests to ZooKeeper."""


class World:
    """A data directory, as its standalone broker left it, and a ZooKeeper."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.empty_zookeeper()
        broker = Harness(path, broker_id=BROKER)
        broker.create("clicks", 2, **{"retention.ms": "5"})
        broker.create("views")
        broker.produce(bytes(batch(b"a", b"b")))
        broker.flush()
        self.topic_id = broker.engine.partitions.registry.get("clicks").topic_id
        broker.crash()
        registered = json.loads((path / "topics.json").read_text())
        registered["topics"].append({"name": AUDIT_TOPIC, "id": str(uuid.UUID(int=5)), "partitions": 1, "configs": {}})
        (path / "topics.json").write_text(json.dumps(registered))
        broker = Harness(path, broker_id=BROKER)  # after a crash it writes in a new epoch
        broker.produce(bytes(batch(b"c")))
        broker.flush()
        broker.close()
        (path / "security.json").write_text(json.dumps(encode_state(SECURITY)))
        (path / "broker-configs.json").write_text(json.dumps(SETTINGS))
        (path / "producer-ids.json").write_text('{"next": 9000}')

    def empty_zookeeper(self) -> None:
        self.stores = SimulatedStores(seed=1)
        self.client = self.stores.client()

    def ask(self, script: store.Script[Any]) -> Any:
        outcomes: list[tuple[Any, BrokerError | None]] = []
        store.run_script(self.client.store, script, lambda result, error: outcomes.append((result, error)))
        self.stores.until(lambda: bool(outcomes))
        ((result, error),) = outcomes
        if error is not None:
            raise error
        return result

    def join(self, *, requests_max: int = 1_000) -> bool:
        """`join --accept`, without its process: whether it came to its end with so many requests to ZooKeeper."""
        directory = join.JoiningDirectory(BrokerConfig(log_dirs=self.path, broker_id=BROKER), FileSystem(), uuid.uuid4)
        metadata, numbers = directory.metadata(), iter(range(requests_max))

        def ask(script: store.Script[Any]) -> None:
            self.ask(until_killed(script, numbers))

        try:
            ask(join.check_cluster(directory.cluster_id, is_joining=directory.is_joining))
            directory.begin(metadata)
            ask(join.make_cluster(directory.cluster_id))
            topics = [(directory.cluster_topic(topic, ManualClock()), topic.overrides) for topic in metadata.topics]
            ask(join.create_topics(topics))
            ask(join.write_rest(metadata))
        except Killed:
            return False
        directory.end("this boot")
        return True


def until_killed(script: store.Script[Any], numbers: Iterator[int]) -> store.Script[Any]:
    """The script, as long as there are numbers for its requests."""
    request = next(script)
    while True:
        if next(numbers, None) is None:
            raise Killed
        response = yield request
        try:
            request = script.send(response)
        except StopIteration as end:
            return end.value


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data")


def check_all_is_there(world: World) -> None:
    image = world.ask(metadata_watcher.read_image(-1))
    assert image.topics["clicks"].topic_id == world.topic_id
    assert image.topics["clicks"].replicas == ((BROKER,), (BROKER,))
    assert [state.leader_epoch for state in image.topics["clicks"].states] == [
        1,
        0,
    ]  # an epoch in which nothing was written is lost
    assert image.topic_settings["clicks"].values == {"retention.ms": "5"}
    assert {name: topic.partition_count for name, topic in image.topics.items()} == {
        "clicks": 2,
        "views": 1,
        AUDIT_TOPIC: AUDIT_PARTITIONS,
    }
    assert image.broker_settings[str(BROKER)].values == SETTINGS["broker"]
    assert image.broker_settings[metadata_image.EVERY_BROKER].values == SETTINGS["default"]
    assert image.security.state == SECURITY
    ids: list[int] = []
    metadata_writes.cluster_producer_ids(world.client.store, BROKER).take(lambda taken, error: ids.append(taken))
    world.stores.until(lambda: bool(ids))
    assert ids[0] >= 9000


def open_as_member(path: Path) -> LogDirectory:
    return LogDirectory.open(
        path, broker_id=BROKER, filesystem=FileSystem(), new_id=uuid.uuid4, in_cluster=True, boot_id="this boot"
    )


def test_all_that_it_had_is_in_zookeeper_and_the_directory_is_vouched_for(world: World) -> None:
    assert world.join()
    check_all_is_there(world)
    directory = open_as_member(world.path)
    assert directory.kept_writes
    assert directory.cluster_id == world.ask(metadata_watcher.read_image(-1)).cluster_id
    assert directory.topic_id("clicks", 1) == world.topic_id
    assert len(directory.partitions()) == 3 + AUDIT_PARTITIONS
    assert not list(world.path.glob("*.json"))


def test_a_command_that_ends_at_a_request_is_completed_by_the_next(world: World, tmp_path: Path) -> None:
    standalone, requests = world.path.rename(tmp_path / "standalone"), 1  # the first is its look at the cluster
    while True:
        world.path = Path(shutil.copytree(standalone, tmp_path / str(requests)))
        world.empty_zookeeper()
        if world.join(requests_max=requests):
            break
        assert world.join()
        check_all_is_there(world)
        requests += 3
    assert requests > 20


def test_half_way_in_it_is_neither_served_alone_nor_in_the_cluster(world: World) -> None:
    assert not world.join(requests_max=15)
    with pytest.raises(StartupError, match="run `python -m logbus_broker join --accept` again"):
        open_as_member(world.path)
    with pytest.raises(StartupError, match="belongs to a broker of a cluster"):
        Harness(world.path, broker_id=BROKER)


def refusal(world: World) -> str:
    with pytest.raises(StartupError) as error:
        world.join()
    message = str(error.value)
    del error
    gc.collect()  # the directory's lock, which a process gives back as it ends
    return message


def test_what_cannot_join_says_why_and_stays_as_it_is(world: World) -> None:
    broker = Harness(world.path, broker_id=BROKER)
    assert "another broker" in refusal(world)
    broker.crash()
    assert "was not stopped cleanly" in refusal(world)
    Harness(world.path, broker_id=BROKER).close()
    other = store.Create(path="/cluster/id", data=b'{"version":"1","id":"another"}')
    world.client.commit(store.Create(path="/cluster"), other)
    assert "there is a cluster at this path already, another" in refusal(world)
    Harness(world.path, broker_id=BROKER).close()  # still a standalone broker's


def test_who_has_joined_has_nothing_more_to_do(world: World) -> None:
    world.join()
    with pytest.raises(StartupError, match="already: there is nothing to do"):
        world.join()
