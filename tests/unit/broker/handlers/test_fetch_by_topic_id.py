"""Fetch from version 13 on, which names a topic by its id: another topic with the same name never answers it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.reply import Pending
from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import request_class, response_class
from broker.records.reader import read_records
from tests.support.engine import Harness, batch
from tests.support.wire import produce_body

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
