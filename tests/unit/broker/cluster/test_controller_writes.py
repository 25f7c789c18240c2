from __future__ import annotations

import pytest
from logbus_broker.cluster import znodes
from logbus_broker.cluster.controller import Candidate, Claim, Mandate, claim, judge
from logbus_broker.cluster.store import Create, Delete, Node, NoNode, Set
from logbus_broker.errors import MalformedNode, RequestTimedOut

from tests.sim.coordinated import Coordinated, World

ME = Candidate(broker_id=1, session_id=77, timestamp_ms=0)
EPOCH = Node(data=b"4", version=9)


def seat(broker: int, owner: int) -> Node:
    return Node(data=znodes.encode_controller(broker, 0), version=0, ephemeral_owner=owner)


def test_a_free_seat_is_taken_in_a_new_epoch() -> None:
    step = judge(EPOCH, NoNode(), ME, ())
    assert isinstance(step, Claim)
    create, raised = step.operations
    assert isinstance(create, Create)
    assert (create.path, create.is_ephemeral) == ("/controller", True)
    assert raised == Set(path="/controller_epoch", data=b"5", version=9)
    assert step.epoch == 5


def test_the_seat_of_a_living_controller_is_left_alone() -> None:
    assert judge(EPOCH, seat(2, 78), ME, ()) is None
    assert judge(EPOCH, seat(2, 78), ME, (3,)) is None


@pytest.mark.parametrize(("holder", "suspects"), [(2, (2,)), (1, ())], ids=["its port refuses", "our own earlier process"])
def test_the_seat_of_a_process_that_is_gone_is_taken(holder: int, suspects: tuple[int, ...]) -> None:
    step = judge(EPOCH, seat(holder, 78), ME, suspects)
    assert isinstance(step, Claim)
    assert step.operations[0] == Delete(path="/controller", version=0)


def test_a_seat_of_our_own_session_is_ours() -> None:
    assert judge(EPOCH, seat(1, 77), ME, ()) == Mandate(session_id=77, epoch=4, epoch_version=9)


def test_without_the_epochs_node_nobody_rules() -> None:
    with pytest.raises(MalformedNode, match="/controller_epoch is missing"):
        judge(NoNode(), NoNode(), ME, ())


def claimed(world: World, broker: Coordinated, broker_id: int, suspects: tuple[int, ...] = ()) -> Mandate | None:
    mandate = world.answered(broker, claim(broker.store, broker_id, suspects, 0))
    assert mandate is None or isinstance(mandate, Mandate)
    return mandate


def test_of_two_that_claim_at_once_one_is_the_controller(world: World) -> None:
    one, two = world.started(1), world.started(2)
    first = one.ask(claim(one.store, 1, (), 0))
    second = two.ask(claim(two.store, 2, (), 0))
    world.run(1)
    mandates = [answer.value for answer in (first, second)]
    assert sorted(mandate is None for mandate in mandates) == [False, True]


@pytest.mark.parametrize("seed", range(12))
def test_after_a_lost_answer_it_is_found_out_whose_the_seat_is(seed: int) -> None:
    world = World(seed)
    broker = world.started(1)
    world.zookeeper.answer_loss = 1.0
    with pytest.raises(RequestTimedOut):
        claimed(world, broker, 1)
    world.zookeeper.answer_loss = 0.0
    world.run(1)
    mandate = claimed(world, broker, 1)
    assert mandate is not None
    epoch = world.zookeeper.node("/controller_epoch")
    assert (mandate.epoch, mandate.epoch_version) == (int(epoch.data), epoch.version)


def test_a_seat_that_is_taken_over_ends_the_earlier_mandate(world: World) -> None:
    one, two = world.started(1), world.started(2)
    old = claimed(world, one, 1)
    assert claimed(world, two, 2) is None
    new = claimed(world, two, 2, suspects=(1,))
    assert old is not None
    assert new is not None
    assert (new.epoch, new.epoch_version) == (old.epoch + 1, old.epoch_version + 1)
    world.run(1)  # its server may lag
    assert claimed(world, one, 1) is None
