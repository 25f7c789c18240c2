"""The topics of a cluster as one broker sees them in its image."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import count

import pytest

from broker.coordination.changes import Change, DeletionAsked, StateChange, TopicChange, TopicGone, TopicSettingsChange, apply
from broker.coordination.follow import News
from broker.coordination.image import Image, PartitionState, Settings
from broker.coordination.image_topics import ImageTopics
from broker.coordination.local import Topic
from broker.coordination.znodes import TopicNode
from broker.errors import InvalidTopic, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition

STATE = PartitionState(leader=1, leader_epoch=0, isr=(1, 2), version=0)


class Followed:
    """A registry that gets the same changes as the image."""

    def __init__(self) -> None:
        ids = count(100)
        self.image = Image()
        self.topics = ImageTopics(lambda: uuid.UUID(int=next(ids)))

    def see(self, *changes: Change) -> list[Topic]:
        self.image, news = apply(self.image, changes)
        return self.topics.image_changed(self.image, News(changes=news))


def made(name: str, number: int, partitions: int = 1, **settings: str) -> list[Change]:
    topic_id = uuid.UUID(int=number)
    node = TopicNode(name=name, topic_id=topic_id, replicas=((1, 2),) * partitions, version=0, adding={}, removing={})
    states = [StateChange(topic=name, topic_id=topic_id, index=index, state=STATE) for index in range(partitions)]
    return [
        TopicChange(topic=node),
        *states,
        TopicSettingsChange(topic=name, topic_id=topic_id, settings=Settings(values=settings, version=0)),
    ]


def test_a_topic_is_found_by_name_and_id_once_the_image_has_it() -> None:
    followed = Followed()
    (topic,) = followed.see(*made("clicks", 1, 3, retention="1"))
    assert (topic.partition_count, topic.replication_factor, topic.overrides) == (3, 2, {"retention": "1"})
    assert followed.topics.get("clicks") == followed.topics.get_by_id(uuid.UUID(int=1)) == topic
    assert "clicks" in followed.topics
    assert followed.topics.names() == ["clicks"]


def test_growth_and_settings_are_news_and_a_new_leader_is_none() -> None:
    followed = Followed()
    followed.see(*made("clicks", 1))
    topic_id = uuid.UUID(int=1)
    later = replace(STATE, leader=2, version=1)
    assert followed.see(StateChange(topic="clicks", topic_id=topic_id, index=0, state=later)) == []
    changed = Settings(values={"retention.ms": "5"}, version=1)
    (topic,) = followed.see(TopicSettingsChange(topic="clicks", topic_id=topic_id, settings=changed))
    assert topic.overrides == {"retention.ms": "5"}
    grown = TopicNode(name="clicks", topic_id=topic_id, replicas=((1, 2),) * 4, version=1, adding={}, removing={})
    (topic,) = followed.see(TopicChange(topic=grown))
    assert topic.partition_count == 4


def test_a_topic_that_is_marked_for_deletion_serves_nobody_and_keeps_its_name() -> None:
    followed = Followed()
    followed.see(*made("clicks", 1))
    assert followed.see(DeletionAsked(topic="clicks", topic_id=uuid.UUID(int=1))) == []
    with pytest.raises(UnknownTopicOrPartition):
        followed.topics.get("clicks")
    with pytest.raises(UnknownTopicId):
        followed.topics.get_by_id(uuid.UUID(int=1))
    with pytest.raises(TopicAlreadyExists, match="being deleted"):
        followed.topics.new("clicks", 1, {})
    followed.see(TopicGone(topic="clicks", topic_id=uuid.UUID(int=1)))
    assert followed.topics.new("clicks", 1, {}).topic_id == uuid.UUID(int=100)


def test_a_topic_made_again_has_only_its_own_id() -> None:
    followed = Followed()
    followed.see(*made("clicks", 1))
    followed.see(TopicGone(topic="clicks", topic_id=uuid.UUID(int=1)), *made("clicks", 2))
    assert followed.topics.get("clicks").topic_id == uuid.UUID(int=2)
    with pytest.raises(UnknownTopicId):
        followed.topics.get_by_id(uuid.UUID(int=1))


def test_what_is_not_in_an_image_read_anew_is_gone() -> None:
    followed = Followed()
    followed.see(*made("clicks", 1), *made("views", 2))
    image, _ = apply(Image(), made("views", 2))
    assert followed.topics.image_changed(image, News(is_everything=True)) == []
    assert followed.topics.names() == ["views"]
    followed.topics.new("clicks", 1, {})


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    followed = Followed()
    followed.see(*made("a.b", 1))
    for name in ("a_b", "__consumer.offsets"):
        with pytest.raises(InvalidTopic, match="collides"):
            followed.topics.new(name, 1, {})
    with pytest.raises(TopicAlreadyExists):
        followed.topics.new("a.b", 1, {})
    followed.see(TopicGone(topic="a.b", topic_id=uuid.UUID(int=1)))
    followed.topics.new("a_b", 1, {})
