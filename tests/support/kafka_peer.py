"""Apache Kafka for tests: the classes that the benchmarks use, as fixtures.

A test that needs Java or Maven is skipped, with the reason, if they are missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.peers.java import ToolFailed
from benchmarks.peers.kafka import SMALL_FLAGS, ApacheKafka, JvmTools, Missing

__all__ = ["ApacheKafka", "JvmTools", "Missing", "ToolFailed", "apache_kafka", "jvm_tools_or_skip", "kafka_peer", "stop_peer"]


def jvm_tools_or_skip() -> JvmTools:
    try:
        return JvmTools.find()
    except Missing as missing:
        pytest.skip(str(missing))


PEER = pytest.StashKey[ApacheKafka]()

# The first request about a group creates the offsets topic; fifty partitions take a busy machine longer than clients wait.
ONE_OFFSETS_PARTITION = {"offsets.topic.num.partitions": "1"}
# Records of suites have times of long ago; on a slow machine the first look of retention, half a minute after the start, comes
# between their making and their reading.
NO_RETENTION = {"log.initial.task.delay.ms": "86400000", "log.retention.check.interval.ms": "86400000"}


@pytest.fixture(scope="session")
def kafka_peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One Apache Kafka for all contract suites, not started; `stop_peer` stops it after them."""
    try:
        peer = ApacheKafka(
            tmp_path_factory.mktemp("kafka"), flags=SMALL_FLAGS, settings={**ONE_OFFSETS_PARTITION, **NO_RETENTION}
        )
    except Missing as missing:
        pytest.skip(str(missing))
    request.session.stash[PEER] = peer
    yield peer
    peer.stop()


@pytest.fixture
def apache_kafka(kafka_peer: ApacheKafka) -> ApacheKafka:
    """Started if it was not running; suites use different names."""
    if not kafka_peer.alive:
        kafka_peer.start()
    return kafka_peer


def stop_peer(session: pytest.Session) -> None:
    """A JVM of half a gigabyte is not kept running for suites that do not need it."""
    if PEER in session.stash:
        session.stash[PEER].stop()
