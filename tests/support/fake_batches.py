"""Questions about many topics, answered by a log in memory; checked with real brokers by tests/contract/test_log_batches.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from logbus.errors import BrokerNotReady, LogbusError, TopicMissing
from logbus.kafka.client import INTERNAL_PREFIX, PartitionId
from logbus.kafka.topic_list import Kind, PartitionDescription, Question, TopicDescription

from tests.support.fake_log import FakeLog


class FakeBatches:
    """`rounds` counts the calls of `answers`. Of `leaderless` partitions it returns only their replicas."""

    def __init__(self, log: FakeLog, leaderless: Collection[PartitionId] = ()) -> None:
        self.log = log
        self.leaderless = leaderless
        self.rounds = 0

    def topic_names(self, *, with_internal: bool = False) -> list[str]:
        return sorted(name for name in self.log.topics if with_internal or not name.startswith(INTERNAL_PREFIX))

    def topics(self, names: Iterable[str]) -> dict[str, TopicDescription | LogbusError]:
        return {name: self._places(name) for name in sorted(set(names))}

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]:
        self.rounds += 1
        return {one: self._answer(one, partitions.get(one.topic, ())) for one in questions}

    def _places(self, name: str) -> TopicDescription | LogbusError:
        try:
            facts = self.log.topic(name)
        except TopicMissing as error:
            return error
        leaders = {part: None if (name, part) in self.leaderless else 0 for part in facts.partitions}
        places = (
            PartitionDescription(partition=part, leader=leader, replicas=(0,), in_sync=() if leader is None else (0,))
            for part, leader in leaders.items()
        )
        return TopicDescription(name=name, topic_id=facts.topic_id, partitions=tuple(places))

    def _answer(self, question: Question, partitions: Sequence[int]) -> Any:
        topic = question.topic
        if topic not in self.log.topics:
            return TopicMissing(f"the broker has no topic {topic!r}")
        if any((topic, part) in self.leaderless for part in partitions) and question.kind is not Kind.SETTINGS:
            return BrokerNotReady(f"a partition of {topic!r} has no leader")
        match question.kind:
            case Kind.START:
                return self.log.start_offsets(topic, partitions)
            case Kind.END:
                return self.log.end_offsets(topic, partitions, str(question.detail))
            case Kind.AT:
                return self.log.first_at_or_after(topic, partitions, int(question.detail))
            case Kind.SETTINGS:
                return self.log.settings(topic, ("cleanup.policy", "retention.ms", "retention.bytes"))
