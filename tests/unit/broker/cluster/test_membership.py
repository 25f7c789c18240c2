"""A cluster member calls each callback that waits for the image once, over the simulated ZooKeeper."""

from __future__ import annotations

from random import Random

from broker.cluster.membership import ClusterMember
from broker.cluster.metadata_image import BrokerNode, Endpoint, MetadataImage
from broker.cluster.metadata_writes import create_topic
from broker.cluster.store import run_script
from broker.errors import BrokerError, RequestTimedOut
from tests.sim.coordinated import SESSION_TIMEOUT_MS, topic
from tests.sim.world import Timeline
from tests.sim.zookeeper import SimZooKeeper


class _Process:
    """A member whose turns are driven by the timeline."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.zookeeper = SimZooKeeper(self.timeline, Random(1))
        self.told: list[BrokerError | None] = []
        node = BrokerNode(
            broker_id=1, incarnation=-1, endpoints={"PLAINTEXT": Endpoint(host="localhost", port=9092)}, directory_id="d1"
        )
        self.member = ClusterMember(
            self.zookeeper.client("1", self._wake, SESSION_TIMEOUT_MS),
            node,
            cluster_id="",
            new_cluster_id="ours",
            clock=self.timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            on_fenced=self.told.append,
        )
        self.member.begin()
        self.member.registration.enter(lambda error: None)
        self._turn()
        self.timeline.run(3)

    def _wake(self) -> None:
        self.timeline.after(0, self.member.store.drain)

    def _turn(self) -> None:
        self.member.work(self.timeline.monotonic())
        self.timeline.after(0.05, self._turn)


def _has_clicks(image: MetadataImage) -> bool:
    return "clicks" in image.topics


def test_whoever_waits_for_the_image_is_told_when_it_shows_what_was_waited_for() -> None:
    process = _Process()
    process.member.when_seen(_has_clicks, process.told.append, 10_000)
    assert process.told == []
    run_script(process.member.store, create_topic(topic("clicks", 1), {}), lambda _, error: None)
    process.timeline.run(2)
    assert process.told == [None]
    process.timeline.run(20)
    assert process.told == [None], "told once"


def test_what_the_image_shows_already_is_told_at_once() -> None:
    process = _Process()
    process.member.when_seen(lambda image: True, process.told.append, 10_000)
    assert process.told == [None]


def test_whoever_waits_in_vain_is_told_when_the_time_is_over() -> None:
    process = _Process()
    process.member.when_seen(_has_clicks, process.told.append, 3_000)
    process.timeline.run(2)
    assert process.told == []
    process.timeline.run(2)
    assert [type(error) for error in process.told] == [RequestTimedOut]
