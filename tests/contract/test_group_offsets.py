"""One suite over the fake groups, our broker and Apache Kafka: what is assumed about consumer groups holds for both brokers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from logbus.errors import GroupActive
from logbus.status import group_offsets
from logbus.status.group_offsets import TopicChoice

from tests.support.broker import AnyBroker, any_broker
from tests.support.consumers import GROUP_SETTINGS
from tests.support.kafka_sides import RECORDS, Side

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


def test_a_group_nobody_knows_is_inactive_and_has_committed_nothing(side: Side, group: str) -> None:
    side.groups.validate_inactive(group)
    assert side.groups.committed(group) == {}


def test_what_is_committed_is_found_again_and_the_rest_stays(side: Side, topic: str, group: str) -> None:
    side.groups.commit(group, {(topic, 0): 3, (topic, 1): 4}, "a note")
    side.groups.commit(group, {(topic, 1): 2})
    assert side.groups.committed(group) == {(topic, 0): 3, (topic, 1): 2}
    side.groups.validate_inactive(group)


def test_a_group_with_members_says_who_they_are_and_takes_no_offsets(side: Side, topic: str, group: str) -> None:
    side.groups.commit(group, {(topic, 0): 3})
    with side.member(group, topic):
        with pytest.raises(GroupActive, match="has members"):
            side.groups.commit(group, {(topic, 0): 9})
        with pytest.raises(GroupActive, match="the-member"):
            group_offsets.plan(side.groups, side.log, group, [TopicChoice(topic=topic)], group_offsets.earliest)
    assert side.groups.committed(group)[topic, 0] == 3


def test_a_seek_is_planned_then_done(side: Side, topic: str, group: str) -> None:
    choices = [TopicChoice(topic=topic, partitions=(1,))]
    moves = group_offsets.plan(side.groups, side.log, group, choices, group_offsets.offset(RECORDS + 5))
    assert [(move.current, move.target, move.new) for move in moves] == [(None, RECORDS + 5, RECORDS)]
    assert side.groups.committed(group) == {}
    group_offsets.execute(side.groups, moves)
    assert side.groups.committed(group) == {(topic, 1): RECORDS}
