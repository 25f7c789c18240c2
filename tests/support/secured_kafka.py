"""An Apache Kafka as others run it: TLS, SASL and an authorizer, each on a listener of its own, and users with few rights.

    kafka.settings("SASL_SSL", "reader")      what a client needs that connects to that listener as that user

`admin` is a super user; `reader` may read topics that begin with `read.`, and nothing else; `nobody` may nothing. SASL_SSL takes tokens that nobody signed. The certificate
that clients present (listener SSL) is reader's.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks import processes
from benchmarks.peers.authority import Authority
from benchmarks.peers.kafka import SMALL_FLAGS, ApacheKafka
from tests.support.kafka_peer import Missing

PASSWORDS = {"admin": "admin-password", "reader": 'reader\'s "password"; \\', "nobody": "nothing"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
LOGIN = "org.apache.kafka.common.security"


def unsecured_token(config: str) -> tuple[str, float]:
    """What `oauth_cb` may name: an unsigned token for the user that `sasl.oauthbearer.config` is."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": config, "iat": int(now), "exp": int(now) + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""]), now + 3600


@contextmanager
def token_endpoint() -> Iterator[dict[str, str]]:
    """The settings of a client that gets its tokens by OIDC, from an issuer that believes everybody."""

    class Issuer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            user = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode().partition(":")[0]
            answer = json.dumps({"access_token": unsecured_token(user)[0], "token_type": "Bearer", "expires_in": 3600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Issuer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/token",
            "sasl.oauthbearer.client.id": "reader",
            "sasl.oauthbearer.client.secret": "believed",
        }
        server.shutdown()


class SecuredKafka(ApacheKafka):
    """One node with the four listeners; anonymous clients may nothing."""

    administrators: tuple[str, ...] = ("admin",)

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, flags=SMALL_FLAGS, settings={"offsets.topic.num.partitions": "1", **(settings or {})})
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = {"PLAINTEXT": self.port} | {name: processes.free_port() for name in LISTENERS[1:]}
        self.authority = Authority(directory)
        self._server = self.authority.issue("server")
        self.certificate = self.authority.issue("reader")

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    def settings(self, listener: str, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Of librdkafka, for a client."""
        settings = {"bootstrap.servers": self.address(listener), "security.protocol": listener}
        if listener.startswith("SASL"):
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": PASSWORDS[user]}
        elif listener == "SSL":
            settings |= {"ssl.certificate.location": str(self.certificate), "ssl.key.location": str(self.certificate)}
        return settings | ({"ssl.ca.location": str(self.authority.certificate)} if listener.endswith("SSL") else {})

    def server_properties(self) -> dict[str, str]:
        lines = super().server_properties()
        controller = lines["listeners"].partition(",")[2]
        listeners = ",".join(f"{name}://{self.address(name)}" for name in LISTENERS)
        escaped = {user: password.replace("\\", "\\\\").replace('"', '\\"') for user, password in PASSWORDS.items()}
        plain = f"{LOGIN}.plain.PlainLoginModule required username=admin password=admin-password" + "".join(
            f' user_{user}="{password}"' for user, password in escaped.items()
        )
        lines |= {
            "listeners": f"{listeners},{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in LISTENERS) + ",CONTROLLER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in self.administrators),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "connection.failed.authentication.delay.ms": "0",
            "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "60000",
        }
        lines["listener.name.sasl_ssl.sasl.enabled.mechanisms"] = ",".join((*MECHANISMS, "OAUTHBEARER"))
        lines["listener.name.sasl_ssl.oauthbearer.sasl.jaas.config"] = f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;"
        for listener in ("sasl_plaintext", "sasl_ssl", "controller"):
            prefix = f"listener.name.{listener}"
            lines[f"{prefix}.plain.sasl.jaas.config"] = (plain + ";").replace("\\", "\\\\")
            for mechanism in MECHANISMS[1:]:
                lines[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = f"{LOGIN}.scram.ScramLoginModule required;"
        return lines

    def grant(
        self,
        user: str,
        operation: AclOperation,
        name: str,
        kind: ResourceType = ResourceType.TOPIC,
        pattern: ResourcePatternType = ResourcePatternType.PREFIXED,
    ) -> None:
        """An ACL on everything of that kind whose name begins with `name`, or on the cluster."""
        is_cluster, allow = kind is ResourceType.BROKER, AclPermissionType.ALLOW
        pattern = ResourcePatternType.LITERAL if is_cluster else pattern
        binding = AclBinding(kind, "kafka-cluster" if is_cluster else name, pattern, f"User:{user}", "*", operation, allow)
        admin = self.admin()
        for future in admin.create_acls([binding]).values():
            future.result()

    def grant_as_written(self, command: str) -> None:
        """The ACLs of a line for kafka-acls, which would take seconds for each."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--allow-principal", type=lambda text: text.removeprefix("User:"))
        parser.add_argument(
            "--operation", action="append", type=lambda name: AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()]
        )
        parser.add_argument("--topic")
        parser.add_argument("--group")
        for flag in ("--add", "--cluster"):
            parser.add_argument(flag, action="store_true")
        parser.add_argument("--resource-pattern-type", choices=["prefixed"])
        given = parser.parse_args(command.split()[1:])
        kind = ResourceType.TOPIC if given.topic else ResourceType.GROUP if given.group else ResourceType.BROKER
        for operation in given.operation:
            self.grant(given.allow_principal, operation, given.topic or given.group, kind)

    def add_scram_users(self) -> None:
        admin = self.admin()
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # a user once in each request
            info = ScramCredentialInfo(mechanism, 4096)
            changes = [UserScramCredentialUpsertion(user, info, password.encode()) for user, password in PASSWORDS.items()]
            for future in admin.alter_user_scram_credentials(changes).values():
                future.result()

    def admin(self) -> AdminClient:
        return AdminClient(self.settings("SASL_SSL", "admin", "PLAIN"))


class SecuredBroker(SecuredKafka):
    """For suites of the pipeline, which reads as `reader` over SASL_SSL; what fills the topics connects without security."""

    administrators = ("admin", "ANONYMOUS")

    def start(self) -> None:
        super().start()
        self.add_scram_users()
        for operation in (AclOperation.READ, AclOperation.DESCRIBE):
            self.grant("reader", operation, "*", pattern=ResourcePatternType.LITERAL)


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One for all who ask, started."""
    try:
        kafka = SecuredKafka(tmp_path_factory.mktemp("secured"))
    except Missing as missing:
        pytest.skip(str(missing))
    with kafka:
        kafka.add_scram_users()
        for operation in (AclOperation.READ, AclOperation.DESCRIBE):
            kafka.grant("reader", operation, "read.")
        yield kafka
