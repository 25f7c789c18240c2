"""A ZooKeeper that is not alone with the brokers: what others can do there, and what an operator is told who got a setting wrong."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from logbus_broker.cluster.store import Committed, Create, Node, Refused, Unknown
from logbus_broker.cluster.zookeeper import Access
from logbus_broker.errors import ConfigError
from logbus_broker.network.certificates import zookeeper_encryption
from logbus_broker.settings import BrokerConfig

from benchmarks.peers.authority import Authority
from tests.contract.coordination.conftest import SecuredZooKeeper
from tests.support.stores import RealStores


def test_what_the_brokers_create_is_theirs_alone(zookeeper: SecuredZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    with zookeeper.stores() as stores:
        brokers = [stores.client() for _ in range(2)]
        assert isinstance(brokers[0].commit(Create(path="/users", data=b"keys"), Create(path="/users/ann")), Committed)
        assert brokers[1].read_when_there("/users") == Node(data=b"keys", version=0)
        stranger = KazooClient(f"127.0.0.1:{zookeeper.server.port}")
        stranger.start()
        try:
            for forbidden in (
                lambda: stranger.get(f"{stores.chroot}/users"),
                lambda: stranger.set(f"{stores.chroot}/users", b"mine"),
                lambda: stranger.create(f"{stores.chroot}/users/eve"),
                lambda: stranger.delete(f"{stores.chroot}/users/ann"),
                lambda: stranger.create(f"{stores.chroot}/kafka-acl"),
            ):
                with pytest.raises(NoAuthError):
                    forbidden()
        finally:
            stranger.stop()
            stranger.close()
        with RealStores(zookeeper.server.port, stores.chroot, Access(identity="brokers:guessed")) as others:
            others.client(is_connected=False)
            others.until(lambda: "the znode's ACL does not allow it: check logbus.zookeeper.auth.file" in caplog.text)


def test_private_znodes_need_an_identity(zookeeper: SecuredZooKeeper) -> None:
    with RealStores(zookeeper.server.port, "", Access(is_private=True)) as stores:
        outcome = stores.client().commit(Create(path="/a"))
        assert isinstance(outcome, Refused)
        assert "does not know who this broker is: check logbus.zookeeper.auth.file" in outcome.detail


def test_a_server_that_cannot_be_verified_is_told_nothing(zookeeper: SecuredZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    system = ssl.create_default_context()
    with zookeeper.stores(encrypt=lambda sock, host: system.wrap_socket(sock, server_hostname=host)) as stores:
        client = stores.client(is_connected=False)
        stores.until(lambda: "no encryption with ZooKeeper at 127.0.0.1: " in caplog.text)
        assert "certificate verify failed" in caplog.text
        assert isinstance(client.read("/a"), Unknown)


@pytest.mark.parametrize("settings", [{"truststore": "missing"}, {"truststore": "key"}, {"keystore": "ca"}, {"keystore": "key"}])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, settings: dict[str, str]) -> None:
    authority = Authority(tmp_path)
    files = {"missing": tmp_path / "missing.pem", "ca": authority.certificate, "key": tmp_path / "key.pem"}
    encrypted = authority.issue("encrypted", password="secret").read_text()
    files["key"].write_text(encrypted.partition("-----BEGIN CERTIFICATE")[0])
    ((name, file),) = settings.items()
    config = BrokerConfig(**{"zookeeper_truststore": str(authority.certificate), f"zookeeper_{name}": str(files[file])})
    with pytest.raises(ConfigError, match=f"zookeeper.ssl.{name}.location={files[file]}: no certificate"):
        zookeeper_encryption(config)
