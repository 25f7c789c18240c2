"""Our broker with a listener for clients that have certificates, one for clients with a password, and what such clients set."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.authority import Authority
from benchmarks.processes import free_port
from tests.support.broker import LogbusBroker
from tests.support.logins import PASSWORD, USER
from tests.support.scraping import metrics_settings


class TlsBroker(LogbusBroker):
    """With a second listener, SSL, that knows its clients by certificates, and a third, SASL_SSL, for `logins.USER`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings=metrics_settings())
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory)
        self.keystore = self.authority.issue("server")
        self.client = self.authority.issue("ann")
        self.tls, self.logins = (f"127.0.0.1:{free_port()}" for _ in range(2))
        users = directory / "users"
        users.touch(0o600)
        users.write_text(f"{USER}={PASSWORD}\n")
        self.settings |= {
            "listeners": f"PLAINTEXT://{self.bootstrap},SSL://{self.tls},SASL_SSL://{self.logins}",
            "logbus.users.file": str(users),
            "ssl.keystore.location": str(self.keystore),
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.truststore.location": str(self.authority.certificate),
        }

    def client_settings(self) -> Mapping[str, str]:
        """Of librdkafka."""
        return {
            "bootstrap.servers": self.tls,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(self.client),
            "ssl.key.location": str(self.client),
        }

    def java_settings(self) -> Mapping[str, str]:
        """Of Kafka's own clients."""
        store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.client)}
        trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority.certificate)}
        return {"security.protocol": "SSL", **store, **trusted}

    def login_settings(self, password: str) -> Mapping[str, str]:
        """Of librdkafka, at the listener that asks for a password."""
        login = {"bootstrap.servers": self.logins, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
        return {**login, "sasl.username": USER, "sasl.password": password, "ssl.ca.location": str(self.authority.certificate)}

    def served(self) -> str:
        """The certificate that a new connection gets."""
        host, _, port = self.tls.partition(":")
        return ssl.get_server_certificate((host, int(port)))
