from __future__ import annotations

from datetime import timedelta

from logbus.errors import BrokerUnavailable, TopicMissing
from logbus.kafka import topic_list

from tests.support.fake_batches import FakeBatches
from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW


def read(log: FakeLog, *leaderless: tuple[str, int]) -> dict[str, topic_list.TopicReading]:
    return {topic.name: topic for topic in topic_list.read_topics(FakeBatches(log, leaderless))}


def test_a_topic_is_described_by_its_partitions() -> None:
    log = FakeLog.of("t", [1, 2, 3], [4])
    log.delete_records("t", 1)
    described = topic_list.topic_json(read(log)["t"], topic_list.TopicOwners(pipelines=["p"], is_managed=True, bytes_each=10.5))
    assert (described["partitions"], described["records"], described["pipelines"]) == (2, 3, ["p"])
    assert (described["size_bytes"], described["size_is_estimated"]) == (31, True)
    assert described["retention"] == {"ms": 604_800_000, "bytes": None, "managed": True}
    parts = [(part["start_offset"], part["end_offset"], part["size_bytes"]) for part in described["partition_list"]]
    assert parts == [(1, 3, 21), (0, 1, 10)]


def test_bytes_on_disk_go_before_an_estimate() -> None:
    log = FakeLog.of("t", [1, 2, 3], [])
    (topic,) = topic_list.read_topics(FakeBatches(log), sizes=lambda: {("t", 0): 700, ("t", 1): 0, ("other", 0): 1})
    described = topic_list.topic_json(topic, topic_list.TopicOwners(bytes_each=10.0))
    assert (described["size_bytes"], described["size_is_estimated"]) == (700, False)
    assert [part["size_bytes"] for part in described["partition_list"]] == [700, 0]
    (topic,) = topic_list.read_topics(FakeBatches(log), sizes=lambda: {("t", 0): 700})
    assert (topic.size_bytes, topic.sizes) == (None, {0: 700}), "bytes of some partitions are not those of the topic"


def test_a_broker_that_reports_no_sizes_is_no_error() -> None:
    def refuse() -> dict[tuple[str, int], int]:
        raise BrokerUnavailable("not for you")

    (topic,) = topic_list.read_topics(FakeBatches(FakeLog.of("t", [])), sizes=refuse)
    assert (topic.sizes, topic.size_bytes, topic.error) == ({}, None, None)


def test_without_loaded_records_no_size_is_estimated() -> None:
    described = topic_list.topic_json(read(FakeLog.of("t", []))["t"], topic_list.TopicOwners())
    assert (described["size_bytes"], described["size_is_estimated"], described["records"]) == (None, False, 0)


def test_what_the_broker_did_not_report_is_none_with_the_reason() -> None:
    described = topic_list.topic_json(
        topic_list.TopicReading(name="t", description=None, error=BrokerUnavailable("no answer")), topic_list.TopicOwners()
    )
    assert (described["partitions"], described["problem"]) == (0, "no answer")
    assert {described[name] for name in ("records", "topic_id", "retention")} == {None}


def test_a_partition_without_a_leader_hides_nothing_of_the_others_and_makes_totals_unknown() -> None:
    log = FakeLog.of("t", [1, 2, 3], [])
    topic = read(log, ("t", 1))["t"]
    assert ([topic.records_in(part) for part in (0, 1)], topic.records, topic.error) == ([3, None], None, None)
    described = topic_list.topic_json(topic, topic_list.TopicOwners(bytes_each=10.0))
    parts = [(part["leader"], part["end_offset"], part["size_bytes"]) for part in described["partition_list"]]
    assert parts == [(0, 3, 30), (None, None, None)]
    assert (described["records"], described["size_bytes"]) == (None, None)


def test_topics_come_in_the_order_in_which_they_were_named_and_without_settings_if_none_are_asked_for() -> None:
    log = FakeLog()
    for name in ("a", "b", "__own"):
        log.create(name)
    batches = FakeBatches(log)
    assert [topic.name for topic in topic_list.read_topics(batches)] == ["a", "b"]
    named = topic_list.read_topics(batches, ["b", "nowhere", "a"], with_settings=False)
    assert [(topic.name, dict(topic.settings)) for topic in named] == [("b", {}), ("nowhere", {}), ("a", {})]
    assert [type(topic.error) for topic in named] == [type(None), TopicMissing, type(None)]
    assert batches.rounds == 2, "one for all topics"


def test_a_topics_rate_needs_two_readings_of_all_its_partitions() -> None:
    log, rates = FakeLog.of("t", [], []), topic_list.ProduceRates()
    later = NOW + timedelta(seconds=10)
    assert [topic.produced_per_second for topic in topic_list.with_rates(read(log).values(), rates, NOW)] == [None]
    log.append("t", *range(1, 31))
    assert [topic.produced_per_second for topic in topic_list.with_rates(read(log, ("t", 1)).values(), rates, later)] == [None]
    assert [topic.produced_per_second for topic in topic_list.with_rates(read(log).values(), rates, later)] == [3.0]


def test_a_topic_that_is_only_compacted_loses_nothing_by_age_or_size() -> None:
    settings = {"cleanup.policy": "compact", "retention.ms": "604800000", "retention.bytes": "1000"}
    assert topic_list.retention_json(settings, is_managed=False) == {"ms": None, "bytes": None, "managed": False}
    both = topic_list.retention_json({**settings, "cleanup.policy": "compact,delete"}, is_managed=None)
    assert both == {"ms": 604_800_000, "bytes": 1000, "managed": None}


SECOND = timedelta(seconds=1)


def test_a_rate_needs_two_samples() -> None:
    rates = topic_list.ProduceRates()
    rates.record("t", {0: 100, 1: 50}, NOW)
    assert rates.per_second("t") is None
    rates.record("t", {0: 160, 1: 90}, NOW + 10 * SECOND)
    assert rates.per_second("t") == 10.0


def test_what_is_long_ago_does_not_count() -> None:
    rates = topic_list.ProduceRates()
    for number in range(topic_list.SAMPLES_MAX * 2):
        rates.record("t", {0: 1000 if number else 0}, NOW + number * topic_list.RATE_WINDOW / 10)
    assert rates.per_second("t") == 0.0


def test_two_samples_at_once_are_one_and_a_log_that_shrank_gives_none() -> None:
    rates = topic_list.ProduceRates()
    rates.record("t", {0: 100}, NOW)
    rates.record("t", {0: 999}, NOW + SECOND)
    rates.record("t", {0: 1}, NOW + 10 * SECOND)
    assert rates.per_second("t") is None


def test_what_is_kept_is_bounded_and_the_oldest_topic_goes() -> None:
    rates = topic_list.ProduceRates()
    for number in range(topic_list.TOPICS_MAX + 1):
        rates.record(str(number), {0: 1}, NOW)
    last = str(topic_list.TOPICS_MAX)
    rates.record(last, {0: 11}, NOW + 10 * SECOND)
    rates.record("0", {0: 11}, NOW + 10 * SECOND)
    assert (rates.per_second("0"), rates.per_second(last)) == (None, 1.0)
