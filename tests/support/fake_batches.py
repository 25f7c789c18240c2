"""Questions about many topics, answered by a log in memory: verified against real brokers by tests/contract/test_log_batches.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from logbus.errors import LogbusError, TopicMissing
from logbus.windows.log_batches import INTERNAL_PREFIX, Kind, PartitionPlace, Question, TopicPlaces

from tests.support.fake_log import FakeLog


class FakeBatches:
    """Counts its `rounds`: how often it was asked for answers."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.rounds = 0

    def topic_names(self) -> list[str]:
        return sorted(name for name in self.log.topics if not name.startswith(INTERNAL_PREFIX))

    def topics(self, names: Iterable[str]) -> dict[str, TopicPlaces | LogbusError]:
        return {name: self._places(name) for name in sorted(set(names))}

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]:
        self.rounds += 1
        return {one: self._answer(one, partitions.get(one.topic, ())) for one in questions}

    def _places(self, name: str) -> TopicPlaces | LogbusError:
        try:
            facts = self.log.topic(name)
        except TopicMissing as error:
            return error
        places = tuple(PartitionPlace(partition=part, leader=0, replicas=(0,)) for part in facts.partitions)
        return TopicPlaces(name=name, topic_id=facts.topic_id, partitions=places)

    def _answer(self, question: Question, partitions: Sequence[int]) -> Any:
        topic = question.topic
        if topic not in self.log.topics:
            return TopicMissing(f"the broker has no topic {topic!r}")
        match question.kind:
            case Kind.START:
                return self.log.start_offsets(topic, partitions)
            case Kind.END:
                return self.log.end_offsets(topic, partitions, str(question.detail))
            case Kind.AT:
                return self.log.first_at_or_after(topic, partitions, int(question.detail))
            case Kind.SETTINGS:
                return self.log.settings(topic, ("cleanup.policy", "retention.ms", "retention.bytes"))
