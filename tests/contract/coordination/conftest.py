"""Stores on the simulated ZooKeeper, and on a real one as a cluster reaches it that is not alone in its network: by TLS, with an
identity, and with znodes for nobody else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from logbus_broker.cluster.zookeeper import Access
from logbus_broker.network.certificates import zookeeper_encryption
from logbus_broker.settings import BrokerConfig

from benchmarks.peers.authority import Authority
from tests.support.defects import defects  # noqa: F401
from tests.support.stores import RealStores, SimulatedStores, Stores
from tests.support.zookeeper import RunningZooKeeper

_numbers = itertools.count(1)


@dataclass(frozen=True)
class SecuredZooKeeper:
    """What a client needs: `server` listens for plain clients, too."""

    server: RunningZooKeeper
    encrypt: Callable[[Any, str], Any]

    def stores(self, **access: Any) -> RealStores:
        """In a chroot that no other test uses."""
        own = {"encrypt": self.encrypt, "identity": "brokers:secret", "is_private": True}
        return RealStores(self.server.tls_port, f"/contract/{next(_numbers)}", Access(**{**own, **access}))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    config = BrokerConfig(zookeeper_truststore=str(authority.certificate), zookeeper_keystore=str(authority.issue("broker")))
    with RunningZooKeeper(authority=authority) as running:
        yield SecuredZooKeeper(running, zookeeper_encryption(config))


@pytest.fixture(params=["simulated", "real"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    if request.param == "simulated":
        yield SimulatedStores(seed=next(_numbers))
    else:
        with request.getfixturevalue("zookeeper").stores() as real:
            yield real
