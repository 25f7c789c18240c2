from __future__ import annotations

from typing import Any

import pytest
from logbus.doctor.broker import GIB, room, takes
from logbus.kafka.broker_facts import LogDirectory, camel_case, log_directory, partition_bytes, translated


def test_settings_of_librdkafka_become_those_of_kafka_python_and_others_are_left_out() -> None:
    config = {
        "bootstrap.servers": "b:1",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "plain",
        "sasl.username": "u",
        "linger.ms": 5,
    }
    assert translated(config) == {
        "bootstrap_servers": "b:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
    }


@pytest.mark.parametrize(
    ("name", "spelled"), [("LIST_OFFSETS", "ListOffsets"), ("FETCH", "Fetch"), ("ListOffsets", "ListOffsets")]
)
def test_requests_are_named_as_the_protocol_names_them(name: str, spelled: str) -> None:
    assert camel_case(name) == spelled


def directory(**changes: Any) -> LogDirectory:
    values = {"broker_id": 0, "path": "/log", "total_bytes": 100 * GIB, "usable_bytes": 50 * GIB, "partition_bytes": {}}
    return LogDirectory(**{**values, **changes})


def test_an_answer_becomes_sizes_by_partition_and_what_a_broker_does_not_know_is_none() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 1, "partition_size": 7}]}]
    found = log_directory(2, {"log_dir": "/log", "topics": topics, "total_bytes": -1})
    assert found == directory(broker_id=2, total_bytes=None, usable_bytes=None, partition_bytes={("t", 1): 7})
    larger = directory(partition_bytes={("t", 1): 9, ("t", 0): 1})
    assert partition_bytes([found, larger]) == {("t", 1): 9, ("t", 0): 1}


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, "ok"),
        ({"usable_bytes": 15 * GIB}, "ok"),
        ({"usable_bytes": 14 * GIB}, "warning"),
        ({"usable_bytes": 4 * GIB}, "error"),
        ({"usable_bytes": 0}, "error"),
        ({"total_bytes": None}, "note"),
    ],
)
def test_a_disk_that_fills_is_said_before_it_is_full(changes: dict[str, Any], severity: str) -> None:
    assert str(room(directory(**changes)).severity) == severity


def test_a_request_is_taken_in_a_version_or_not_at_all() -> None:
    versions = {"Fetch": (4, 17)}
    assert [takes(versions, "Fetch", 4), takes(versions, "Fetch", 18), takes(versions, "Produce", 3)] == [True, False, False]
