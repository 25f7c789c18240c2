"""A Kafka with TLS, SASL and an authorizer, as a data engineer has it: which settings connect, with which rights, and what each error says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from logbus.errors import UserError
from logbus.kafka import cluster
from logbus.kafka.client import Client
from logbus.kafka.client_config import read_client_config
from logbus.status.broker_checks import check_broker
from logbus.status.checks import Machine, Severity

from tests.support.secured_kafka import LOGIN, PASSWORDS, SecuredKafka, secured_kafka  # noqa: F401

TOPIC = "read.orders"


@pytest.fixture(scope="module")
def kafka(secured_kafka: SecuredKafka) -> SecuredKafka:  # noqa: F811
    admin = secured_kafka.admin()
    for future in admin.create_topics([NewTopic(TOPIC, 1)]).values():
        future.result()
    return secured_kafka


def jvm_quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_who_may_read_a_topic_sees_it(kafka: SecuredKafka, listener: str, mechanism: str) -> None:
    assert TOPIC in Client(kafka.settings(listener, "reader", mechanism)).metadata().topics


def test_certificates_in_the_settings_themselves_connect_both_libraries(kafka: SecuredKafka) -> None:
    settings = kafka.settings("SSL", "reader")
    inline = {name.replace("location", "pem"): Path(value).read_text() for name, value in settings.items() if "location" in name}
    client = Client({name: value for name, value in settings.items() if "location" not in name} | inline)
    assert TOPIC in client.metadata().topics
    assert "Fetch" in cluster.api_versions(client)


@pytest.mark.parametrize(
    ("changed", "severity", "sentence"),
    [
        ({}, Severity.OK, "supports all"),
        ({"sasl_password": "x"}, Severity.ERROR, "authentication with .* failed"),
    ],
)
def test_the_doctor_tells_a_setting_from_a_broker_that_is_away(
    kafka: SecuredKafka, changed: dict[str, str | None], severity: Severity, sentence: str
) -> None:
    config = other(kafka.settings("SASL_SSL", "reader"), **changed)
    (found,) = check_broker(Machine(clock=lambda: datetime.now(UTC), client_config=config))
    assert (found.severity, "start it" in found.advice) == (severity, False)
    assert re.search(sentence, found.message)


def test_the_properties_of_kafkas_tools_connect(kafka: SecuredKafka, tmp_path: Path) -> None:
    path, login = tmp_path / "client.properties", f"{LOGIN}.scram.ScramLoginModule"
    jaas = f'{login} required username="reader" password="{jvm_quoted(PASSWORDS["reader"])}";'
    path.write_text(
        f"bootstrap.servers={kafka.address('SASL_SSL')}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        + "sasl.jaas.config="
        + jaas.replace("\\", "\\\\")
        + f"\nssl.truststore.type=PEM\nssl.truststore.location={kafka.authority.certificate}\n"
    )
    kafka.tools.run(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        kafka.address("SASL_SSL"),
        "--list",
        "--command-config",
        str(path),
    )
    assert TOPIC in Client(read_client_config(path)).metadata().topics


def other(settings: dict[str, str], **changed: str | None) -> dict[str, str]:
    """The settings with some changed, by names with underscores; None takes one out."""
    replaced = settings | {name.replace("_", "."): value for name, value in changed.items()}
    return {name: value for name, value in replaced.items() if value is not None}


@pytest.mark.parametrize(
    ("listener", "port", "changed", "sentence"),
    [
        ("PLAINTEXT", "SASL_SSL", {}, "ends each connection at once: security.protocol is not what this listener speaks"),
        ("PLAINTEXT", "SASL_PLAINTEXT", {}, "ends each connection at once: security.protocol is not what this listener speaks"),
        ("SSL", "SASL_SSL", {}, "ends each connection at once: security.protocol is not what this listener speaks"),
        ("SASL_SSL", "SASL_PLAINTEXT", {}, "no TLS connection to .*Set security.protocol to SSL or SASL_SSL only if the port speaks TLS"),
        ("SASL_PLAINTEXT", "PLAINTEXT", {}, "authentication with .* failed: .*Check sasl.mechanism"),
        ("SASL_SSL", "SASL_SSL", {"ssl_ca_location": None}, "certificate could not be verified.*ssl.ca.location"),
        ("SASL_SSL", "SASL_SSL", {"sasl_password": "x"}, "authentication with .* failed: .*sasl.password"),
        ("SSL", "SSL", {"ssl_certificate_location": None, "ssl_key_location": None}, "wants a certificate of this client.*set ssl.certificate.location"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named(
    kafka: SecuredKafka, listener: str, port: str, changed: dict[str, str | None], sentence: str
) -> None:
    client = Client.for_command(other(kafka.settings(listener, "reader"), bootstrap_servers=kafka.address(port), **changed))
    with pytest.raises(UserError, match=sentence):
        client.ask(client.ask_cluster)
