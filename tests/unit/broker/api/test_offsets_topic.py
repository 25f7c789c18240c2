"""`__consumer_offsets` belongs to the broker: read and described like any topic, but no client can write to it or create it.

Thousands of commits in one request: written in batches over several turns, answered together.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.api.internal_topics import _CHANGES_PER_TURN
from logbus_broker.groups.committed_offsets import OFFSETS_TOPIC
from logbus_broker.groups.records import CommittedOffset, GroupKey, OffsetKey, encode_key, encode_value
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.protocol.validation import validate_new_batch
from logbus_broker.settings import LogConfig

from tests.support.admin import APPEND, DELETE, SET, TOPIC, alter, delete_records, grow
from tests.support.engine import Harness, batch, produced
from tests.support.group_client import Client
from tests.support.logs import headers_from
from tests.support.wire import Wanted


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    harness = Harness(tmp_path / "data")
    harness.create("t")
    return harness


def commit(broker: Harness, offset: int) -> int:
    return Client(broker).commit(offset, topic="t")


def begin_commit(broker: Harness, name: str, offsets: dict[int, int], group: str) -> Any:
    topic = request_class(ApiKey.OFFSET_COMMIT).OffsetCommitRequestTopic
    parts = [
        topic.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return broker.begin(ApiKey.OFFSET_COMMIT, 8, group_id=group, topics=[topic(name=name, partitions=parts)], **member)


def committed(broker: Harness, group: str = "g", version: int = 7) -> tuple[int, int]:
    """The error code, of the answer or of the row, and the offset."""
    topic = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    answer = broker.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=[topic], require_stable=False)
    if version >= 2 and answer.error_code:
        return int(answer.error_code), -1
    row = answer.topics[0].partitions[0]
    return int(row.error_code), int(row.committed_offset)


def metadata(broker: Harness, *names: str) -> dict[str, int]:
    topics = [request_class(ApiKey.METADATA).MetadataRequestTopic(name=name, topic_id=None) for name in names]
    answer = broker.ask(ApiKey.METADATA, 8, topics=topics, allow_auto_topic_creation=True)
    return {row.name: row.error_code for row in answer.topics}


def own(broker: Harness) -> LogConfig:
    return broker.engine.partitions.get(OFFSETS_TOPIC, 0).log.config


def restarted(broker: Harness, directory: Path) -> Harness:
    """Another broker on a copy of the current directory."""
    broker.flush()
    shutil.copytree(broker.engine.config.log_dirs, directory)
    return Harness(directory)


def test_clients_may_read_it_and_not_produce_to_it(broker: Harness) -> None:
    assert commit(broker, 3) == 0
    refused = broker.produce(batch(b"v"), OFFSETS_TOPIC)
    broker.flush()
    assert produced(refused).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    row = broker.fetched(broker.fetch(Wanted(topic=OFFSETS_TOPIC)))
    assert (row.error_code, bool(row.records)) == (0, True)


def test_clients_do_not_make_delete_grow_or_truncate_it(broker: Harness) -> None:
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert broker.create(OFFSETS_TOPIC).error_code == refused
    assert commit(broker, 3) == 0
    assert broker.create(OFFSETS_TOPIC).error_code == refused
    assert broker.delete(OFFSETS_TOPIC).error_code == refused
    assert grow(broker, OFFSETS_TOPIC, 3)[0] == refused
    assert delete_records(broker, OFFSETS_TOPIC, -1, 0) == [(refused, -1)]
    assert committed(broker) == (0, 3)


def test_nobody_can_make_it_a_topic_that_is_trimmed(broker: Harness) -> None:
    assert commit(broker, 3) == 0
    for operation, value in ((SET, "delete"), (DELETE, None), (APPEND, "delete")):
        assert alter(broker, TOPIC, OFFSETS_TOPIC, ("cleanup.policy", operation, value))[0] == ErrorCode.INVALID_CONFIG
    assert own(broker).cleanup_policy == "compact"
    assert alter(broker, TOPIC, OFFSETS_TOPIC, ("segment.bytes", SET, "2048"))[0] == 0
    assert own(broker).segment_bytes == 2048


def test_a_question_that_names_it_makes_it_with_its_own_settings(broker: Harness) -> None:
    """Found in review: it was created with the default settings, and retention deleted commits."""
    assert metadata(broker, OFFSETS_TOPIC) == {OFFSETS_TOPIC: 0}
    assert (own(broker).cleanup_policy, own(broker).segment_bytes) == ("compact", broker.engine.config.offsets_segment_bytes)
    assert broker.engine.partitions.registry.get(OFFSETS_TOPIC).partition_count == 1


def test_a_name_that_collides_with_it_is_refused_and_one_of_an_older_broker_is_in_nobodys_way(tmp_path: Path) -> None:
    broker = Harness(tmp_path / "data")
    assert broker.create("__consumer.offsets").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    broker.create("t")
    registry = broker.engine.partitions.registry
    row = registry._rows.pop("t")
    registry._rows["__consumer.offsets"] = row.replace('"t"', '"__consumer.offsets"')
    registry._rows["t"] = row.replace(str(registry.get("t").topic_id), "00000000-0000-0000-0000-000000000007")
    registry.write_job()()
    broker.close()
    again = Harness(tmp_path / "data")
    assert commit(again, 5) == 0
    assert committed(again) == (0, 5)


def test_a_broker_full_of_partitions_still_takes_the_first_commit(tmp_path: Path) -> None:
    broker = Harness(tmp_path / "data", partitions_max=1)
    broker.create("t")
    assert commit(broker, 5) == 0


def test_commits_that_come_while_the_topic_is_being_made_are_all_kept(broker: Harness) -> None:
    pendings = [begin_commit(broker, "t", {0: number}, f"g-{number}") for number in range(5)]
    assert not any(pending.done for pending in pendings)
    assert all(pending.stops_reading for pending in pendings), "a question behind it waits for the answer"
    broker.settle()
    assert all(pending.done for pending in pendings)
    assert [committed(broker, f"g-{number}") for number in range(5)] == [(0, number) for number in range(5)]


def write(broker: Harness, *records: NewRecord) -> None:
    """Write to the topic, as an older broker let any client do."""
    partition = broker.engine.partitions.get(OFFSETS_TOPIC, 0)
    raw = build_batch(list(records))
    now_ms = broker.clock.now_ms()
    partition.stage(validate_new_batch(memoryview(raw), message_bytes_max=1 << 20, now_ms=now_ms))
    partition.write_staged()
    broker.engine.context.flusher.appended(partition, len(raw))
    broker.flush()


def test_records_that_cannot_be_read_are_counted_and_left_out(broker: Harness, tmp_path: Path) -> None:
    """Found in review: one record with a key of one byte, and the broker never started again."""
    assert commit(broker, 3) == 0
    now_ms = broker.clock.now_ms()
    good = NewRecord(
        timestamp=now_ms, key=encode_key(OffsetKey("later", "t", 0)), value=encode_value(CommittedOffset(9, -1, "", now_ms, 0.0))
    )
    key = encode_key(OffsetKey("g", "t", 0))
    write(
        broker,
        NewRecord(timestamp=now_ms, key=b"x", value=b"v"),
        NewRecord(timestamp=now_ms, key=b"\0\1\0\5\xff\xff", value=b"v"),
        NewRecord(timestamp=now_ms, key=key, value=b"\0\3"),
        NewRecord(timestamp=now_ms, key=encode_key(GroupKey("g")), value=b"\0\3"),
        NewRecord(timestamp=now_ms, key=b"\0\3a group of KIP-848", value=b"v"),
        good,
    )
    again = restarted(broker, tmp_path / "copied")
    assert (committed(again), committed(again, "later")) == ((0, 3), (0, 9))
    assert again.engine.context.offsets.unreadable_records == 4
    again.close()


@pytest.mark.parametrize("version", [1, 2, 7])
def test_a_damaged_log_refuses_commits_and_questions_and_all_else_works(broker: Harness, tmp_path: Path, version: int) -> None:
    """Found in review: it kept the whole broker from starting. Answering "nothing committed" would reset the consumers."""
    assert commit(broker, 3) == 0
    broker.flush()
    broker.settle(after_ms=broker.engine.config.checkpoint_interval_ms)
    target = tmp_path / "copied"
    shutil.copytree(broker.engine.config.log_dirs, target)
    (segment,) = (target / f"{OFFSETS_TOPIC}-0").glob("*.log")
    segment.write_bytes(bytes(segment.stat().st_size))
    again = Harness(target)
    assert again.engine.partitions.get(OFFSETS_TOPIC, 0).log.offline_reason
    assert commit(again, 4) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(again, version=version) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    assert Client(again).join().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    pending = again.produce(batch(b"v"), "t")
    again.settle()
    assert produced(pending).error_code == 0
    assert again.delete("t").error_code == 0
    again.engine.close()


def test_a_disk_that_refuses_a_commit_is_a_coordinator_that_is_not_available(broker: Harness) -> None:
    assert commit(broker, 3) == 0
    client = Client(broker)
    joined = client.join(version=3)
    broker.clock.advance_ms(broker.engine.config.group_initial_rebalance_delay_ms)
    joined = client.read(joined, ApiKey.JOIN_GROUP, 3)
    broker.engine.partitions.get(OFFSETS_TOPIC, 0).log.go_offline("its disk failed")
    assert commit(broker, 4) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.commit(4, topic="t", group="other") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.sync(joined).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(broker) == (0, 3), "what was committed is still known"


COUNT = _CHANGES_PER_TURN * 2 + 100


@pytest.fixture
def wide(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("wide", COUNT)
    return harness


def codes(wide: Harness, group: str = "g") -> list[int]:
    pending = begin_commit(wide, "wide", {index: index for index in range(COUNT + 1)}, group)  # the last one is not a partition
    assert isinstance(pending, Pending)
    return [row.error_code for row in wide.read(pending, ApiKey.OFFSET_COMMIT, 8).topics[0].partitions]


def test_they_are_written_some_hundreds_at_a_time(wide: Harness) -> None:
    assert codes(wide) == [0] * COUNT + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    headers = list(headers_from(wide.engine.partitions.get(OFFSETS_TOPIC, 0).log, 0))
    assert [header.record_count for header in headers] == [_CHANGES_PER_TURN, _CHANGES_PER_TURN, 100]
    offsets = wide.engine.context.offsets
    assert {committed.offset for committed in offsets.of_group("g").values()} == set(range(COUNT))


def test_a_disk_that_refuses_is_told_for_all_of_them(wide: Harness) -> None:
    assert codes(wide)[0] == 0
    wide.engine.partitions.get(OFFSETS_TOPIC, 0).log.go_offline("its disk failed")
    refused = codes(wide)
    assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * COUNT + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_deleted_topic_takes_thousands_of_offsets_with_it(wide: Harness) -> None:
    for group in ("g", "h"):
        assert codes(wide, group)[0] == 0
    assert wide.delete("wide").error_code == 0
    wide.settle()
    assert wide.engine.context.offsets.offset_count == 0
