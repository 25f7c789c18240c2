"""DescribeLogDirs: the sizes of all partitions, or of those requested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.protocol.api import ApiKey
from broker.protocol.control import request_class
from tests.support.engine import Harness, batch
from tests.support.wire import produce_body


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.create("clicks", 2)
    yield harness
    harness.close()


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {(topic.name, part.partition_index): part.partition_size for topic in result.topics for part in topic.partitions}


def test_every_partition_has_the_size_of_its_log(broker: Harness, tmp_path: Path) -> None:
    raw = batch(b"x" * 500)
    broker.dispatch(ApiKey.PRODUCE, 12, produce_body({("clicks", 1): raw}))
    broker.turn()
    (result,) = broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None).results
    assert (result.error_code, result.log_dir) == (0, str(tmp_path))
    assert sizes(result) == {("clicks", 0): 0, ("clicks", 1): len(raw)}
    assert result.total_bytes >= result.usable_bytes > 0


def test_only_the_partitions_asked_for_are_described(broker: Harness) -> None:
    request = request_class(ApiKey.DESCRIBE_LOG_DIRS)
    asked = [request.DescribableLogDirTopic(topic=name, partitions=[1, 7]) for name in ("clicks", "absent")]
    (result,) = broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 1, topics=asked).results
    assert sizes(result) == {("clicks", 1): 0}
