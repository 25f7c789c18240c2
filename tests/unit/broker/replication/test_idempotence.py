"""What the next leader remembers of a producer: of its last five batches none is stored twice, and none is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import InvalidProducerEpoch, OutOfOrderSequence
from broker.partitions.partition import Partition, Staged
from tests.support.batches import produced, validated
from tests.support.logs import open_log
from tests.support.manual_clock import ManualClock
from tests.support.replica_pair import BOTH, TOPIC_ID, PairedBroker

PRODUCER = 7
COUNT = 2  # records per batch


class Pair:
    """Broker 0 leads in epoch 1, broker 1 follows; both are in sync."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.brokers = [PairedBroker(me, directory, 1, self.clock) for me in BOTH]
        for me in BOTH:
            self.brokers[me].link.target = self.brokers[1 - me]
            self.brokers[me].link.connect()
        self.elect(0, 1)

    def elect(self, leader: int, epoch: int) -> Partition:
        for broker in self.brokers:
            broker.learn(0, leader, epoch)
        self.exchange()
        return self.brokers[leader].partitions[0]

    def send(self, leader: int, sequence: int, *, epoch: int = 0) -> Staged:
        """Send one batch to the leader, which writes it if it is new."""
        broker = self.brokers[leader]
        partition = broker.partitions[0]
        staged = partition.stage(validated(produced(PRODUCER, sequence, COUNT, epoch=epoch), now_ms=self.clock.now_ms()))
        partition.write_staged()
        led = broker.led[broker.replicas[0].key]
        led.progress.written(partition.end_offset, broker.now)
        broker.server.written(led)
        return staged

    def exchange(self) -> None:
        """Run until both have the same records on their disks."""
        for _ in range(10):
            self.clock.advance_ms(50)
            for broker in self.brokers:
                broker.run_helpers()
                broker.end_turn()
                broker.flush(broker.partitions[0])
                for other in self.brokers:
                    while other.link.deliver_request() or other.link.deliver_answer():
                        other.end_turn()
                    other.end_turn()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_a_new_leader_knows_the_last_batches_of_a_producer(pair: Pair) -> None:
    for number in range(7):
        pair.send(0, number * COUNT)
    pair.exchange()
    partition = pair.elect(1, 2)
    assert partition.end_offset == 7 * COUNT
    for number in range(2, 7):
        assert pair.send(1, number * COUNT) == Staged(number * COUNT, True)
    with pytest.raises(OutOfOrderSequence):
        pair.send(1, COUNT)
    with pytest.raises(OutOfOrderSequence):
        pair.send(1, 8 * COUNT)
    assert pair.send(1, 7 * COUNT) == Staged(7 * COUNT, False)
    assert pair.send(1, 0, epoch=1) == Staged(8 * COUNT, False)
    with pytest.raises(InvalidProducerEpoch):
        pair.send(1, 8 * COUNT)
    pair.exchange()
    back = pair.elect(0, 3)
    assert pair.send(0, 0, epoch=1) == Staged(8 * COUNT, True)
    assert back.end_offset == 9 * COUNT


def test_a_batch_that_only_the_old_leader_had_is_taken_by_the_new_one_and_once(pair: Pair) -> None:
    """It was never acknowledged by all replicas. The old leader truncates it, and forgets the sequence numbers it had."""
    pair.send(0, 0)
    pair.exchange()
    pair.brokers[1].link.lose()
    pair.send(0, COUNT)
    pair.elect(1, 2)
    assert pair.send(1, COUNT) == Staged(COUNT, False)
    pair.brokers[1].link.connect()
    pair.exchange()
    back = pair.elect(0, 3)
    assert pair.send(0, COUNT) == Staged(COUNT, True)
    assert pair.send(0, 2 * COUNT) == Staged(2 * COUNT, False)
    assert back.end_offset == 3 * COUNT


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_new_leader_knows_them_also_after_a_restart(pair: Pair, is_killed: bool) -> None:
    for number in range(3):
        pair.send(0, number * COUNT)
    pair.exchange()
    before = pair.brokers[1].partitions[0]
    if not is_killed:
        before.close()
    log = open_log(before.log.directory, clean=not is_killed, is_replica=True)
    partition = Partition("clicks", 0, TOPIC_ID, log)
    partition.become_leader(2)
    for number in range(3):
        staged = partition.stage(validated(produced(PRODUCER, number * COUNT, COUNT)))
        assert staged == Staged(number * COUNT, True)
    assert partition.stage(validated(produced(PRODUCER, 3 * COUNT, COUNT))) == Staged(3 * COUNT, False)
    partition.discard_staged()
    log.close()
