"""Topics, offsets, configurations and the rest of the control plane through the engine, and what survives a restart."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.protocol.api import APIS, ApiKey
from broker.protocol.codec import request_class
from tests.support import admin
from tests.support.engine import Harness, batch
from tests.support.group_client import Client
from tests.support.wire import produce_body


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()


def metadata(broker: Harness, *names: str, create: bool = True, version: int = 12) -> list[Any]:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic
    asked = [row(name=name, topic_id=uuid.UUID(int=0)) for name in names]
    return broker.ask(ApiKey.METADATA, version, topics=asked, allow_auto_topic_creation=create).topics


def list_offsets(broker: Harness, timestamp: int, *, topic: str = "clicks", version: int = 6) -> Any:
    (row,) = admin.list_offsets(broker, timestamp, 0, topic=topic, version=version)
    return row


def test_every_offered_api_says_so(broker: Harness) -> None:
    answer = broker.ask(ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
    assert {(row.api_key, row.min_version, row.max_version) for row in answer.api_keys} == {
        (k, a.first, a.last) for k, a in APIS.items()
    }


def test_metadata_creates_a_topic_only_where_both_sides_allow_it(broker: Harness) -> None:
    (refused,) = metadata(broker, "clicks", create=False)
    assert refused.error_code == 3
    (made,) = metadata(broker, "clicks")
    assert (made.error_code, len(made.partitions)) == (0, 1)


def test_metadata_is_kept_and_forgotten_with_a_change(broker: Harness) -> None:
    broker.create("clicks")
    first = metadata(broker, "clicks")
    assert metadata(broker, "clicks") == first
    assert broker.delete("clicks").error_code == 0
    (again,) = metadata(broker, "clicks")
    assert again.topic_id != first[0].topic_id


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "a/b"}, 17),
        ({"num_partitions": 0}, 37),
        ({"num_partitions": 20_000}, 37),
        ({"replication_factor": 3}, 38),
        ({"configs": {"retention.seconds": "1"}}, 40),
        ({"configs": {"cleanup.policy": "compact,shred"}}, 40),
        ({"name": "exists"}, 36),
    ],
)
def test_a_topic_that_cannot_be_made_says_why(broker: Harness, changes: dict[str, Any], code: int) -> None:
    broker.create("exists")
    row = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    configs = [row.CreatableTopicConfig(name=k, value=v) for k, v in changes.pop("configs", {}).items()]
    values = {"name": "clicks", "num_partitions": 1, "replication_factor": 1} | changes
    topic = row(assignments=[], configs=configs, **values)
    (result,) = broker.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000, validate_only=False).topics
    assert result.error_code == code
    assert result.error_message


def test_a_topic_is_deleted_by_name_or_by_id(broker: Harness) -> None:
    broker.create("first")
    second = broker.create("second")
    row = request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
    asked = [
        row(name="first", topic_id=uuid.UUID(int=0)),
        row(name=None, topic_id=second.topic_id),
        row(name="absent", topic_id=uuid.UUID(int=0)),
    ]
    answer = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=1000)
    assert [r.error_code for r in answer.responses] == [0, 0, 3]
    assert len(broker.engine.partitions) == 0


def test_a_topic_that_is_named_twice_is_not_deleted(broker: Harness) -> None:
    topic_id = broker.create("clicks").topic_id
    row = request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
    asked = [row(name="clicks", topic_id=None), row(name=None, topic_id=topic_id)]
    (answer,) = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=1000).responses
    assert (answer.name, answer.topic_id, answer.error_code) == ("clicks", topic_id, 42)
    assert len(broker.engine.partitions) == 1


def test_offsets_are_found_by_place_and_by_time(broker: Harness) -> None:
    broker.create("clicks")
    for start in (1_000, 5_000):
        broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(b"a", b"b", timestamp=start)}))
    assert list_offsets(broker, -2).offset == 0
    assert list_offsets(broker, -1).offset == 4  # includes everything acknowledged before the request
    found = list_offsets(broker, 1_001)
    assert (found.offset, found.timestamp) == (1, 1_001)
    assert list_offsets(broker, 2_000).offset == 2
    assert (list_offsets(broker, 9_000).offset, list_offsets(broker, 9_000).error_code) == (-1, 0)
    assert list_offsets(broker, -9).error_code == 35
    assert list_offsets(broker, -1, topic="absent").error_code == 3


def test_the_first_record_with_the_largest_timestamp_is_found(broker: Harness) -> None:
    broker.create("clicks")
    assert (list_offsets(broker, -3, version=7).offset, list_offsets(broker, -3, version=7).error_code) == (-1, 0)
    for start in (1_000, 9_000, 9_000, 5_000):
        broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(b"a", b"b", timestamp=start)}))
    broker.flush()
    found = list_offsets(broker, -3, version=7)
    assert (found.offset, found.timestamp) == (3, 9_001)


@pytest.mark.parametrize(("timestamp", "since", "offset"), [(-3, 7, 1), (-4, 8, 0), (-5, 9, -1)])
def test_special_offsets_are_answered_from_the_version_that_has_them(
    broker: Harness, timestamp: int, since: int, offset: int
) -> None:
    broker.create("clicks")
    broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(b"a", b"b", timestamp=1_000)}))
    assert list_offsets(broker, timestamp, version=since - 1).error_code == 35
    for version in range(since, 11):
        row = list_offsets(broker, timestamp, version=version)
        assert (row.error_code, row.offset) == (0, offset)


def test_a_simple_commit_is_read_back_with_its_metadata(broker: Harness) -> None:
    broker.create("clicks")
    client = Client(broker)
    assert client.committed() == -1
    assert client.commit(42, metadata="m") == 0
    assert (client.committed_row().committed_offset, client.committed_row().metadata) == (42, "m")


def test_topics_records_offsets_and_producers_survive_a_restart(tmp_path: Path) -> None:
    for crash in (False, True):
        directory = tmp_path / str(crash)
        broker = Harness(directory)
        created = broker.create("clicks", 1, retention_ms="-1")
        raw = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
        broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): raw}))
        assert Client(broker).commit(2) == 0
        broker.settle()
        if crash:
            broker.crash()
        else:
            broker.close()
        again = Harness(directory)
        assert again.engine.partitions.registry.get("clicks").topic_id == created.topic_id
        assert list_offsets(again, -1).offset == 2
        assert Client(again).committed() == 2
        repeated = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
        again.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): repeated}))
        assert list_offsets(again, -1).offset == 2
        again.close()


def test_records_are_deleted_up_to_an_offset(broker: Harness) -> None:
    broker.create("clicks")
    broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(b"a", b"b", b"c")}))
    broker.turn()  # acknowledged, not flushed: a client may delete what it has just sent
    row = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    for offset, expected in ((2, (2, 0)), (99, (-1, 1)), (-1, (3, 0))):
        part = row.DeleteRecordsPartition(partition_index=0, offset=offset)
        answer = broker.ask(ApiKey.DELETE_RECORDS, 2, topics=[row(name="clicks", partitions=[part])], timeout_ms=1000)
        result = answer.topics[0].partitions[0]
        assert (result.low_watermark, result.error_code) == expected
    assert list_offsets(broker, -2).offset == 3


def test_producer_ids_are_given_once_and_transactions_are_refused(broker: Harness) -> None:
    ids = [broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=0).producer_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="t", transaction_timeout_ms=0).error_code == 53


@pytest.mark.parametrize("is_running", [False, True])
def test_a_directory_that_no_topic_owns_is_set_aside_not_adopted(tmp_path: Path, is_running: bool) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks")
    broker.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", 0): batch(b"old")}))
    broker.settle()
    registry = broker.engine.partitions.registry
    registry.forget(registry.get("clicks"))  # as if the row was removed by hand, or the directory copied from another broker
    registry.write_job()()
    broker.close()
    if is_running:
        (tmp_path / "clicks-0").rename(tmp_path / "elsewhere")
    again = Harness(tmp_path)
    if is_running:
        (tmp_path / "elsewhere").rename(tmp_path / "clicks-0")
    again.create("clicks")
    assert list_offsets(again, -1).offset == 0
    assert list(tmp_path.glob("clicks-0.*-stray/*.log"))
    again.close()
