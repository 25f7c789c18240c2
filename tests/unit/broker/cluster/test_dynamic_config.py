"""Which setting applies to a topic: what each broker may set for itself, and what all brokers have to agree on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from logbus_broker.cluster.dynamic_config import ImageSettings
from logbus_broker.cluster.metadata_image import MetadataImage, Settings
from logbus_broker.settings import LogConfig

ME = 1


def image(topic: dict[str, str] | None = None, **brokers: dict[str, str]) -> MetadataImage:
    topics: dict[str, Any] = {"topic_settings": {} if topic is None else {"t": Settings(values=topic, version=0)}}
    names = {"every": "<default>", "mine": str(ME), "others": "2"}
    return MetadataImage(
        broker_settings={names[name]: Settings(values=values, version=0) for name, values in brokers.items()}, **topics
    )


@pytest.fixture
def settings() -> ImageSettings:
    return ImageSettings(LogConfig(min_insync_replicas=3, segment_bytes=1000), ME)


def test_a_topics_own_setting_comes_before_the_brokers_and_those_before_the_file(settings: ImageSettings) -> None:
    file, every, mine, topic = 1000, {"log.segment.bytes": "2000"}, {"log.segment.bytes": "3000"}, {"segment.bytes": "4000"}
    assert settings.of_topic(image(), "t").segment_bytes == file
    assert settings.of_topic(image(others=mine), "t").segment_bytes == file
    assert settings.of_topic(image(every=every), "t").segment_bytes == 2000
    assert settings.of_topic(image(every=every, mine=mine), "t").segment_bytes == 3000
    assert settings.of_topic(image(topic, every=every, mine=mine), "t").segment_bytes == 4000
    assert settings.of_topic(image(topic, every=every, mine=mine), "another").segment_bytes == 3000


def test_one_brokers_own_setting_does_not_count_for_what_all_have_to_agree_on(settings: ImageSettings) -> None:
    """A leader with a lower minimum than the controller's would acknowledge records that the controller may give up."""
    mine = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    assert settings.insync_min(image(mine=mine), "t") == 3
    assert not settings.is_unclean_allowed(image(mine=mine), "t")
    assert settings.insync_min(image(every={"min.insync.replicas": "2"}, mine=mine), "t") == 2
    both = {"min.insync.replicas": "4", "unclean.leader.election.enable": "true"}
    assert settings.insync_min(image(both, mine=mine), "t") == 4
    assert settings.is_unclean_allowed(image(both), "t")


def test_what_cannot_be_used_is_passed_over_and_all_else_holds(settings: ImageSettings, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        config = settings.of_topic(image({"segment.bytes": "many", "of.tomorrow": "1", "min.insync.replicas": "2"}), "t")
    assert (config.segment_bytes, config.min_insync_replicas) == (1000, 2)
    assert len(caplog.records) == 2


def test_nothing_is_deleted_where_it_cannot_be_read_what_is_to_be_kept(settings: ImageSettings) -> None:
    """The fallback is seven days, or the cluster's hour, but the value that was skipped may have meant forever."""
    for values in ({"retention.ms": "forever"}, {"retention.bytes": "1 TB"}, {"cleanup.policy": "compakt"}):
        config = settings.of_topic(image(values, every={"log.retention.ms": "3600000"}), "t")
        assert (config.retention_ms, config.retention_bytes) == (-1, -1)
    every = {"log.retention.ms": "forever"}
    assert settings.of_topic(image(every=every), "t").retention_ms == -1
    assert settings.of_topic(image({"retention.ms": "5"}, every=every), "t").retention_ms == 5, "its own says it"


def test_an_answer_is_remembered_until_what_it_was_made_from_is_another(settings: ImageSettings) -> None:
    before = image({"min.insync.replicas": "2"})
    assert settings.of_topic(before, "t") is settings.of_topic(before, "t")
    assert settings.insync_min(before, "t") == 2
    assert settings.insync_min(image({"min.insync.replicas": "1"}), "t") == 1
    assert settings.insync_min(image(), "t") == 3, "the topic's own setting is gone"
    settings.forget("t")
    settings.forget("never seen")
    assert settings.insync_min(before, "t") == 2
