"""A ZooKeeper for the clusters of these tests, which also kill and stop it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.zookeeper import RunningZooKeeper


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with RunningZooKeeper() as running:
        yield running
