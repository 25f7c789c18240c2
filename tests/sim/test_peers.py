"""Brokers on simulated machines reach each other, and learn which are gone, as over sockets."""

from __future__ import annotations

import pytest
from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.protocol.api import ApiKey
from logbus_broker.replication.interfaces import PeerRequest

from tests.sim.network import Network
from tests.sim.nodes import PORT, SimNode
from tests.sim.peers import SimPeers
from tests.sim.world import MS, SECOND, NodeClock, World

ASKS = PeerRequest(int(ApiKey.API_VERSIONS), 0, b"")


class Scene:
    """A broker's connections to one real broker, and the events it receives."""

    def __init__(self) -> None:
        self.world = World(3)
        self.network = Network(self.world)
        self.other = SimNode(self.world, self.network, 1)
        self.other.start()
        self.events: list[str] = []
        self.answers: list[bool] = []
        self.is_stopped = False
        self.clock = NodeClock(self.world)
        self.peers = SimPeers("broker-0", self.network, events=self, clock=self.clock, wake=lambda: None)
        self.peers.know({1: Endpoint(host="broker-1", port=PORT)})

    def reached(self, broker: int) -> None:
        self.events.append("reached")

    def closed(self, broker: int) -> None:
        self.events.append("closed")

    def refused(self, broker: int) -> None:
        self.events.append("refused")

    def ask(self) -> None:
        self.peers.send(1, ASKS, lambda body: self.answers.append(body is not None))

    def run(self, microseconds: int) -> None:
        """One turn per millisecond."""
        until = self.world.now + microseconds
        while self.world.now < until:
            self.world.run(self.world.now + MS)
            if not self.is_stopped:
                self.peers.work(self.clock.monotonic())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_broker_is_reached_and_answers_in_order(scene: Scene) -> None:
    scene.run(100 * MS)
    assert scene.events == ["reached"]
    assert scene.peers.is_reached(1)
    scene.ask()
    scene.ask()
    assert scene.answers == []
    scene.run(100 * MS)
    assert scene.answers == [True, True]


def test_what_cannot_be_sent_is_answered_with_nothing_and_not_at_once(scene: Scene) -> None:
    scene.ask()
    assert scene.answers == []
    scene.run(MS)
    assert scene.answers == [False]


def test_a_killed_process_is_told_within_milliseconds_and_reached_again_when_it_is_back(scene: Scene) -> None:
    scene.run(100 * MS)
    scene.ask()
    scene.other.kill()
    scene.run(10 * MS)
    assert scene.answers == [False]
    assert scene.events == ["reached", "closed", "refused"]
    scene.other.start()
    scene.run(2 * SECOND)
    assert scene.events[-1] == "reached"


def test_a_machine_without_power_is_neither_closed_nor_refused_before_it_is_back(scene: Scene) -> None:
    scene.run(100 * MS)
    scene.other.cut_power()
    scene.ask()
    scene.run(5 * SECOND)  # less than the time after which a silent broker is given up
    assert scene.events == ["reached"]
    scene.other.start()
    scene.ask()
    scene.run(2 * SECOND)
    assert scene.events == ["reached", "closed", "reached"]
    assert scene.answers == [False, False]


def test_who_is_stopped_is_told_afterwards(scene: Scene) -> None:
    scene.run(100 * MS)
    scene.is_stopped = True
    scene.other.kill()
    scene.run(SECOND)
    assert scene.events == ["reached"]
    scene.is_stopped = False
    scene.run(MS)
    assert scene.events == ["reached", "closed"]


def test_another_address_of_a_broker_is_another_process_and_its_loss_is_no_event(scene: Scene) -> None:
    scene.run(100 * MS)
    scene.ask()
    scene.peers.know({1: Endpoint(host="broker-1", port=PORT + 1)})
    scene.run(100 * MS)
    assert scene.events == ["reached", "reached"]
    assert scene.answers == [False]
