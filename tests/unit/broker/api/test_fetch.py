"""Fetch from version 13 on, which names a topic by its id: another topic with the same name never answers it.

A fetch of more partitions than are read in one turn: answered like a small one, with turns for others in between.

Which requests count as a replica's, and what happens to an answer whose connection is closed.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.fetch import READ_AT_ONCE_MAX, handle_replica_fetch, replica_fetch_of
from broker.api.handler import Pending
from broker.protocol.api import APIS, ApiKey, ErrorCode
from broker.protocol.codec import request_class, response_class
from broker.protocol.framing import Origin, Request
from broker.protocol.records import read_records
from broker.protocol.replica_fetch import REPLICA_FETCH_VERSION, ReplicaFetch, encode_replica_fetch, parse_replica_answer
from tests.support.batches import NOW_MS, plain_batch
from tests.support.engine import Harness, batch
from tests.support.two_fetch_paths import PLENTY, fetch_frame
from tests.support.two_paths import Rivals, produce_frame
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_body

FETCH = ApiKey.FETCH
VERSIONS = range(13, APIS[FETCH].last + 1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()


def ask(broker: Harness, topic_id: uuid.UUID, *, index: int = 0, wait_ms: int = 0, version: int = VERSIONS[-1]) -> Any:
    row = request_class(FETCH).FetchTopic
    part = row.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = request_class(FETCH)(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[row(topic_id=topic_id, partitions=[part])]
    )
    return broker.dispatch(FETCH, version, bytes(asked.encode(version=version)))


def answer(broker: Harness, reply: Any, version: int = VERSIONS[-1]) -> Any:
    response = response_class(FETCH).decode(broker.bytes_of(reply), version=version)
    (topic,) = response.responses
    (part,) = topic.partitions
    return topic.topic_id, part


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_read_by_its_id(broker: Harness, version: int) -> None:
    topic_id = broker.create("clicks").topic_id
    broker.dispatch(ApiKey.PRODUCE, 12, produce_body({("clicks", 0): batch(b"a", b"b")}))
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
def wide(tmp_path: Path) -> Iterator[Harness]:
    """Reading the clock takes a millisecond, so a slice has few steps."""
    harness = Harness(tmp_path)
    harness.create("clicks", PARTITIONS)
    harness.clock.tick_ms = 1
    yield harness
    harness.close()


def write(wide: Harness, index: int) -> None:
    wide.dispatch(ApiKey.PRODUCE, 9, produce_body({("clicks", index): batch(b"a")}))
    wide.turn()


def fetch(wide: Harness, *wanted: Wanted, **limits: int) -> Pending:
    pending = wide.dispatch(ApiKey.FETCH, 12, fetch_body(*wanted, **limits))
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

    def fetch(self, *, replica: int = 2, listener: str = "REPLICATION", cluster_id: str | None = "aCluster") -> Any:
        fetch = ReplicaFetch(replica, 3, cluster_id, 500, 1, 1 << 20, 0, 0, [], [])
        body = memoryview(encode_replica_fetch(fetch))
        request = Request(int(ApiKey.FETCH), REPLICA_FETCH_VERSION, 1, None, body, origin=Origin("host", listener))
        parsed = replica_fetch_of(request)
        assert parsed is not None
        config = SimpleNamespace(inter_broker_listener="REPLICATION")
        context = SimpleNamespace(config=config, counters=self.counters, cluster=self.cluster)
        leader = SimpleNamespace(fetch=lambda *asked: self.asked.append(asked))
        return handle_replica_fetch(parsed, request, cast(Any, context), cast(Any, leader))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"listener": "CLIENTS"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"cluster_id": None}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"replica": 9}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_what_comes_from_no_broker_of_the_cluster_is_no_progress(fields: dict[str, Any], code: ErrorCode) -> None:
    scene = Scene()
    answer = parse_replica_answer(memoryview(b"".join(scene.fetch(**fields))))
    assert (answer.error, scene.asked) == (code, [])
    assert scene.counters.errors == {(ApiKey.FETCH, code): 1}


def test_a_replicas_fetch_waits_and_does_not_hold_up_what_is_behind_it() -> None:
    scene = Scene()
    pending = scene.fetch()
    assert isinstance(pending, Pending)
    assert (pending.done, pending.stops_reading) == (False, False)
    (_, origin, answer) = scene.asked[0]
    assert origin == ("host", "REPLICATION")
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
