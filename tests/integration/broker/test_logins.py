"""Clients that log in, unmodified: what they may do with the right password, and what they say with a wrong one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from logbus.cli import main
from logbus.kafka import client_config
from logbus.kafka.errors import spoken_protocol
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.security.state import AUDIT_TOPIC
from logbus_broker.setting_parsers import AUTHORIZERS

from tests.support import logins
from tests.support.other_languages import Command, franz_go, kafkajs, roundtrip, sarama
from tests.support.programs import program_or_skip
from tests.support.scraping import metrics_settings, scrape
from tests.support.secured_logbus import ENDING, OPEN, SecuredLogbus, of_python

ISSUER = ec.generate_private_key(ec.SECP256R1())
VALUES = [b"%d" % number for number in range(20)]
Roundtrip = Callable[[dict[str, str], str], list[bytes]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredLogbus]:
    directory = tmp_path_factory.mktemp("secured")
    rights = {"authorizer.class.name": AUTHORIZERS[0], "super.users": f"User:admin;User:{logins.USER}"}
    rights |= {"logbus.audit.topic.enable": "true"}
    key = json.loads(ECAlgorithm.to_jwk(ISSUER.public_key())) | {"kid": "of-the-issuer"}
    (directory / "keys.json").write_text(json.dumps({"keys": [key]}))
    tokens = {
        "sasl.enabled.mechanisms": ",".join((*logins.MECHANISMS, "OAUTHBEARER")),
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "logbus",
    }
    with SecuredLogbus(directory, settings=metrics_settings() | rights | tokens) as running:
        yield running
    contents = b"".join(path.read_bytes() for path in (directory / "data").rglob("*") if path.is_file())
    log = running.log_path.read_bytes()
    assert logins.PASSWORD.encode() not in contents + log


def admin_client(broker: SecuredLogbus) -> AdminClient:
    return AdminClient(broker.client_settings("admin", "SCRAM-SHA-512"))


def change_user(admin: AdminClient, row: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
    for future in admin.alter_user_scram_credentials([row]).values():
        future.result(PATIENCE_SECONDS)


def lines_about(refused: Callable[[], None], text: str, broker: SecuredLogbus) -> list[str]:
    """The lines of the broker's log with this text. It writes a few refusals in ten seconds, whoever's they are, and counts the
    rest: until this one is among the few, the client tries again."""

    def lines() -> list[str]:
        refused()
        return [line for line in broker.log_path.read_text().splitlines() if text in line]

    return wait_until(lines, what=f"a line about {text}")


# -- each client writes and reads, with librdkafka's names for its settings ------------------------------------------------------


def confluent(settings: dict[str, Any], topic: str) -> list[bytes]:
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    wait_until(lambda: producer.flush(0.1) == 0 or bool(errors), what="the records to be written, or an error")
    if len(producer):
        producer.purge()
        raise KafkaException(errors[0])
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in consumer.consume(len(VALUES), PATIENCE_SECONDS)]
    consumer.close()
    return found


def kafka_python(settings: dict[str, str], topic: str) -> list[bytes]:
    producer = KafkaProducer(**of_python(settings), bootstrap_timeout_ms=3_000)
    for value in VALUES:
        producer.send(topic, value, partition=0)
    producer.flush(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(**of_python(settings), consumer_timeout_ms=PATIENCE_SECONDS * 1000)
    consumer.assign([PyTopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found = [next(consumer).value for _ in VALUES]
    consumer.close()
    return found


def aiokafka(settings: dict[str, str], topic: str) -> list[bytes]:
    options: dict[str, Any] = of_python(settings)
    if cafile := options.pop("ssl_cafile", ""):
        options["ssl_context"] = create_ssl_context(cafile=cafile)

    async def roundtrip() -> list[bytes]:
        async with AIOKafkaProducer(**options) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value, partition=0)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(roundtrip(), PATIENCE_SECONDS))


def kcat(settings: dict[str, str], topic: str) -> list[bytes]:
    """Debian 12's, whose SCRAM Apache Kafka 4.1 refuses."""
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        command = [program_or_skip("kcat"), *options, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        return done.stdout

    run("-P", "-t", topic, "-p", "0", stdin=b"\n".join(VALUES))
    return run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q").splitlines()


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("SASL_PLAINTEXT", "SCRAM-SHA-256"), ("SASL_SSL", "SCRAM-SHA-256"), ("SASL_SSL", "SCRAM-SHA-512"), ("SASL_SSL", "PLAIN")],
)
@pytest.mark.parametrize("client", [confluent, kafka_python, aiokafka, kcat])
def test_a_client_that_logs_in_writes_and_reads(broker: SecuredLogbus, client: Roundtrip, listener: str, mechanism: str) -> None:
    topic = f"of-{client.__name__}-{listener}-{mechanism}"
    assert client(broker.client_settings(logins.USER, mechanism, listener=listener), topic) == VALUES


@pytest.mark.long
@pytest.mark.parametrize("client", [sarama, franz_go, kafkajs])
def test_clients_in_other_languages_log_in_over_tls_and_say_that_a_password_is_wrong(
    broker: SecuredLogbus, client: Command
) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        settings = broker.client_settings(logins.USER, mechanism, listener="SASL_SSL")
        assert roundtrip(client, VALUES, f"of-{client.__name__}-{mechanism}", settings) == VALUES
        with pytest.raises(RuntimeError, match=r"(?i)authentication failed|SASL_AUTHENTICATION_FAILED|invalid credentials"):
            roundtrip(client, VALUES, "never", settings | {"sasl.password": "wrong"})


def test_a_client_logs_in_by_a_token_of_the_issuer(broker: SecuredLogbus) -> None:
    def token(config: str) -> tuple[str, float]:
        """`config` is the audience."""
        end = time.time() + 60
        claims = {"sub": logins.USER, "iss": "https://issuer", "aud": config, "exp": int(end)}
        return jwt.encode(claims, ISSUER, "ES256", headers={"kid": "of-the-issuer"}), end

    settings = {"bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    settings |= {"oauth_cb": token, "sasl.oauthbearer.config": "logbus"}
    assert confluent(settings, "of-tokens") == VALUES

    def refused() -> None:
        with pytest.raises(KafkaException, match="the token is not accepted"):
            confluent(settings | {"sasl.oauthbearer.config": "others"}, "of-tokens")

    assert lines_about(refused, "the token is not valid: Audience doesn't match", broker)


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (confluent, "SASL authentication error: Authentication failed .*(credentials|password)"),
        (kcat, "SASL authentication error: Authentication failed .*credentials"),
        (kafka_python, "(?i)bootstrap|metadata|authentication"),
        (aiokafka, "(?i)bootstrap|authentication"),
    ],
)
def test_a_wrong_password_is_an_error_in_each_client_and_a_line_in_the_log(
    broker: SecuredLogbus, client: Roundtrip, says: str
) -> None:
    """Of a user of its own: others also write such lines."""
    user = f"mistaken-{client.__name__}"
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    change_user(admin_client(broker), UserScramCredentialUpsertion(user, info, b"right"))
    settings = broker.client_settings(user, "SCRAM-SHA-256", "wrong", "SASL_SSL")

    def refused() -> None:
        with pytest.raises(Exception, match=says):
            client(settings, "never")

    for line in lines_about(refused, f"user={user} ", broker):
        assert "a login was refused: the password is wrong" in line
        assert f"user={user} mechanism=SCRAM-SHA-256 listener=SASL_SSL" in line


def test_a_listener_says_which_protocol_it_speaks(broker: SecuredLogbus) -> None:
    mechanisms = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    spoken = {listener: spoken_protocol(broker.address(listener)) for listener in (OPEN, "SASL_PLAINTEXT", "SASL_SSL")}
    assert spoken[OPEN] == (OPEN, ())
    assert [spoken[name] == (name, (*mechanisms, "OAUTHBEARER")) for name in ("SASL_PLAINTEXT", "SASL_SSL")] == [True, True]
    assert spoken_protocol("127.0.0.1:1") is None


@pytest.mark.parametrize(
    "words", ["topic ls", "consume clicks", "produce clicks", "ship {log} --topic clicks", "connect --for java"]
)
def test_each_command_says_which_protocol_is_the_right_one(broker: SecuredLogbus, tmp_path: Path, words: str) -> None:
    """By the one whose mistake shows at once; the others are in tests/contract/test_secured_kafka.py."""
    settings = broker.client_settings(logins.USER, "SCRAM-SHA-256", listener="SASL_SSL")
    client_config.write(tmp_path / "c.properties", settings | {"bootstrap.servers": broker.address(OPEN)})
    (tmp_path / "app.log").write_text("a line\n")
    runner = CliRunner(env={"LOGBUS_CLIENT_CONFIG": str(tmp_path / "c.properties"), "XDG_STATE_HOME": str(tmp_path)})
    result = runner.invoke(main, words.format(log=tmp_path / "app.log").split(), input="a line\n", catch_exceptions=False)
    assert result.exit_code == 1, result.output
    assert "speaks PLAINTEXT, and security.protocol is SASL_SSL: set it to PLAINTEXT" in result.stderr


def test_users_are_added_changed_and_removed_by_clients(broker: SecuredLogbus) -> None:
    admin = admin_client(broker)

    def log_in(password: str) -> logins.Spoken:
        peer = logins.Spoken(broker.bootstrap)
        answers.append(logins.code(logins.log_in(peer, "SCRAM-SHA-256", "new", password)))
        return peer

    answers: list[int] = []
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8_192)
    log_in("first")
    change_user(admin, UserScramCredentialUpsertion("new", info, b"first"))
    (described,) = admin.describe_user_scram_credentials(["new"]).values()
    found = described.result(PATIENCE_SECONDS).scram_credential_infos
    assert [(row.mechanism, row.iterations) for row in found] == [(ScramMechanism.SCRAM_SHA_256, 8_192)]
    open_connection = log_in("first")
    change_user(admin, UserScramCredentialUpsertion("new", info, b"second"))
    log_in("first")
    log_in("second")
    change_user(admin, UserScramCredentialDeletion("new", ScramMechanism.SCRAM_SHA_256))
    log_in("second")
    assert answers == [58, 0, 58, 0, 58]
    assert not open_connection.is_closed(), "what is open goes on"


def test_a_user_may_do_what_acls_allow_as_long_as_they_do(broker: SecuredLogbus) -> None:
    """A fetch that waits ends when the right to read is taken away: here it would wait for five minutes."""
    admin = admin_client(broker)
    (created,) = admin.create_topics([NewTopic("rights", 1)]).values()
    created.result(PATIENCE_SECONDS)
    settings = broker.client_settings(logins.OTHER_USER, "SCRAM-SHA-512")
    refusals: list[KafkaError | None] = []

    def produce() -> None:
        producer = Producer(settings)  # another one each time: it remembers for a while that it may not
        producer.produce("rights", b"x", partition=0, on_delivery=lambda error, _: refusals.append(error))
        assert producer.flush(PATIENCE_SECONDS) == 0

    produce()
    topic, group, user = ResourceType.TOPIC, ResourceType.GROUP, f"User:{logins.OTHER_USER}"
    for kind, operation in ((topic, AclOperation.READ), (topic, AclOperation.WRITE), (group, AclOperation.READ)):
        acl = AclBinding(kind, "rig", ResourcePatternType.PREFIXED, user, "*", operation, AclPermissionType.ALLOW)
        for future in admin.create_acls([acl]).values():
            future.result(PATIENCE_SECONDS)
    produce()
    assert [error and error.code() for error in refusals] == [KafkaError.TOPIC_AUTHORIZATION_FAILED, None]
    consumer = Consumer({**settings, "group.id": "rights", "fetch.wait.max.ms": 300_000, "socket.timeout.ms": 300_000})
    consumer.assign([TopicPartition("rights", 0, 0)])
    (message,) = consumer.consume(1, PATIENCE_SECONDS)
    assert message.value() == b"x"
    reading = AclBindingFilter(topic, None, ResourcePatternType.ANY, None, None, AclOperation.READ, AclPermissionType.ANY)
    for future in admin.delete_acls([reading]).values():
        assert len(future.result(PATIENCE_SECONDS)) == 1
    (refused,) = consumer.consume(1, PATIENCE_SECONDS)
    assert refused.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    assert f"User:{logins.OTHER_USER} from 127.0.0.1 may not READ TOPIC rights: no ACL allows it" in broker.log_path.read_text()


def test_the_audit_topic_has_a_line_for_each_change(broker: SecuredLogbus) -> None:
    admin = admin_client(broker)
    (created,) = admin.create_topics([NewTopic("audited", 1)]).values()
    created.result(PATIENCE_SECONDS)
    administrator = Consumer({**broker.client_settings("admin", "SCRAM-SHA-512"), "group.id": "audit"})
    administrator.assign([TopicPartition(AUDIT_TOPIC, 0, 0)])
    found: list[dict[str, str]] = []

    def has_arrived() -> bool:
        found.extend(json.loads(message.value()) for message in administrator.consume(100, 0.1))
        return any(line.get("what") == "create topic audited" for line in found)

    wait_until(has_arrived, what="the line about the topic")
    line = next(line for line in found if line.get("what") == "create topic audited")
    expected = {"message": "allowed", "principal": "User:admin", "host": "127.0.0.1", "reason": "one of super.users"}
    assert {name: line[name] for name in expected} == expected
    administrator.close()


def test_a_client_logs_in_again_before_its_session_ends(broker: SecuredLogbus) -> None:
    peer = logins.Spoken(broker.address(ENDING))
    assert logins.log_in(peer).session_lifetime_ms == 4_000
    settings = broker.client_settings(logins.USER, "SCRAM-SHA-256") | {"bootstrap.servers": broker.address(ENDING)}
    producer = Producer(settings)
    wait_until(peer.is_closed, what="the session of a client that does not log in again to end")
    producer.produce("still-there", b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert scrape(broker)['logbus_connections_closed_total{reason="session_expired"}'] == 1


def test_a_crowd_with_wrong_passwords_does_not_keep_others_out(broker: SecuredLogbus) -> None:
    served = logins.Spoken(broker.bootstrap)
    logins.log_in(served, "SCRAM-SHA-512")
    crowd = [logins.Spoken(broker.bootstrap) for _ in range(50)]
    for peer in crowd:
        logins.handshake(peer)
    for peer in crowd:
        body = b"\0" + logins.USER.encode() + b"\0wrong"
        peer.client.send_request(36, 0, len(body).to_bytes(4, "big") + body, flexible=False)
    assert not served.is_closed()
    assert logins.code(logins.log_in(logins.Spoken(broker.bootstrap), "PLAIN")) == 0, "also while they are checked"
    assert all(peer.client.receive_frame()[4:6] == b"\0\x3a" for peer in crowd)
