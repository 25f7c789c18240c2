"""How changes are applied to an image: the cases that are not obvious."""

from __future__ import annotations

import uuid
from dataclasses import replace

from logbus_broker.cluster.metadata_image import (
    NO_STATE,
    BrokersChanged,
    Change,
    DeletionRequested,
    IncarnationRaised,
    LeavingChanged,
    MetadataImage,
    PartitionState,
    Settings,
    StateChange,
    TopicChange,
    TopicDeleted,
    TopicNode,
    TopicSettingsChange,
    apply,
)

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


def _node(topic_id: uuid.UUID = FIRST, partitions: int = 2, version: int = 0) -> TopicNode:
    return TopicNode(name="access", topic_id=topic_id, replicas=((1, 2),) * partitions, version=version)


def _state(version: int, leader: int = 1) -> PartitionState:
    return PartitionState(leader=leader, leader_epoch=version, isr=(1, 2), version=version)


def _state_change(index: int, version: int, *, topic_id: uuid.UUID = FIRST, leader: int = 1) -> StateChange:
    return StateChange(topic="access", topic_id=topic_id, index=index, state=_state(version, leader))


MADE = (TopicChange(topic=_node()), _state_change(0, 0), _state_change(1, 0))
IMAGE, _ = apply(MetadataImage(), MADE)


def test_a_topic_comes_with_the_states_of_its_partitions() -> None:
    assert IMAGE.topics["access"] == _node().with_states((_state(0), _state(0)))


def test_a_state_is_replaced_and_the_others_stay() -> None:
    image, news = apply(IMAGE, [_state_change(1, 1, leader=2)])
    assert image.topics["access"].states == (_state(0), _state(1, leader=2))
    assert news == (_state_change(1, 1, leader=2),)


def test_what_is_known_is_no_news() -> None:
    newer, _ = apply(IMAGE, [_state_change(0, 3)])
    stale: list[Change] = [*MADE, _state_change(0, 2), IncarnationRaised(broker_id=1, incarnation=-1)]
    image, news = apply(newer, stale)
    assert image is newer
    assert news == ()


def test_a_topic_grows_and_keeps_its_states() -> None:
    image, _ = apply(IMAGE, [_state_change(0, 1), TopicChange(topic=_node(partitions=3, version=1)), _state_change(2, 0)])
    assert image.topics["access"].states == (_state(1), _state(0), _state(0))


def test_what_is_about_an_earlier_topic_of_the_name_is_passed_over() -> None:
    image, _ = apply(MetadataImage(), [TopicChange(topic=_node(SECOND)), _state_change(0, 0, topic_id=SECOND)])
    old: list[Change] = [
        TopicChange(topic=_node(FIRST, version=7)),
        _state_change(0, 9, topic_id=FIRST),
        TopicSettingsChange(topic="access", topic_id=FIRST, settings=Settings(values={"a": "b"}, version=9)),
        DeletionRequested(topic="access", topic_id=FIRST),
        TopicDeleted(topic="access", topic_id=FIRST),
    ]
    assert apply(image, old) == (image, ())


def test_a_deleted_topic_takes_its_settings_and_its_mark_along() -> None:
    settings = TopicSettingsChange(topic="access", topic_id=FIRST, settings=Settings(values={}, version=0))
    marked, _ = apply(IMAGE, [settings, DeletionRequested(topic="access", topic_id=FIRST)])
    assert marked.deleting == {"access"}
    image, _ = apply(marked, [TopicDeleted(topic="access", topic_id=FIRST)])
    assert image == MetadataImage()


def test_a_partition_without_a_state_takes_the_first_that_comes() -> None:
    image, _ = apply(MetadataImage(), [TopicChange(topic=_node())])
    assert image.topics["access"].states == (NO_STATE, NO_STATE)
    image, _ = apply(image, [_state_change(0, 0)])
    assert image.topics["access"].states == (_state(0), NO_STATE)


def test_what_is_ephemeral_is_news_only_where_it_differs() -> None:
    image, news = apply(IMAGE, [LeavingChanged(leaving=frozenset({3})), BrokersChanged(brokers={})])
    assert image == replace(IMAGE, leaving=frozenset({3}))
    assert news == (LeavingChanged(leaving=frozenset({3})),)
