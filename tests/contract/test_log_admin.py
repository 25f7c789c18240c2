"""One suite over the fake log, our broker and Apache Kafka: both brokers carry out managed retention's orders alike."""

from __future__ import annotations

import pytest
from logbus.errors import TopicMissing, UserError
from logbus.waiting import wait_until

from tests.support.kafka_sides import RECORDS, Side


def test_records_before_an_offset_are_deleted_and_those_from_it_on_stay(side: Side, topic: str) -> None:
    assert side.log.delete_before(topic, {0: 4, 1: RECORDS}) == {0: 4, 1: RECORDS}
    assert side.log.start_offsets(topic, [0, 1]) == {0: 4, 1: RECORDS}
    assert side.log.end_offsets(topic, [0, 1], "read_uncommitted") == {0: RECORDS, 1: RECORDS}


def test_deleting_again_changes_nothing(side: Side, topic: str) -> None:
    side.log.delete_before(topic, {0: 4})
    assert side.log.delete_before(topic, {0: 2}) == {0: 4}
    assert side.log.start_offsets(topic, [0, 1]) == {0: 4, 1: 0}


def test_nothing_is_deleted_behind_the_end(side: Side, topic: str) -> None:
    with pytest.raises(UserError, match="ends before the offset"):
        side.log.delete_before(topic, {0: RECORDS + 1})
    assert side.log.start_offsets(topic, [0]) == {0: 0}


def test_no_partitions_no_order(side: Side, topic: str) -> None:
    assert side.log.delete_before(topic, {}) == {}


def test_settings_are_read_as_they_are_in_force_and_changed_one_by_one(side: Side, topic: str) -> None:
    names = ["retention.ms", "retention.bytes", "cleanup.policy", "no.such.setting"]
    before = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert side.log.settings(topic, names) == before
    side.log.change_settings(topic, {"retention.ms": "-1"})
    changed = {**before, "retention.ms": "-1"}
    # Apache Kafka's controller answers once a change is stored; its brokers learn of it a moment later.
    wait_until(lambda: side.log.settings(topic, names) == changed, what="the settings as they were changed")


def test_a_topic_that_is_not_there_is_missing(side: Side) -> None:
    with pytest.raises(TopicMissing):
        side.log.delete_before("nowhere", {0: 1})
    with pytest.raises(TopicMissing):
        side.log.settings("nowhere", ["retention.ms"])
