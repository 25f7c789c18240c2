"""A group under churn: stock consumers join, leave and rejoin while records are produced and the broker is killed."""

from __future__ import annotations

import random

from confluent_kafka import KafkaError, Message, Producer
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import LogbusBroker
from tests.support.consumers import GroupMember, poll_until, shared_out
from tests.support.topics import create_topic

PARTITIONS = 6
MEMBERS_MAX = 5
RECORDS_PER_ROUND = 50
TOPIC, GROUP = "churned", "churning"


class Churn:
    """One group, its topic and the producer; `seed` decides what happens when."""

    def __init__(self, broker: LogbusBroker, strategy: str, seed: int) -> None:
        create_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
        self._broker = broker
        self._strategy = strategy
        self._chance = random.Random(seed)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "reconnect.backoff.max.ms": 200})
        self._members: list[GroupMember] = []
        self._gone: list[GroupMember] = []
        self._static: GroupMember | None = None
        self.acknowledged: set[bytes] = set()

    def run(self, rounds: int) -> None:
        """Make `rounds` changes; at the end the group is stable and has seen every acknowledged record at least once."""
        self._enter()
        for number in range(rounds):
            self._produce(number)
            self._chance.choice([self._enter, self._enter, self._leave, self._come_back, self._kill])()
            for _ in range(self._chance.randint(1, 40)):
                for member in self._members:
                    member.poll(0.005)
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        everything = {(TOPIC, index) for index in range(PARTITIONS)}
        poll_until(lambda: shared_out(everything, *self._members), *self._members)
        poll_until(lambda: self.acknowledged <= self.seen, *self._members)

    def close(self) -> None:
        for member in self._members:
            member.close()

    @property
    def seen(self) -> set[bytes]:
        return {value for member in (*self._members, *self._gone) for _, _, value in member.records}

    @property
    def repeats(self) -> int:
        return sum(sum(member.records.values()) for member in (*self._members, *self._gone)) - len(self.seen)

    def _produce(self, number: int) -> None:
        for record in range(RECORDS_PER_ROUND):
            partition = self._chance.randrange(PARTITIONS)
            self._producer.produce(TOPIC, b"%d-%d" % (number, record), partition=partition, on_delivery=self._note)
        self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(message.value() or b"")

    # -- what happens ------------------------------------------------------------------------------------------------------------

    def _member(self, **settings: object) -> GroupMember:
        member = GroupMember(
            self._broker.bootstrap,
            [TOPIC],
            group=GROUP,
            session_timeout_ms=2_000,
            partition_assignment_strategy=self._strategy,
            auto_commit_interval_ms=200,
            reconnect_backoff_max_ms=200,
            **settings,
        )
        self._members.append(member)
        return member

    def _enter(self) -> None:
        if len(self._members) < MEMBERS_MAX:
            self._member()

    def _leave(self) -> None:
        if len(self._members) > 1:
            self._close(self._chance.choice(self._members))

    def _come_back(self) -> None:
        """The static member: closed without leaving the group, then back under its instance id."""
        if self._static is not None and self._static in self._members:
            self._close(self._static)
        self._static = self._member(group_instance_id="static")

    def _close(self, member: GroupMember) -> None:
        self._members.remove(member)
        member.close()
        self._gone.append(member)

    def _kill(self) -> None:
        self._broker.kill9()
        self._broker.start()
