"""Any history of two replicas, with leader changes and late or lost messages, ends with two equal logs; and what both consider
visible never differs."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.partitions.partition import Partition
from broker.partitions.producer_state import ProducerState
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock
from tests.support.replica_pair import BOTH, PairedBroker

PARTITIONS = 2
BROKER = st.sampled_from(BOTH)
INDEX = st.integers(0, PARTITIONS - 1)
ROUNDS_MAX = 100


class TwoReplicas(RuleBasedStateMachine):
    """Both are always in the in-sync set, so either may be elected at any moment."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.brokers = [PairedBroker(me, Path(self.directory.name), PARTITIONS, self.clock) for me in BOTH]
        for me in BOTH:
            self.brokers[me].link.target = self.brokers[1 - me]
            self.brokers[me].link.connect()
        self.truth = [(index % 2, 1) for index in range(PARTITIONS)]
        self.producer_ids = count(1)
        self.visible = [[0] * PARTITIONS for _ in BOTH]
        for broker in self.brokers:
            for index in range(PARTITIONS):
                broker.learn(index, *self.truth[index])
            broker.end_turn()

    @rule(index=INDEX, leader=BROKER)
    def elect(self, index: int, leader: int) -> None:
        self.truth[index] = (leader, self.truth[index][1] + 1)

    @rule(broker=BROKER, index=INDEX)
    def learn(self, broker: int, index: int) -> None:
        self.brokers[broker].learn(index, *self.truth[index])
        self.brokers[broker].end_turn()

    @rule(broker=BROKER, index=INDEX, records=st.integers(1, 3), batches=st.integers(1, 3))
    def append(self, broker: int, index: int, records: int, batches: int) -> None:
        """A leader that does not yet know it was replaced appends too."""
        one = self.brokers[broker]
        if one.partitions[index].is_led:
            for _ in range(batches):
                one.append(index, next(self.producer_ids), records)
            one.end_turn()

    @rule(broker=BROKER, index=INDEX)
    def flush(self, broker: int, index: int) -> None:
        one = self.brokers[broker]
        one.flush(one.partitions[index])
        one.end_turn()

    @rule(broker=BROKER, messages=st.integers(1, 4))
    def deliver(self, broker: int, messages: int) -> None:
        """Deliver some of its requests, and the answers to them."""
        link = self.brokers[broker].link
        for _ in range(messages):
            link.deliver_request()
            self.brokers[1 - broker].end_turn()
            link.deliver_answer()
            self.brokers[broker].end_turn()

    @rule(broker=BROKER)
    def deliver_only_requests(self, broker: int) -> None:
        while self.brokers[broker].link.deliver_request():
            self.brokers[1 - broker].end_turn()

    @rule(broker=BROKER)
    def lose_the_connection(self, broker: int) -> None:
        self.brokers[broker].link.lose()
        self.brokers[broker].end_turn()

    @rule(broker=BROKER)
    def connect(self, broker: int) -> None:
        self.brokers[broker].link.connect()
        self.brokers[broker].end_turn()

    @rule(broker=BROKER)
    def help(self, broker: int) -> None:
        """Complete the truncations in progress."""
        self.brokers[broker].run_helpers()
        self.brokers[broker].end_turn()

    @rule(milliseconds=st.sampled_from([1, 30, 600]))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.advance_ms(milliseconds)
        for broker in self.brokers:
            broker.end_turn()

    @precondition(lambda self: hasattr(self, "brokers"))
    @rule(broker=BROKER, index=INDEX)
    def delete_what_is_old(self, broker: int, index: int) -> None:
        one = self.brokers[broker]
        partition = one.partitions[index]
        if partition.is_led and not partition.log.is_being_cut:
            partition.log.delete_before(partition.visible_offset, limit_offset=partition.visible_offset)
            one.server.moved(one.led[one.replicas[index].key])

    @invariant()
    def what_both_call_visible_is_equal(self) -> None:
        for index in range(PARTITIONS):
            first, second = (broker.partitions[index] for broker in self.brokers)
            start_offset = max(first.log_start_offset, second.log_start_offset)
            end_offset = min(first.visible_offset, second.visible_offset)
            contents = [broker.content(index, start_offset, end_offset) for broker in self.brokers]
            assert contents[0] == contents[1]

    @invariant()
    def visible_is_flushed_and_never_falls(self) -> None:
        for me, broker in enumerate(self.brokers):
            for index, partition in enumerate(broker.partitions):
                assert partition.log_start_offset <= partition.visible_offset <= partition.log.flushed_offset
                assert partition.visible_offset >= self.visible[me][index]
                self.visible[me][index] = partition.visible_offset

    def teardown(self) -> None:
        if not hasattr(self, "brokers"):
            return
        for broker in self.brokers:
            for index in range(PARTITIONS):
                broker.learn(index, *self.truth[index])
            broker.link.connect()
        for _ in range(ROUNDS_MAX):
            self._round()
            if all(self._is_equal(index) for index in range(PARTITIONS)):
                break
        for index in range(PARTITIONS):
            assert self._is_equal(index), "the follower does not catch up"
            first, second = (broker.partitions[index] for broker in self.brokers)
            start_offset = max(first.log_start_offset, second.log_start_offset)
            contents = [broker.content(index, start_offset, first.end_offset) for broker in self.brokers]
            assert contents[0] == contents[1]
            assert self._epochs(first, start_offset) == self._epochs(second, start_offset)
            assert self._producers(first, start_offset) == self._producers(second, start_offset)
        for broker in self.brokers:
            for partition in broker.partitions:
                partition.log.close()
        self.directory.cleanup()

    def _round(self) -> None:
        self.clock.advance_ms(50)
        for broker in self.brokers:
            broker.run_helpers()
            for partition in broker.partitions:
                broker.flush(partition)
            for other in self.brokers:
                while other.link.deliver_request() or other.link.deliver_answer():
                    pass
            for other in self.brokers:
                other.end_turn()

    def _epochs(self, partition: Partition, start_offset: int) -> list[tuple[int, int]]:
        """Epochs that began with a record that both have: a follower learns nothing of an epoch without records."""
        return [entry for entry in partition.log.epochs.written.entries if start_offset < entry[1] < partition.end_offset]

    def _producers(self, partition: Partition, start_offset: int) -> dict[int, ProducerState]:
        """Of the records both have: a follower that restarts at the leader's log start never sees those deleted before it."""
        known = partition.producers.stored().items()
        return {producer_id: state for producer_id, state in known if state.batches[-1].base_offset >= start_offset}

    def _is_equal(self, index: int) -> bool:
        first, second = (broker.partitions[index] for broker in self.brokers)
        return first.end_offset == second.end_offset == first.visible_offset == second.visible_offset


TwoReplicas.TestCase.settings = settings(max_examples=examples(40, at_least=40), stateful_step_count=60, deadline=None)
TestTwoReplicas = TwoReplicas.TestCase
