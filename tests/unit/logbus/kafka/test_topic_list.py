from __future__ import annotations

from datetime import timedelta

from logbus.errors import BrokerUnavailable, TopicMissing
from logbus.kafka.rates import Rates
from logbus.kafka.topic_list import TopicOwners, TopicReading, read_topics, retention_json, topic_json, with_rates

from tests.support.fake_batches import FakeBatches
from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW


def read(log: FakeLog, *leaderless: tuple[str, int]) -> dict[str, TopicReading]:
    return {one.name: one for one in read_topics(FakeBatches(log, leaderless))}


def test_a_topic_is_told_by_its_partitions() -> None:
    log = FakeLog.of("t", [1, 2, 3], [4])
    log.delete_records("t", 1)
    found = topic_json(read(log)["t"], TopicOwners(pipelines=["p"], is_managed=True, bytes_each=10.5))
    assert (found["partitions"], found["records"], found["pipelines"]) == (2, 3, ["p"])
    assert (found["size_bytes"], found["size_is_estimated"]) == (31, True)
    assert found["retention"] == {"ms": 604_800_000, "bytes": None, "managed": True}
    assert [(one["start_offset"], one["end_offset"], one["size_bytes"]) for one in found["partition_list"]] == [
        (1, 3, 21),
        (0, 1, 10),
    ]


def test_bytes_on_disk_go_before_an_estimate() -> None:
    log = FakeLog.of("t", [1, 2, 3], [])
    (topic,) = read_topics(FakeBatches(log), sizes=lambda: {("t", 0): 700, ("t", 1): 0, ("other", 0): 1})
    found = topic_json(topic, TopicOwners(bytes_each=10.0))
    assert (found["size_bytes"], found["size_is_estimated"]) == (700, False)
    assert [one["size_bytes"] for one in found["partition_list"]] == [700, 0]


def test_a_broker_that_tells_no_sizes_is_no_trouble() -> None:
    def refuse() -> dict[tuple[str, int], int]:
        raise BrokerUnavailable("not for you")

    (topic,) = read_topics(FakeBatches(FakeLog.of("t", [])), sizes=refuse)
    assert (topic.sizes, topic.size_bytes, topic.error) == ({}, None, None)


def test_where_nobody_has_loaded_anything_nobody_knows_a_size() -> None:
    found = topic_json(read(FakeLog.of("t", []))["t"], TopicOwners())
    assert (found["size_bytes"], found["size_is_estimated"], found["records"]) == (None, False, 0)


def test_what_the_broker_did_not_tell_is_none_and_said() -> None:
    found = topic_json(TopicReading(name="t", places=None, error=BrokerUnavailable("no answer")), TopicOwners())
    assert (found["records"], found["topic_id"], found["partitions"], found["problem"]) == (None, None, 0, "no answer")
    assert found["retention"] is None


def test_a_partition_without_a_leader_hides_nothing_of_the_others_and_makes_totals_unknown() -> None:
    log = FakeLog.of("t", [1, 2, 3], [])
    topic = read(log, ("t", 1))["t"]
    assert ([topic.records_in(part) for part in (0, 1)], topic.records, topic.error) == ([3, None], None, None)
    found = topic_json(topic, TopicOwners(bytes_each=10.0))
    assert [(one["leader"], one["end_offset"], one["size_bytes"]) for one in found["partition_list"]] == [
        (0, 3, 30),
        (None, None, None),
    ]
    assert (found["records"], found["size_bytes"]) == (None, None)


def test_bytes_of_some_partitions_are_not_those_of_the_topic() -> None:
    (topic,) = read_topics(FakeBatches(FakeLog.of("t", [], [])), sizes=lambda: {("t", 0): 700})
    assert (topic.size_bytes, topic.sizes) == (None, {0: 700})


def test_topics_come_in_the_order_in_which_they_were_named_and_without_settings_where_nobody_wants_them() -> None:
    log = FakeLog()
    for name in ("a", "b", "__own"):
        log.create(name)
    batches = FakeBatches(log)
    assert [one.name for one in read_topics(batches)] == ["a", "b"]
    named = read_topics(batches, ["b", "nowhere", "a"], with_settings=False)
    assert [(one.name, dict(one.settings)) for one in named] == [("b", {}), ("nowhere", {}), ("a", {})]
    assert [type(one.error) for one in named] == [type(None), TopicMissing, type(None)]
    assert batches.rounds == 2, "one for all topics"


def test_how_fast_a_topic_grows_is_known_at_the_second_look_at_all_of_it() -> None:
    log, rates = FakeLog.of("t", [], []), Rates()
    later = NOW + timedelta(seconds=10)
    assert [one.produced_per_second for one in with_rates(read(log).values(), rates, NOW)] == [None]
    log.append("t", *range(1, 31))
    assert [one.produced_per_second for one in with_rates(read(log, ("t", 1)).values(), rates, later)] == [None]
    assert [one.produced_per_second for one in with_rates(read(log).values(), rates, later)] == [3.0]


def test_a_topic_that_is_only_compacted_loses_nothing_by_age_or_size() -> None:
    settings = {"cleanup.policy": "compact", "retention.ms": "604800000", "retention.bytes": "1000"}
    assert retention_json(settings, is_managed=False) == {"ms": None, "bytes": None, "managed": False}
    both = retention_json({**settings, "cleanup.policy": "compact,delete"}, is_managed=None)
    assert both == {"ms": 604_800_000, "bytes": 1000, "managed": None}
