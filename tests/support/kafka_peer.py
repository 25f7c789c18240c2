"""Apache Kafka for tests: the same classes that the benchmarks use, and how a test asks for them.

A test that needs Java or Maven skips with the reason where they are missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.peers.java import ToolFailed
from benchmarks.peers.kafka import ApacheKafka, JvmTools, Missing

__all__ = ["ApacheKafka", "JvmTools", "Missing", "ToolFailed", "apache_kafka", "jvm_tools_or_skip"]


def jvm_tools_or_skip() -> JvmTools:
    try:
        return JvmTools.find()
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One real Apache Kafka for all contract tests that ask, which keep apart by names."""
    try:
        peer = ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512m")
    except Missing as missing:
        pytest.skip(str(missing))
    with peer as running:
        yield running
