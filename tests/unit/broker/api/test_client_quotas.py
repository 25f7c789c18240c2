"""Quotas set and described through the admin APIs; the codes are those of an Apache Kafka 4.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.engine import Harness

ALTER = request_class(ApiKey.ALTER_CLIENT_QUOTAS).EntryData
DESCRIBE = request_class(ApiKey.DESCRIBE_CLIENT_QUOTAS).ComponentData
Names = dict[str, str | None]


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def alter(broker: Harness, *entries: tuple[Names, dict[str, float | None]], validate_only: bool = False) -> list[Any]:
    rows = [
        ALTER(
            entity=[ALTER.EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
            ops=[ALTER.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        for names, values in entries
    ]
    return list(broker.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=rows, validate_only=validate_only).entries)


def describe(broker: Harness, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    rows = [DESCRIBE(entity_type=kind, match_type=match_type, match=name) for kind, match_type, name in components]
    return broker.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=rows, strict=strict)


def described(answer: Any) -> list[tuple[Names, dict[str, float]]]:
    assert answer.error_code == ErrorCode.NONE, answer
    return [
        ({part.entity_type: part.entity_name for part in row.entity}, {item.key: item.value for item in row.values})
        for row in answer.entries
    ]


ANN, ALL_OF_BOB, EVERYONE, APP = {"user": "ann"}, {"user": "bob", "client-id": None}, {"user": None}, {"client-id": "app"}


def test_what_was_set_is_described_by_filters(broker: Harness) -> None:
    limits = [
        (ANN, {"producer_byte_rate": 5.0}),
        (ALL_OF_BOB, {"consumer_byte_rate": 6.0}),
        (EVERYONE, {"request_percentage": 7.0}),
    ]
    assert [row.error_code for row in alter(broker, *limits, (APP, {"controller_mutation_rate": 8.0}))] == [0, 0, 0, 0]
    assert len(described(describe(broker))) == 4
    assert described(describe(broker, ("user", 0, "ann"))) == limits[:1]
    assert described(describe(broker, ("user", 1, None))) == limits[2:]
    assert described(describe(broker, ("user", 2, None))) == limits
    assert described(describe(broker, ("user", 2, None), strict=True)) == [limits[0], limits[2]]
    assert described(describe(broker, ("client-id", 1, None), ("user", 0, "bob"))) == limits[1:2]
    assert described(describe(broker, ("ip", 2, None))) == []


def test_a_limit_is_changed_outlives_the_process_and_is_taken_away(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    alter(broker, (ANN, {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0}))
    alter(broker, (ANN, {"producer_byte_rate": 50.0, "consumer_byte_rate": None}))
    assert described(describe(broker)) == [(ANN, {"producer_byte_rate": 50.0})]
    alter(broker, (ANN, {"producer_byte_rate": 1.0}), validate_only=True)
    assert described(describe(broker)) == [(ANN, {"producer_byte_rate": 50.0})]
    broker.close()
    broker = Harness(tmp_path)
    assert described(describe(broker)) == [(ANN, {"producer_byte_rate": 50.0})]
    assert alter(broker, (ANN, {"producer_byte_rate": None, "request_percentage": None}))[0].error_code == 0, "as Kafka"
    assert described(describe(broker)) == []


def test_topics_are_created_and_deleted_while_the_quota_lasts(broker: Harness) -> None:
    alter(broker, (EVERYONE, {"controller_mutation_rate": 0.5}))
    new = request_class(ApiKey.CREATE_TOPICS).CreatableTopic

    def create(*names: str, version: int) -> list[int]:
        rows = [new(name=name, num_partitions=1, replication_factor=1) for name in names]
        return [row.error_code for row in broker.ask(ApiKey.CREATE_TOPICS, version, topics=rows, timeout_ms=1_000).topics]

    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert create("a", "b", "c", "d", version=7) == [0] * 4
    assert create("e", "f", "g", "h", version=7) == [0, 0, refused, refused], "as an Apache Kafka did"
    assert create("i", "j", version=5) == [0, 0], "a client that does not know the error is held up afterwards"
    deleted = broker.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["a"], timeout_ms=1_000).responses
    assert [row.error_code for row in deleted] == [refused]


REFUSED = [
    ({"user": "ann"}, {"bytes": 5.0}, "unknown quota 'bytes'"),
    ({"user": "ann"}, {"producer_byte_rate": 0.0}, "a limit is above 0"),
    ({"user": "ann"}, {"producer_byte_rate": float("nan")}, "a limit is above 0"),
    ({"team": "web"}, {"producer_byte_rate": 5.0}, "unknown entity type 'team'"),
    ({"ip": "127.0.0.1", "user": "ann"}, {"connection_creation_rate": 5.0}, "name them apart"),
    ({"ip": "127.0.0.1"}, {"producer_byte_rate": 5.0}, "unknown quota"),
    ({}, {"producer_byte_rate": 5.0}, "an entity names"),
]


@pytest.mark.parametrize(("names", "values", "text"), REFUSED)
def test_what_makes_no_sense_is_refused_alone(broker: Harness, names: Names, values: dict[str, float | None], text: str) -> None:
    refused, accepted = alter(broker, (names, values), (APP, {"producer_byte_rate": 5.0}))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert text in refused.error_message
    assert accepted.error_code == 0
    assert described(describe(broker)) == [(APP, {"producer_byte_rate": 5.0})]


def test_a_filter_that_makes_no_sense_is_refused(broker: Harness) -> None:
    for components in ([("team", 2, None)], [("user", 5, None)], [("user", 0, None)], [("user", 2, None), ("user", 1, None)]):
        answer = describe(broker, *components)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert answer.entries is None
