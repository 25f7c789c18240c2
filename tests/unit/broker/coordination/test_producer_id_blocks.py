"""No producer id is assigned twice in a cluster."""

from __future__ import annotations

from broker.coordination import znodes
from broker.coordination.asking import commit
from broker.coordination.producer_id_blocks import cluster_producer_ids
from broker.coordination.store import Set
from tests.sim.coordinated import Coordinated, World


class _Taker:
    def __init__(self, broker: Coordinated) -> None:
        self.blocks = cluster_producer_ids(broker.store, broker.registration.node.broker_id)
        self.ids: list[int] = []
        self.errors: list[BaseException] = []

    def take(self, count: int) -> None:
        for _ in range(count):
            self.blocks.take(self._taken)

    def _taken(self, producer_id: int, error: BaseException | None) -> None:
        if error is None:
            self.ids.append(producer_id)
        else:
            assert producer_id == -1
            self.errors.append(error)


def test_the_next_block_is_there_before_the_first_is_used_up() -> None:
    world = World()
    taker = _Taker(world.started(1))
    taker.take(1)
    world.run(1)
    for _ in range(50):
        taker.take(100)
        assert not taker.blocks._waiting, "a producer had to wait for ZooKeeper"
        world.run(0.1)
    assert taker.ids == list(range(5_001))


def test_a_block_whose_answer_was_lost_is_left_alone() -> None:
    world = World()
    broker = world.started(1)
    taker = _Taker(broker)
    broker.store.lose_answer(is_committed=True)
    taker.take(1)
    world.run(1)
    assert len(taker.errors) == 1
    taker.take(1)
    world.run(1)
    assert taker.ids == [1_000]


def test_lost_answers_cost_ids_and_never_give_one_twice() -> None:
    for seed in range(20):
        world = World(seed)
        takers = [_Taker(world.started(broker_id)) for broker_id in (1, 2)]
        world.zookeeper.answer_loss = 0.3
        for _ in range(20):
            for taker in takers:
                taker.take(300)
            world.run(0.2)
        ids = [producer_id for taker in takers for producer_id in taker.ids]
        assert len(ids) == len(set(ids))
        assert all(len(taker.ids) + len(taker.errors) + len(taker.blocks._waiting) == 6_000 for taker in takers)


def test_blocks_go_on_behind_those_that_kafka_took() -> None:
    world = World()
    broker = world.started(1)
    taker = _Taker(broker)
    theirs = znodes.ProducerIdBlock(broker_id=9, start=7_000, end=8_000)
    data = znodes.encode_producer_id_block(theirs)
    world.answered(broker, commit([Set(path=znodes.PRODUCER_ID_BLOCK, data=data, version=0)]))
    taker.take(1)
    world.run(1)
    assert taker.ids == [8_000]
