"""A ZooKeeper for these tests' clusters, which kill and stop it too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.zookeeper import RunningZooKeeper


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with RunningZooKeeper() as running:
        yield running
