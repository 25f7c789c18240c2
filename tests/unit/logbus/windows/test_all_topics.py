from __future__ import annotations

from logbus.errors import BrokerUnavailable
from logbus.windows.all_topics import TopicOwners, TopicReading, read_topics, topic_json
from logbus.windows.rates import Rates

from tests.support.fake_batches import FakeBatches
from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW


def read(log: FakeLog) -> dict[str, TopicReading]:
    return {one.name: one for one in read_topics(FakeBatches(log), Rates(), NOW)}


def test_a_topic_is_told_by_its_partitions() -> None:
    log = FakeLog()
    log.create("t", 2)
    log.append("t", 1, 2, 3)
    log.append("t", 4, partition=1)
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
    log = FakeLog()
    log.create("t", 2)
    log.append("t", 1, 2, 3)
    (topic,) = read_topics(FakeBatches(log), Rates(), NOW, lambda: {("t", 0): 700, ("t", 1): 0, ("other", 0): 1})
    found = topic_json(topic, TopicOwners(bytes_each=10.0))
    assert (found["size_bytes"], found["size_is_estimated"]) == (700, False)
    assert [one["size_bytes"] for one in found["partition_list"]] == [700, 0]


def test_a_broker_that_tells_no_sizes_is_no_trouble() -> None:
    def refuse() -> dict[tuple[str, int], int]:
        raise BrokerUnavailable("not for you")

    log = FakeLog()
    log.create("t")
    (topic,) = read_topics(FakeBatches(log), Rates(), NOW, refuse)
    assert (topic.sizes, topic.problem) == ({}, None)


def test_where_nobody_has_loaded_anything_nobody_knows_a_size() -> None:
    log = FakeLog()
    log.create("t")
    found = topic_json(read(log)["t"], TopicOwners())
    assert (found["size_bytes"], found["size_is_estimated"], found["records"]) == (None, False, 0)


def test_what_the_broker_did_not_tell_is_none_and_said() -> None:
    found = topic_json(TopicReading(name="t", places=None, problem="no leader"), TopicOwners())
    assert (found["records"], found["topic_id"], found["partitions"], found["problem"]) == (None, None, 0, "no leader")
