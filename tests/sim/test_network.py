"""Bytes arrive late and in order; a cut link holds them, a dead process resets, a machine without power is silent."""

from __future__ import annotations

import pytest

from tests.sim.network import Network, SimSocket
from tests.sim.world import SECOND, World


class Ends:
    """A client and a server with one connection."""

    def __init__(self) -> None:
        self.world = World(1)
        self.network = Network(self.world)
        self.accepted: list[SimSocket] = []
        self.connected: list[SimSocket | None] = []
        self.network.listen("server", self.accepted.append)

    def connect(self) -> tuple[SimSocket, SimSocket]:
        self.network.connect("client", "server", self.connected.append)
        self.pass_time()
        near = self.connected[-1]
        assert near is not None
        return near, self.accepted[-1]

    def pass_time(self) -> None:
        self.world.run(self.world.now + SECOND)


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_what_is_sent_over_a_cut_link_arrives_in_order_once_it_is_healed(ends: Ends) -> None:
    near, far = ends.connect()
    ends.network.cut("client", "server")
    near.send(b"a")
    far.send(b"the other way")
    near.send(b"b")
    ends.pass_time()
    assert near.take() == b"the other way"
    assert not far.inbox
    ends.network.heal("client", "server")
    near.send(b"c")
    ends.pass_time()
    assert far.take() == b"abc"


def test_a_dead_process_resets_its_connections_and_refuses_new_ones(ends: Ends) -> None:
    near, _ = ends.connect()
    ends.network.process_ended("server")
    ends.pass_time()
    with pytest.raises(ConnectionResetError):
        near.recv_into(memoryview(bytearray(1)))
    ends.network.connect("client", "server", ends.connected.append)
    ends.pass_time()
    assert ends.connected[-1] is None


def test_a_machine_without_power_is_silent_and_resets_old_connections_when_it_is_back(ends: Ends) -> None:
    near, _ = ends.connect()
    ends.network.power_off("server")
    near.send(b"anybody")
    ends.network.connect("client", "server", ends.connected.append)
    ends.pass_time()
    assert not near.was_reset
    assert len(ends.connected) == 1
    ends.network.power_on("server")
    near.send(b"there")
    ends.pass_time()
    assert near.was_reset
