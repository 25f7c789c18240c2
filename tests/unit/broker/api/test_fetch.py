"""Fetch from version 13 on, which names a topic by its id: another topic with the same name never answers it.

A fetch of more partitions than are read in one turn: answered like a small one, with turns for others in between.

Which requests count as a replica's, and what happens to an answer whose connection is closed.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from logbus_broker.api.authorization import Authorizer
from logbus_broker.api.fetch import READ_AT_ONCE_MAX, handle_replica_fetch, replica_fetch_of
from logbus_broker.api.handler import Pending
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.framing import Origin, Request
from logbus_broker.protocol.records import read_records
from logbus_broker.protocol.replica_fetch import REPLICA_FETCH_VERSION, ReplicaFetch, encode_replica_fetch, parse_replica_answer
from logbus_broker.security.state import SecurityState
from logbus_broker.settings import BrokerConfig, LogConfig

from tests.support.batches import NOW_MS, plain_batch
from tests.support.engine import Harness, batch
from tests.support.two_fetch_paths import PLENTY, fetch_frame
from tests.support.two_paths import Rivals, produce_frame
from tests.support.wire import Wanted, fetch_answer

FETCH = ApiKey.FETCH
VERSIONS = range(13, APIS[FETCH].last + 1)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def ask(broker: Harness, topic_id: uuid.UUID, *, index: int = 0, wait_ms: int = 0, version: int = VERSIONS[-1]) -> Any:
    row = request_class(FETCH).FetchTopic
    part = row.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [row(topic_id=topic_id, partitions=[part])]
    return broker.begin(FETCH, version, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


def answer(broker: Harness, reply: Any, version: int = VERSIONS[-1]) -> Any:
    (topic,) = broker.read(reply, FETCH, version).responses
    (part,) = topic.partitions
    return topic.topic_id, part


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_read_by_its_id(broker: Harness, version: int) -> None:
    topic_id = broker.create("clicks").topic_id
    broker.produce(batch(b"a", b"b"))
    broker.flush()
    found, part = answer(broker, ask(broker, topic_id, version=version), version)
    assert (found, part.error_code, part.high_watermark) == (topic_id, 0, 2)
    assert [record.value for record in read_records(bytes(part.records))] == [b"a", b"b"]


def test_what_is_not_there_has_its_codes(broker: Harness) -> None:
    topic_id = broker.create("clicks").topic_id
    assert answer(broker, ask(broker, uuid.UUID(int=5)))[1].error_code == 100
    assert answer(broker, ask(broker, topic_id, index=9))[1].error_code == 3


def test_a_fetch_that_waits_for_a_deleted_topic_never_reads_its_successor(broker: Harness) -> None:
    topic_id = broker.create("clicks").topic_id
    waiting = ask(broker, topic_id, wait_ms=10_000)
    assert isinstance(waiting, Pending)
    assert not waiting.done
    assert broker.delete("clicks").error_code == 0
    assert waiting.done
    broker.create("clicks")
    assert answer(broker, waiting)[1].error_code == 100
    assert answer(broker, ask(broker, topic_id))[1].error_code == 100


MANY = READ_AT_ONCE_MAX + 200
PARTITIONS = 3


@pytest.fixture
def wide(tmp_path: Path) -> Harness:
    """Reading the clock takes a millisecond, so a slice has few steps."""
    harness = Harness(tmp_path)
    harness.create("clicks", PARTITIONS)
    harness.clock.tick_ms = 1
    return harness


def write(wide: Harness, index: int) -> None:
    wide.produce(batch(b"a"), index=index)
    wide.turn()


def fetch(wide: Harness, *wanted: Wanted, **limits: int) -> Pending:
    pending = wide.fetch(*wanted, **limits)
    assert isinstance(pending, Pending)
    assert pending.stops_reading
    return pending


def wanted(count: int = MANY) -> list[Wanted]:
    return [Wanted(topic="clicks", index=number % PARTITIONS) for number in range(count)]


def turns_until_parked(wide: Harness) -> int:
    turns = 0
    while not len(wide.engine.context.purgatory):
        turns += 1
        wide.turn()
    return turns


def rows_of(wide: Harness, pending: Pending) -> list[Any]:
    return [row for topic in fetch_answer(wide.bytes_of(pending)).responses for row in topic.partitions]


def test_others_have_their_turns_and_the_answer_is_the_same(wide: Harness) -> None:
    write(wide, 0)
    write(wide, 1)
    wide.flush()
    pending = fetch(wide, *wanted(), Wanted(topic="absent"))
    assert wide.turns_until_helped() > 3
    assert not pending.done, "a thread encodes the answer"
    rows = rows_of(wide, pending)
    assert [row.partition_index for row in rows] == [number % PARTITIONS for number in range(MANY)] + [0]
    assert [row.error_code for row in rows] == [0] * MANY + [3]
    for row in rows[:-1]:
        found = [record.value for record in read_records(bytes(row.records))] if row.records else []
        assert found == ([b"a"] if row.partition_index < 2 else [])


def test_it_waits_for_records_and_is_answered_with_them(wide: Harness) -> None:
    pending = fetch(wide, *wanted(), wait_ms=100_000)
    assert turns_until_parked(wide) > 1
    wide.settle()
    assert not pending.done
    write(wide, 2)
    wide.flush()
    rows = rows_of(wide, pending)
    assert [bool(row.records) for row in rows] == [row.partition_index == 2 for row in rows]
    assert len(wide.engine.context.purgatory) == 0


def test_it_is_answered_empty_at_its_deadline(wide: Harness) -> None:
    pending = fetch(wide, *wanted(), wait_ms=500)
    turns_until_parked(wide)
    wide.clock.advance_ms(500)
    assert not any(row.records for row in rows_of(wide, pending))


@pytest.mark.parametrize("parked", [True, False])
def test_a_client_that_leaves_leaves_nothing_behind(wide: Harness, parked: bool) -> None:
    pending = fetch(wide, *wanted(), wait_ms=1 << 30)
    if parked:
        turns_until_parked(wide)
    pending.cancel()
    wide.settle()
    assert len(wide.engine.context.purgatory) == 0
    assert len(wide.engine.tasks) == 0


@pytest.mark.parametrize("index", [0, 1])
def test_the_fast_path_leaves_it_to_the_ordinary_path_if_there_are_records_for_all(tmp_path: Path, index: int) -> None:
    """Where there are none, it costs little."""
    rivals = Rivals(tmp_path)
    rivals.feed(1, produce_frame(9, 1, [(b"plain", [(0, bytes(plain_batch(1, timestamp=NOW_MS)))])]))
    rivals.turn()
    rivals.do(lambda harness: harness.flush())
    frame = fetch_frame(11, 7, [(b"plain", [(index, -1, 0, PLENTY)] * MANY)], lambda topic: b"")
    for _ in range(3):
        rivals.feed(2, frame)
        for _ in range(3):
            rivals.turn()
    rivals.compare()
    assert len(rivals.on.sockets[2].sent) > 3 * 40 * MANY
    assert rivals.on.fetches_taken == (0 if index == 0 else 2)
    rivals.close()


class Scene:
    """A broker whose cluster has seen brokers 1 and 2; its leader only records the fetches it gets."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.counters: Any = SimpleNamespace(errors=Counter())
        self.cluster: Any = SimpleNamespace(image=SimpleNamespace(incarnations={1: 0, 2: 3}))

    def fetch(
        self,
        *,
        replica: int = 2,
        listener: str = "REPLICATION",
        cluster_id: str | None = "aCluster",
        settings: dict[str, Any] | None = None,
    ) -> Any:
        fetch = ReplicaFetch(replica, 3, cluster_id, 500, 1, 1 << 20, 0, 0, [], [])
        body = memoryview(encode_replica_fetch(fetch))
        request = Request(int(ApiKey.FETCH), REPLICA_FETCH_VERSION, 1, None, body, origin=Origin("host", listener, "User:broker"))
        parsed = replica_fetch_of(request)
        assert parsed is not None
        config = SimpleNamespace(inter_broker_listener="REPLICATION")
        authorizer = None
        if settings is not None:
            authorizer = Authorizer(cast(Any, SimpleNamespace(state=SecurityState())), BrokerConfig(**settings))
        context = SimpleNamespace(config=config, counters=self.counters, cluster=self.cluster, authorizer=authorizer)
        leader = SimpleNamespace(fetch=lambda *asked: self.asked.append(asked))
        return handle_replica_fetch(parsed, request, cast(Any, context), cast(Any, leader))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"listener": "CLIENTS"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"cluster_id": None}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"replica": 9}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"settings": {"super_users": "User:ann"}}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"settings": {"allow_everyone_if_no_acl_found": True}}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_what_comes_from_no_broker_of_the_cluster_is_no_progress(fields: dict[str, Any], code: ErrorCode) -> None:
    scene = Scene()
    answer = parse_replica_answer(memoryview(b"".join(scene.fetch(**fields))))
    assert (answer.error, scene.asked) == (code, [])
    assert scene.counters.errors == {(ApiKey.FETCH, code): 1}


def test_a_replicas_fetch_waits_and_does_not_hold_up_what_is_behind_it() -> None:
    scene = Scene()
    pending = scene.fetch(settings={"super_users": "User:ann;User:broker"})
    assert isinstance(pending, Pending)
    assert (pending.done, pending.stops_reading) == (False, False)
    (_, origin, answer) = scene.asked[0]
    assert origin == Origin("host", "REPLICATION", "User:broker")
    answer([b"parts"])
    assert pending.parts == [b"parts"]


def test_an_answer_for_a_connection_that_was_closed_is_dropped() -> None:
    scene = Scene()
    pending = scene.fetch()
    pending.is_cancelled = True
    scene.asked[0][2]([b"parts"])
    assert not pending.done


def test_a_consumers_fetch_is_not_taken_for_a_replicas() -> None:
    request = Request(int(ApiKey.FETCH), REPLICA_FETCH_VERSION - 1, 1, None, memoryview(b""))
    assert replica_fetch_of(request) is None
    assert replica_fetch_of(request._replace(version=REPLICA_FETCH_VERSION, body=memoryview(bytes(80)))) is None


WRITER, READER = 1, 2


SEGMENT_BYTES = 6_000


BATCH = bytes(plain_batch(1, timestamp=NOW_MS, value=b"x" * 900))


FETCH_BYTES_MAX = 10_000  # the broker's own limit


BATCHES = 18  # three segments of six


@pytest.fixture
def rivals(tmp_path: Path) -> Iterator[Rivals]:
    log = replace(LogConfig(), segment_bytes=SEGMENT_BYTES)
    rivals = Rivals(tmp_path, log=log, fetch_bytes_max=FETCH_BYTES_MAX)
    yield rivals
    rivals.close()


def write_both(rivals: Rivals, count: int, index: int = 0) -> None:
    for _ in range(count):
        rivals.feed(WRITER, produce_frame(9, 1, [(b"plain", [(index, BATCH)])]))
        rivals.turn()
    rivals.do(lambda harness: harness.flush())


def is_answered(rivals: Rivals, *rows: tuple[int, int, int], **settings: Any) -> bool:
    """Whether both sides answer at once. `rows`: partition, offset, maximum bytes."""
    asked = [(index, -1, offset, size) for index, offset, size in rows]
    frame = fetch_frame(11, 7, [(b"plain", asked)], lambda topic: b"", wait_ms=500, **settings)
    # The fast path learns from a first request, which is over before the second.
    for _ in range(2):
        before = {side: len(side.sockets[READER].sent) if READER in side.sockets else 0 for side in rivals.sides}
        rivals.feed(READER, frame)
        rivals.turn()
        seen = {len(side.sockets[READER].sent) > before[side] for side in rivals.sides}
        rivals.do(lambda harness: harness.clock.advance_ms(500))
        rivals.turn()
    rivals.compare()
    assert rivals.on.fetches_taken, "the fast path has taken the second"
    (answered,) = seen
    return answered


def test_a_reader_of_an_older_segment_does_not_wait_for_more_than_it_has(rivals: Rivals) -> None:
    write_both(rivals, BATCHES)
    assert len(rivals.off.engine.partitions.get("plain", 0).log.segments) == 3
    assert is_answered(rivals, (0, 5, PLENTY), bytes_min=8_000)
    assert not is_answered(rivals, (0, BATCHES - 1, PLENTY), bytes_min=8_000)  # the newest segment: more may come


def test_the_end_of_a_sealed_segment_is_waited_at_if_nothing_visible_follows(rivals: Rivals) -> None:
    write_both(rivals, BATCHES)
    for side in rivals.sides:
        side.engine.partitions.get("plain", 0).log.roll()
    assert not is_answered(rivals, (0, BATCHES - 1, PLENTY), bytes_min=8_000)
    write_both(rivals, 1)
    assert is_answered(rivals, (0, BATCHES - 1, PLENTY), bytes_min=8_000)


@pytest.mark.parametrize("bytes_max", [2_000, PLENTY])
def test_a_minimum_above_the_maximum_is_the_maximum(rivals: Rivals, bytes_max: int) -> None:
    """The client's, or the broker's own: an answer cannot be larger."""
    for index in range(3):
        write_both(rivals, 5, index)
    rows = [(index, 0, PLENTY) for index in range(3)]
    assert is_answered(rivals, *rows, bytes_min=100 * PLENTY, bytes_max=bytes_max)


@pytest.mark.parametrize("bytes_max", [0, 900])
def test_a_minimum_above_the_maximum_is_still_waited_for_while_there_is_nothing(rivals: Rivals, bytes_max: int) -> None:
    write_both(rivals, 1)
    assert not is_answered(rivals, (0, 1, PLENTY), bytes_min=PLENTY, bytes_max=bytes_max)


def test_a_partition_limited_by_its_own_maximum_does_not_hold_up_the_answer(rivals: Rivals) -> None:
    write_both(rivals, 4)
    assert is_answered(rivals, (0, 0, 2_000), bytes_min=8_000)
    assert not is_answered(rivals, (0, 2, 2_000), bytes_min=8_000)


def test_a_batch_that_does_not_fit_any_more_does_not_hold_up_the_answer(rivals: Rivals) -> None:
    write_both(rivals, 1, index=0)
    write_both(rivals, 1, index=1)
    assert is_answered(rivals, (0, 0, PLENTY), (1, 0, PLENTY), bytes_min=1_500, bytes_max=1_500)


def test_a_fetch_wakes_at_the_maximum_if_that_is_below_its_minimum(rivals: Rivals) -> None:
    settings = {"wait_ms": 60_000, "bytes_min": PLENTY, "bytes_max": 900}  # longer than a flush may take
    frame = fetch_frame(11, 7, [(b"plain", [(0, -1, 0, PLENTY)])], lambda topic: b"", **settings)  # type: ignore[arg-type]
    for _ in range(2):
        rivals.feed(READER, frame)
        rivals.turn()
        rivals.do(lambda harness: harness.clock.advance_ms(60_000))
        rivals.turn()
    assert rivals.on.fetches_taken == 1
    rivals.feed(READER, frame)
    rivals.turn()
    for side in rivals.sides:
        side.sockets[READER].sent.clear()
    write_both(rivals, 1)
    rivals.turn()
    for side in rivals.sides:
        assert BATCH[21:] in bytes(side.sockets[READER].sent)
    rivals.compare()
