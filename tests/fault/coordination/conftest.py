"""A ZooKeeper that tests kill and restart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.defects import defects  # noqa: F401
from tests.support.stores import RealStores
from tests.support.zookeeper import RunningServer, RunningZooKeeper, zookeeper  # noqa: F401

_numbers = itertools.count(1)


@pytest.fixture
def server(zookeeper: RunningZooKeeper) -> Iterator[RunningServer]:  # noqa: F811
    """The only server, serving again when the test is over."""
    (server,) = zookeeper.servers
    yield server
    server.ensure_serving()


@pytest.fixture
def stores(server: RunningServer) -> Iterator[RealStores]:
    with RealStores(server.port, f"/fault/{next(_numbers)}") as real:
        yield real
