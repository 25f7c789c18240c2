"""Well-formed requests that few clients send, each with Apache Kafka's answer (answers.jsonl): ours is the same, or
docs/protocol-support.md says why not. A line's `kafka` is left out if Kafka does not always answer in this way.

Answers are compared without texts, addresses, states of replicas and fields that say nothing, and lists without their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from logbus.waiting import wait_until
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.support.engine import Harness
from tests.support.message_trees import Tree, decoded, encoded
from tests.support.raw_client import RawClient

ROWS = [json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text().splitlines()]
PAGE = Path(__file__).parents[3] / "docs" / "protocol-support.md"
TOPICS = {"answers": 3, "answers.grow": 1, "answers.gone": 1, "answers.trimmed": 2, "answers.compacted": 1, "answers.both": 1}
POLICIES = {"answers.compacted": "compact", "answers.both": "compact,delete"}
COMMITTED = {0: (2, "b"), 1: (1, "")}
SETTINGS_COMPARED = {"retention.ms", "segment.bytes", "root", "metrics", "consumer.session.timeout.ms"}
NOT_COMPARED = {
    "throttle_time_ms", "error_message", "host", "port", "brokers", "cluster_id", "controller_id", "node_id", "total_bytes",
    "usable_bytes", "log_dir", "leader_id", "topic_authorized_operations", "cluster_authorized_operations", "replica_nodes",
    "isr_nodes", "high_watermark", "last_stable_offset", "synonyms", "partition_size", "leader_epoch", "producer_id", "session_id",
    "resource_type", "protocol_type", "protocol_data", "authorized_operations", "topic_config_error_code",
}  # fmt: skip
Exchange = Callable[[ApiKey, int, bytes, bool], bytes]


class Subject:
    """A broker with topics, records and a group's committed offsets."""

    def __init__(self, exchange: Exchange, broker_id: int) -> None:
        self._exchange = exchange
        self._names: dict[str, Any] = {"$broker": broker_id, "$longest": "é" * 4_096, "$too-long": "é" * 4_097}
        rows = [
            {
                "name": name,
                "num_partitions": count,
                "replication_factor": 1,
                "assignments": [],
                "configs": [{"name": "cleanup.policy", "value": POLICIES.get(name, "delete")}],
            }
            for name, count in TOPICS.items()
        ]
        self._send("CREATE_TOPICS", 4, {"topics": rows, "timeout_ms": 30_000})
        for name, count in TOPICS.items():
            for index in range(min(count, 2)):
                wait_until(lambda name=name, index=index: self._fills(name, index), what=f"{name}-{index} to take records")
        for topic in self._send("METADATA", 12, {"topics": [{"name": name} for name in TOPICS]})["topics"]:
            self._names[f"$id:{topic['name']}"] = topic["topic_id"]
        wait_until(self._commits, what="a coordinator of the group")

    def _fills(self, topic: str, index: int) -> bool:
        records = [NewRecord(timestamp=1_700_000_000_000 + number % 3, key=b"k", value=b"v") for number in range(5)]
        part = {"index": index, "records": bytes(build_batch(records))}
        rows = [{"name": topic, "partition_data": [part]}]
        answer = self._send("PRODUCE", 9, {"acks": -1, "timeout_ms": 30_000, "topic_data": rows})
        return answer["responses"][0]["partition_responses"][0]["error_code"] == 0

    def _commits(self) -> bool:
        self._send("FIND_COORDINATOR", 2, {"key": "answers"})
        rows = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": text}
            for index, (offset, text) in COMMITTED.items()
        ]
        topics = [{"name": "answers", "partitions": rows}]
        answer = self._send("OFFSET_COMMIT", 7, {"group_id": "answers", "generation_id_or_member_epoch": -1, "topics": topics})
        return all(row["error_code"] == 0 for row in answer["topics"][0]["partitions"])

    def ask(self, api: str, version: int, request: Tree) -> Any:
        """What is compared of the answer. `$broker` and `$id:TOPIC` stand for the ids in both."""
        return self._compared(self._send(api, version, self._filled(request)))

    def _send(self, api: str, version: int, request: Tree) -> Tree:
        body, flexible = encoded(ApiKey[api], version, request)
        return decoded(ApiKey[api], version, self._exchange(ApiKey[api], version, body, flexible))

    def _filled(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._filled(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [self._filled(part) for part in value]
        if not isinstance(value, str):
            return value
        filled = self._names.get(value, value)
        return UUID(str(filled)) if key == "topic_id" else str(filled) if key == "resource_name" else filled

    def _compared(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            compared = {name: self._compared(part, name) for name, part in value.items() if name not in NOT_COMPARED}
            return {name: part for name, part in compared.items() if part not in (None, -1, []) and part is not False}
        if isinstance(value, list):
            parts = [part for part in value if key != "configs" or part["name"] in SETTINGS_COMPARED]
            return sorted(map(self._compared, parts), key=lambda part: json.dumps(part, sort_keys=True))
        if isinstance(value, UUID):
            return next((name for name, id_ in self._names.items() if id_ == value), "$new" if value.version else str(value))
        if key == "resource_name" and value == str(self._names["$broker"]):
            return "$broker"
        return len(value) if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def logbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    harness = Harness(tmp_path_factory.mktemp("broker"))
    subject = Subject(
        lambda api, version, body, _: harness.bytes_of(harness.dispatch(api, version, bytearray(body))), broker_id=0
    )
    harness.flush()
    yield subject
    harness.close()


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest) -> Subject:
    peer = request.getfixturevalue("kafka_peer")
    if not peer.alive:
        peer.start()

    def exchange(api: ApiKey, version: int, body: bytes, flexible: bool) -> bytes:
        with RawClient(peer.bootstrap) as client:
            return client.request(int(api), version, body, flexible=flexible)

    return Subject(exchange, broker_id=1)


def _cases() -> list[Any]:
    sides = [(row, side) for row in ROWS for side in ("logbus", "kafka") if side == "logbus" or "kafka" in row]
    return [pytest.param(row, side, id=f"{row['api']} {row['version']}: {row['what']}-{side}") for row, side in sides]


@pytest.mark.parametrize(("row", "side"), _cases())
def test_an_unusual_request_is_answered_as_recorded(request: pytest.FixtureRequest, row: Any, side: str) -> None:
    subject: Subject = request.getfixturevalue(side)
    expected = row["kafka"] if side == "kafka" or "ours" not in row else row["ours"]
    assert subject.ask(row["api"], row["version"], row["request"]) == expected


def test_where_an_answer_is_not_kafkas_the_page_says_why() -> None:
    page = PAGE.read_text()
    assert [row["why"] for row in ROWS if "ours" in row and row["why"] not in page] == []
