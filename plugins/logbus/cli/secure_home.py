"""What secures the brokers of one home: an authority and a certificate, users with random passwords, what each of them may do.

    HOME/security/ca.pem ..                the authority and the brokers' certificate: see certificates.py
    HOME/security/users                    NAME=PASSWORD in each line, which the brokers read at their start (logbus.users.file)
    HOME/security/zookeeper                who brokers are for their ZooKeeper, in the same form, if there are several
    HOME/security/clients/NAME.properties  what a client needs to connect as that user: for --client-config and Kafka's own tools

All of it is made at the first secure start, readable by its owner only, and stays: a home that has been secured is started in no
other way. The ACLs are made once, while the cluster has none, so that what was changed later by `logbus acl` stays changed.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from logbus import atomic_write, errors
from logbus.cli import certificates
from logbus.kafka import acls, client_config, users
from logbus.kafka.client import Client

PROTOCOL, MECHANISM = "SASL_SSL", "SCRAM-SHA-512"
ADMIN, AIRFLOW, SPARK, EXPORTER, SHIPPER = "admin", "airflow", "spark", "exporter", "shipper"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

# What each may do, to everything of a kind. `admin` may do everything anyway, and the brokers log in to each other as it does.
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
RIGHTS: Mapping[str, Mapping[ResourceType, str]] = {
    AIRFLOW: {  # what operators and pages do: docs/your-kafka.md
        TOPIC: "READ WRITE CREATE DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
        GROUP: "READ DELETE DESCRIBE",
        CLUSTER: "DESCRIBE",
    },
    SHIPPER: {TOPIC: "WRITE CREATE READ DESCRIBE"},  # it looks in the topic for the last line that it sent
    SPARK: {TOPIC: "READ DESCRIBE", GROUP: "READ"},  # programs of one's own: the connector joins groups of its own names
    EXPORTER: {TOPIC: "DESCRIBE DESCRIBE_CONFIGS", GROUP: "DESCRIBE", CLUSTER: "DESCRIBE"},
}
USERS = (ADMIN, *RIGHTS)


class SecureHome:
    """`advertised_host`: the name or address by which other machines reach this one; without it, only this machine does."""

    def __init__(self, home: Path, *, advertised_host: str | None = None) -> None:
        self.advertised_host = advertised_host
        self._directory = home / "security"
        self._clients = self._directory / "clients"
        self._users_path = self._directory / "users"
        self._zookeeper_path = self._directory / "zookeeper"
        self._authority: certificates.Authority | None = None

    @property
    def is_there(self) -> bool:
        """Whether it has been made."""
        return self._users_path.exists()

    def prepare(self, bootstrap_servers: str) -> None:
        """Makes what is missing; the clients' files get this address."""
        errors.require("cryptography")
        self._authority = certificates.Authority(self._directory)
        self.renew()
        for path, names in ((self._zookeeper_path, ["brokers"]), (self._users_path, USERS)):
            if not path.exists():
                lines = "".join(f"{name}={users.random_password()}\n" for name in names)
                atomic_write.replace_atomically(path, lines.encode(), mode=0o600)
        self._clients.mkdir(mode=0o700, exist_ok=True)
        for line in self._users_path.read_text().splitlines():
            user, _, password = line.partition("=")
            path = self.client_file(user)
            if path.exists():  # `logbus user passwd --write` may have changed it since
                password = client_config.read_client_config(path)["sasl.password"]
            settings = {
                "bootstrap.servers": bootstrap_servers,
                "security.protocol": PROTOCOL,
                "sasl.mechanism": MECHANISM,
                "sasl.username": user,
                "sasl.password": password,
                "ssl.ca.location": str(self._directory / "ca.pem"),
            }
            client_config.write(path, settings)

    def renew(self) -> None:
        """Renews the brokers' certificate, if it is time: they read the new one while they run. Costs nothing otherwise."""
        if self._authority is not None:
            names = (*LOCAL_NAMES, socket.gethostname(), *filter(None, [self.advertised_host]))
            self._authority.keep_server_certificate(dict.fromkeys(names))

    def client_file(self, user: str) -> Path:
        return self._clients / f"{user}.properties"

    def client_config(self, user: str) -> dict[str, Any]:
        """In librdkafka's names."""
        return client_config.read_client_config(self.client_file(user))

    def broker_settings(self, port: int, host: str) -> dict[str, str]:
        """What a broker there is started with. Other machines are let in by listening on all addresses."""
        address = host if self.advertised_host is None else "0.0.0.0"
        server, authority = self._directory / "server.pem", self._directory / "ca.pem"
        return {
            "listeners": f"{PROTOCOL}://{address}:{port}",
            "advertised.listeners": f"{PROTOCOL}://{self.advertised_host or host}:{port}",
            "sasl.enabled.mechanisms": ",".join(users.MECHANISMS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority),
            "logbus.users.file": str(self._users_path),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
        }

    def inter_broker_settings(self) -> dict[str, str]:
        """How the brokers of a cluster log in to each other, and keep what is in their ZooKeeper to themselves."""
        return {
            "inter.broker.listener.name": PROTOCOL,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "logbus.inter.broker.user": ADMIN,
            "logbus.zookeeper.auth.file": str(self._zookeeper_path),
            "zookeeper.set.acl": "true",
        }

    def grant(self) -> None:
        """The users' ACLs, in the first cluster that starts here."""
        rules = acls.Acls(Client.for_command(self.client_config(ADMIN)))
        if not rules.matching():
            rules.add([rule for user, rights in RIGHTS.items() for rule in rules_of(user, rights)])


def rules_of(user: str, rights: Mapping[ResourceType, str]) -> list[AclBinding]:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return [
        AclBinding(
            kind,
            acls.CLUSTER_NAME if kind is CLUSTER else acls.ANY_NAME,
            literal,
            f"User:{user}",
            acls.ANY_NAME,
            AclOperation[word],
            allow,
        )
        for kind, words in rights.items()
        for word in words.split()
    ]
