"""Our broker as a process that requires logins, for clients and raw frames.

broker.settings("SASL_PLAINTEXT", "reader", "SCRAM-SHA-512")      what a client needs that connects there as that user
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from logbus.cli.processes import ReservedPorts

from benchmarks.peers.authority import Authority
from benchmarks.peers.logbus import LogbusBroker
from tests.support.logins import OTHER_PASSWORD, OTHER_USER, PASSWORD, USER

PASSWORDS = {"admin": "admin-password", USER: PASSWORD, OTHER_USER: OTHER_PASSWORD}
OPEN, ENDING = "PLAINTEXT", "ENDING"  # listeners without a login, and with logins that have an end


class SecuredLogbus(LogbusBroker):
    """Its port is that of the listener SASL_PLAINTEXT; passwords go over loopback only."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (OPEN, ENDING, "SASL_SSL", "SASL_PLAINTEXT"),
    ) -> None:
        super().__init__(directory, settings=settings)
        self._more = ReservedPorts(len(listeners))
        self._ports = dict(zip(listeners, self._more.numbers, strict=True)) | {"SASL_PLAINTEXT": self.port}
        directory.mkdir(parents=True, exist_ok=True)
        users = directory / "users"
        users.touch(0o600)
        users.write_text("".join(f"{user}={password}\n" for user, password in PASSWORDS.items()))
        self.authority = Authority(directory)
        self.settings = {
            "listeners": ",".join(f"{name}://{self.address(name)}" for name in self._ports),
            "listener.security.protocol.map": f"{ENDING}:SASL_PLAINTEXT",
            "ssl.keystore.location": str(self.authority.issue("broker")),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "logbus.allow.cleartext.passwords": "true",
            "connection.failed.authentication.delay.ms": "0",
            "logbus.users.file": str(users),
            "group.initial.rebalance.delay.ms": "0",
            **({f"listener.name.{ENDING.lower()}.connections.max.reauth.ms": "4000"} if ENDING in listeners else {}),
            **self.settings,
        }

    def release(self) -> None:
        super().release()
        self._more.release()

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    def port_of(self, listener: str) -> int:
        return self._ports[listener]

    def client_settings(
        self, user: str, mechanism: str, password: str | None = None, listener: str = "SASL_PLAINTEXT"
    ) -> dict[str, str]:
        """Of librdkafka."""
        tls = {"ssl.ca.location": str(self.authority.certificate)} if listener == "SASL_SSL" else {}
        return {
            **tls,
            "bootstrap.servers": self.address(listener),
            "security.protocol": listener,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user] if password is None else password,
        }


def of_python(settings: Mapping[str, str]) -> dict[str, str]:
    """The same for kafka-python, and for aiokafka without TLS."""
    names = {
        "bootstrap.servers": "bootstrap_servers",
        "security.protocol": "security_protocol",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
        "ssl.ca.location": "ssl_cafile",
    }
    return {names[name]: value for name, value in settings.items()}


def jvm_file(settings: Mapping[str, str], directory: Path) -> str:
    """The same as a file for the option --command-config of Kafka's tools."""
    login = f'required username="{settings["sasl.username"]}" password="{settings["sasl.password"]}";'
    kept = {name: settings[name] for name in ("security.protocol", "sasl.mechanism")}
    kept["sasl.jaas.config"] = f"org.apache.kafka.common.security.scram.ScramLoginModule {login}"
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in kept.items()))
    return str(path)
