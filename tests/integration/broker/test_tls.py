"""Clients of all families over TLS, unmodified, with certificates of their own; and a broker that gets a new one meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.programs import program_or_skip
from tests.support.recording_proxy import WireTap
from tests.support.scraping import scrape
from tests.support.tls_broker import TlsBroker
from tests.support.topics import create_topic

BIG = b"x" * 900_000
PLANTED = b"a record that nobody may see on the wire"


@pytest.fixture(scope="module")
def tap() -> Iterator[WireTap]:
    """Between the clients and the listener with TLS, whose address is the tap's."""
    with WireTap() as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tap: WireTap) -> Iterator[TlsBroker]:
    broker = TlsBroker(tmp_path_factory.mktemp("tls"))
    broker.settings["advertised.listeners"] = (
        f"PLAINTEXT://{broker.bootstrap},SSL://127.0.0.1:{tap.port},SASL_SSL://{broker.logins}"
    )
    tap.target_port = int(broker.tls.rpartition(":")[2])
    with broker as running:
        yield running


def test_librdkafka_writes_and_reads_what_nobody_on_the_way_sees(secured: TlsBroker, topic: str, tap: WireTap) -> None:
    create_topic(secured.bootstrap, topic)
    producer = Producer({**secured.client_settings(), "enable.idempotence": True, "linger.ms": 5})
    sent = [b"%d" % number for number in range(5_000)] + [PLANTED, BIG, BIG]
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**secured.client_settings(), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes] = []
    while len(received) < len(sent):
        received += [message.value() for message in consumer.consume(10_000, 1) if not message.error()]
    consumer.close()
    assert received == sent
    assert len(tap.seen) > sum(map(len, sent)) * 2, "it was there for both"
    assert not [secret for secret in (PLANTED, BIG[:100], topic.encode()) if secret in tap.seen]


def test_kcat_writes_and_reads(secured: TlsBroker, topic: str) -> None:
    create_topic(secured.bootstrap, topic)
    given = [part for name, value in secured.client_settings().items() for part in ("-X", f"{name}={value}")]

    def kcat(*arguments: str, stdin: str = "") -> str:
        command = [program_or_skip("kcat"), *given, "-t", topic, "-p", "0", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
        return done.stdout

    lines = "".join(f"line {number}\n" for number in range(1_000))
    kcat("-P", stdin=lines)
    assert kcat("-C", "-o", "beginning", "-e", "-q") == lines


def test_clients_in_python_write_and_read(secured: TlsBroker, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer
    from kafka import KafkaProducer

    create_topic(secured.bootstrap, topic)
    context = ssl.create_default_context(cafile=str(secured.authority.certificate))
    context.load_cert_chain(secured.client)
    common = {"bootstrap_servers": secured.tls, "security_protocol": "SSL", "ssl_context": context}
    producer = KafkaProducer(**common)
    for number in range(500):
        producer.send(topic, b"%d" % number)
    producer.send(topic, BIG)
    producer.flush(PATIENCE_SECONDS)
    producer.close()

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **common)
        async with consumer:
            return [(await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)).value for _ in range(501)]

    assert asyncio.run(read()) == [*(b"%d" % number for number in range(500)), BIG]


def test_who_has_no_certificate_or_no_tls_is_refused_and_the_log_says_why(secured: TlsBroker) -> None:
    without = {name: value for name, value in secured.client_settings().items() if not name.startswith(("ssl.cert", "ssl.key"))}
    errors: list[KafkaError] = []
    producer = Producer({**without, "error_cb": errors.append})

    def is_refused() -> bool:
        producer.poll(0)
        return any("certificate required" in error.str() for error in errors)

    wait_until(is_refused, what="the refusal of a client without a certificate")
    host, _, port = secured.tls.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert len(stranger.recv(1 << 10)) < 10, "an alert, at most"
    wait_until(lambda: "does not speak TLS" in secured.log_path.read_text(), what="the line about it")
    log = secured.log_path.read_text()
    assert "the client has no certificate, and ssl.client.auth=required" in log
    assert scrape(secured)['logbus_connections_closed_total{reason="tls"}'] >= 2


def test_a_certificate_is_replaced_under_load_and_no_connection_is_lost(secured: TlsBroker, topic: str) -> None:
    create_topic(secured.bootstrap, topic)
    errors: list[KafkaError] = []
    producer = Producer({**secured.client_settings(), "error_cb": errors.append, "linger.ms": 0})
    old, sent = secured.served(), 0
    expiry = scrape(secured)['logbus_certificate_expiry_seconds{listener="SSL"}']

    def under_load(done: str) -> bool:
        nonlocal sent
        producer.produce(topic, b"%d" % sent)
        sent += 1
        producer.poll(0)
        return done in secured.log_path.read_text()

    secured.keystore.write_bytes(secured.authority.issue("renewed", days=3).read_bytes())
    wait_until(lambda: under_load("listener SSL serves the new"), what="the new certificate")
    new = secured.served()
    assert new != old
    assert scrape(secured)['logbus_certificate_expiry_seconds{listener="SSL"}'] > expiry
    secured.keystore.write_bytes(secured.client.read_bytes().replace(b"A", b"B"))
    wait_until(lambda: under_load("listener SSL keeps its certificate"), what="the refusal of a bad one")
    assert secured.served() == new
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert errors == []
