"""Three brokers on one ZooKeeper, for clients that use them while leaders change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.clusters import RunningCluster
from tests.support.topics import topic  # noqa: F401
from tests.support.zookeeper import zookeeper  # noqa: F401

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(zookeeper: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:  # noqa: F811
    settings = {"zookeeper.session.timeout.ms": "10000"}  # nothing here is about its end
    chroot = f"/clients/{next(_numbers)}"
    with RunningCluster(tmp_path_factory.mktemp("cluster"), zookeeper, chroot=chroot, settings=settings) as running:  # type: ignore[arg-type]
        yield running
