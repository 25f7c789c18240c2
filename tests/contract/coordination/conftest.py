"""Stores on both the simulated ZooKeeper and a real one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.defects import defects  # noqa: F401
from tests.support.stores import RealStores, SimulatedStores, Stores
from tests.support.zookeeper import RunningZooKeeper, zookeeper  # noqa: F401

_numbers = itertools.count(1)


@pytest.fixture(params=["simulated", "real"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    if request.param == "simulated":
        yield SimulatedStores(seed=next(_numbers))
    else:
        with real_stores(request.getfixturevalue("zookeeper")) as real:
            yield real


def real_stores(running: RunningZooKeeper) -> RealStores:
    """Below a unique chroot."""
    return RealStores(running.port, f"/contract/{next(_numbers)}")
