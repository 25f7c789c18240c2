"""One suite over the fake, our broker and Apache Kafka: batched queries about many topics get the same answers as single ones."""

from __future__ import annotations

import pytest
from logbus.errors import TopicMissing
from logbus.kafka.topic_list import Kind, Question, TopicDescription

from tests.support.kafka_sides import PARTITIONS, RECORDS, Side


@pytest.fixture
def topics(side: Side, topic: str) -> list[str]:
    names = [topic, f"{topic}-second", f"{topic}-third"]
    for name in names[1:]:
        side.fill(name)
    return names


def test_every_question_is_answered_as_if_it_were_the_only_one(side: Side, topics: list[str]) -> None:
    kinds = [(Kind.START,), (Kind.SETTINGS,), (Kind.AT, 0), (Kind.AT, 2**40), (Kind.END, "read_committed")]
    questions = [Question(kind, name, *detail) for name in topics for kind, *detail in [*kinds, (Kind.END, "read_uncommitted")]]
    single, answers = side.log, side.batches.answers(questions, dict.fromkeys(topics, PARTITIONS))
    for name in topics:
        assert answers[Question(Kind.START, name)] == single.start_offsets(name, PARTITIONS)
        for level in ("read_committed", "read_uncommitted"):
            assert answers[Question(Kind.END, name, level)] == single.end_offsets(name, PARTITIONS, level)
            assert sum(answers[Question(Kind.END, name, level)].values()) == 2 * RECORDS
        for instant in (0, 2**40):
            assert answers[Question(Kind.AT, name, instant)] == single.first_at_or_after(name, PARTITIONS, instant)
        keys = ("retention.ms", "retention.bytes")
        assert {key: answers[Question(Kind.SETTINGS, name)][key] for key in keys} == single.settings(name, keys)


def test_topics_are_described_together_and_a_missing_one_harms_nobody(side: Side, topics: list[str]) -> None:
    described = side.batches.topics([*topics, "nowhere"])
    assert isinstance(described.pop("nowhere"), TopicMissing)
    for name in topics:
        places = described[name]
        assert isinstance(places, TopicDescription)
        assert places.facts == side.log.topic(name)
        assert all(place.leader is not None and place.leader in place.replicas for place in places.partitions)


def test_a_topic_that_is_gone_is_the_error_of_its_own_questions(side: Side, topics: list[str]) -> None:
    questions = [Question(Kind.END, name, "read_committed") for name in (topics[0], "nowhere")]
    answers = side.batches.answers(questions, {topics[0]: PARTITIONS, "nowhere": (0,)})
    assert isinstance(answers[questions[1]], TopicMissing)
    assert set(answers[questions[0]]) == set(PARTITIONS)


def test_all_topics_but_the_brokers_own_are_listed(side: Side, topics: list[str]) -> None:
    listed = side.batches.topic_names()
    assert set(topics) <= set(listed)
    assert not [name for name in listed if name.startswith("__")]
