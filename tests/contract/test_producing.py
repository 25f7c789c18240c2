"""Records sent to our broker and to Apache Kafka: stored once, in order, at the offsets that are returned."""

from __future__ import annotations

import itertools

import pytest
from logbus.errors import ProduceFailed
from logbus.kafka.producing import produce

from tests.support.topics import create_topic, read_partition, read_topic

_numbers = itertools.count(1)
RECORDS = 5_000


@pytest.fixture(params=["broker", "apache_kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param).bootstrap
    return address


def test_every_record_is_stored_once_and_where_it_is_said(bootstrap: str) -> None:
    topic = f"produced-{next(_numbers)}"
    create_topic(bootstrap, topic, partitions=2)
    config = {"bootstrap.servers": bootstrap, "group.id": "no matter", "acks": "0", "enable.idempotence": False}
    done = produce(config, topic, ({"value": f"{number}", "key": f"{number % 7}"} for number in range(RECORDS)))
    stored = read_topic(bootstrap, topic)
    assert done["records"] == RECORDS
    assert {part: found["records"] for part, found in done["partitions"].items()} == {
        str(part): len(found) for part, found in stored.items()
    }
    assert all(
        (found["first_offset"], found["last_offset"]) == (0, found["records"] - 1) for found in done["partitions"].values()
    )
    assert sorted(int(message.value() or b"") for found in stored.values() for message in found) == list(range(RECORDS))
    assert all(
        numbers == sorted(numbers) for numbers in ([int(one.value() or b"") for one in found] for found in stored.values())
    )


def test_the_record_that_fails_is_named_and_those_before_it_are_counted(bootstrap: str) -> None:
    topic = f"produced-{next(_numbers)}"
    create_topic(bootstrap, topic, config={"max.message.bytes": "2000"})
    records = [{"value": "small", "key": "a"}] * 3 + [{"value": "x" * 5_000, "key": "the big one"}]
    with pytest.raises(ProduceFailed, match=r"record 3 \(key b'the big one'\) was not stored .*3 records were stored"):
        produce({"bootstrap.servers": bootstrap, "compression.type": "none", "batch.num.messages": 1}, topic, records)
    assert len(read_partition(bootstrap, topic)) == 3
