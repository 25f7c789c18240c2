"""`logbus topic` against a real broker, compared with what Kafka's own client sees."""

from __future__ import annotations

from tests.support.broker import AnyBroker
from tests.support.commands import Run, Shown
from tests.support.topics import partitions_of


def test_a_topic_is_made_shown_changed_and_deleted(run: Run, shown: Shown, broker: AnyBroker, topic: str) -> None:
    made = run("topic", "create", topic, "--partitions", "2", "--config", "retention.ms=86400000,cleanup.policy=[compact,delete]")
    assert made.stdout == f"topic {topic} created\n"
    assert partitions_of(broker.bootstrap, topic) == [0, 1]
    own = {one["name"]: one["value"] for one in shown("topic", "config", topic)[topic]}
    assert own == {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}

    run("topic", "alter", "--topic", topic, "--partitions", "3", "--delete-config", "cleanup.policy")
    run("topic", "config", topic, "--alter", "--add-config", "retention.bytes=5")
    own = {one["name"]: one["value"] for one in shown("topic", "config", topic)[topic]}
    assert own == {"retention.ms": "86400000", "retention.bytes": "5"}
    every = {one["name"] for one in shown("topic", "config", topic, "--all")[topic]}
    assert {"segment.bytes", "max.message.bytes"} < every

    would = shown("topic", "delete", topic)
    assert (would["executed"], [(one["topic"], one["records"]) for one in would["topics"]]) == (False, [(topic, 0)])
    dry = run("topic", "delete", topic)
    assert dry.stdout == f"would be deleted: topic {topic}, 3 partitions, 0 records\n"
    assert "--execute does it" in dry.stderr
    assert partitions_of(broker.bootstrap, topic) == [0, 1, 2]
    assert run("topic", "delete", topic, "--execute").stdout == f"deleted: topic {topic}, 3 partitions, 0 records\n"
    assert topic not in run("topic", "ls", "--names").stdout.split()


def test_a_topic_is_not_deleted_unloaded_without_a_word(
    run: Run, shown: Shown, broker: AnyBroker, new_topic: str, warehouse_url: str
) -> None:
    run("produce", new_topic, stdin="a\nb\n")
    run("pipeline", "register", "p", "--topic", new_topic, "--table", "t", "--parse", "lines", "--warehouse", warehouse_url)
    there = ("--warehouse", warehouse_url)
    dry = shown("topic", "delete", new_topic, *there)
    assert [(one["pipeline"], one["records"]) for one in dry["unloaded"]] == [("p", 2)]
    refused = run("topic", "delete", new_topic, "--execute", *there, status=1)
    assert "not everything that would be deleted is loaded: p (2 records" in refused.stderr
    assert "--accept-loss" in refused.stderr
    assert partitions_of(broker.bootstrap, new_topic) == [0]
    done = run("topic", "delete", new_topic, "--execute", "--accept-loss", *there)
    assert "not loaded: pipeline p (2 records" in done.stderr
    assert "deleted: topic" in done.stdout


def test_offsets_records_and_bytes_are_those_of_the_broker(run: Run, shown: Shown, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    run("produce", topic, "-p", "1", stdin="a\nb\nc\n")
    (found,) = shown("topic", "describe", topic)
    offsets = [(part["partition"], part["start_offset"], part["end_offset"]) for part in found["partitions"]]
    assert (offsets, found["records"]) == ([(0, 0, 0), (1, 0, 3)], 3)
    sizes = [part["size_bytes"] for part in found["partitions"]]
    assert sizes[0] == 0 < sizes[1]
    assert found["size_bytes"] == sizes[1]
    assert found in [{**one, "configs": {}} for one in shown("topic", "ls")]
    first, header, *rows = run("topic", "describe", topic).stdout.splitlines()
    assert first.startswith(f"Topic: {topic}  TopicId: {found['topic_id']}  PartitionCount: 2  ReplicationFactor: 1  Configs:")
    assert header.split() == ["Partition", "Leader", "Replicas", "Isr", "Start-Offset", "End-Offset", "Records", "Bytes"]
    leader = str(found["partitions"][1]["leader"])
    assert rows[1].split()[:7] == ["1", leader, leader, leader, "0", "3", "3"]


def test_the_brokers_own_topics_are_listed_when_they_are_asked_for(run: Run, new_topic: str) -> None:
    run("produce", new_topic, stdin="a\n")
    run("consume", new_topic, "-G", f"group-of-{new_topic}")  # commits, which creates the offsets topic
    assert "__consumer_offsets" not in run("topic", "ls", "--names").stdout
    assert new_topic in run("topic", "ls", "--names", "--include-internal").stdout


def test_what_a_broker_refuses_is_one_line_in_our_words(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    assert "already exists; --if-not-exists leaves it" in run("topic", "create", topic, status=1).stderr
    assert "left unchanged" in run("topic", "create", topic, "--if-not-exists").stdout
    assert "cannot be the name of a topic" in run("topic", "create", "a b", status=1).stderr
    assert "never fewer than it has" in run("topic", "alter", topic, "--partitions", "1", status=1).stderr
    assert "has no such setting" in run("topic", "alter", topic, "--config", "nonsense=1", status=1).stderr


def test_a_topic_that_is_not_there_has_a_status_of_its_own(run: Run) -> None:
    for words in (("describe",), ("config",), ("delete",), ("alter", "--partitions", "3")):
        assert "has no topic nowhere" in run("topic", words[0], "nowhere", *words[1:], status=3).stderr
    assert run("topic", "delete", "nowhere", "--if-exists").stdout == ""


def test_a_broker_alone_is_shown_with_all_that_it_leads(run: Run, shown: Shown, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "2")
    facts = shown("cluster")
    (broker,) = facts["brokers"]
    assert broker["is_controller"]
    assert broker["leads"] == broker["replicas"] == len(facts["partitions"])
    assert (facts["offline"], facts["under_replicated"], facts["moving"]) == (0, 0, 0)
    mine = [one for one in facts["partitions"] if one["topic"] == topic]
    assert [(one["partition"], one["leader"], one["isr"], one["eligible"]) for one in mine] == [
        (index, broker["broker"], [broker["broker"]], []) for index in (0, 1)
    ]
    text = run("cluster", "--all").stdout
    assert topic in text
    assert topic not in run("cluster").stdout
