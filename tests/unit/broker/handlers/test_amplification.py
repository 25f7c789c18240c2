"""A small request must not cause a lot of work or memory: what is named repeatedly is answered once, and caches are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.handlers.answer_cache import BYTES_MAX, ENTRIES_MAX, AnswerCache
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import request_class
from tests.support.engine import Harness


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()


def metadata(broker: Harness, names: list[str]) -> dict[str, int]:
    row = request_class(ApiKey.METADATA).MetadataRequestTopic
    topics = [row(name=name) for name in names]
    answer = broker.ask(ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=True)
    assert len({topic.name for topic in answer.topics}) == len(answer.topics)
    return {topic.name: topic.error_code for topic in answer.topics}


def test_a_topic_named_a_thousand_times_is_answered_once(broker: Harness) -> None:
    broker.create("wide", 100)
    assert metadata(broker, ["wide"] * 1000 + ["other"]) == {"wide": 0, "other": 0}


def test_a_request_makes_a_few_topics_and_the_client_asks_again_for_the_others(broker: Harness) -> None:
    names = [f"topic-{number}" for number in range(35)]
    found = metadata(broker, names)
    assert sorted(found.values(), reverse=True) == [ErrorCode.LEADER_NOT_AVAILABLE] * 25 + [0] * 10
    for _ in range(3):
        found = metadata(broker, names)
    assert set(found.values()) == {0}


def test_the_cache_of_answers_is_bounded_in_entries_and_bytes() -> None:
    cache = AnswerCache()
    for number in range(10 * ENTRIES_MAX):
        cache.put((9, b"%d" % number), b"answer")
        assert len(cache) <= ENTRIES_MAX
    cache.put((9, b"huge"), bytes(BYTES_MAX + 1))
    assert cache.get((9, b"huge")) is None
    for number in range(100):
        cache.put((9, b"%d" % number), bytes(1 << 20))
        assert cache.size_bytes <= BYTES_MAX
    assert cache.get((9, b"99")) is not None
