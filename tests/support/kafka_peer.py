"""Apache Kafka for tests: the same classes that the benchmarks use, and how a test asks for them.

A test that needs Java or Maven skips with the reason where they are missing.
"""

from __future__ import annotations

import pytest

from benchmarks.peers.java import ToolFailed
from benchmarks.peers.kafka import ApacheKafka, JvmTools, Missing

__all__ = ["ApacheKafka", "JvmTools", "Missing", "ToolFailed", "jvm_tools_or_skip"]


def jvm_tools_or_skip() -> JvmTools:
    try:
        return JvmTools.find()
    except Missing as missing:
        pytest.skip(str(missing))
