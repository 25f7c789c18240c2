"""Settings files that people have: kcat's, those of Kafka's tools, JSON. tests/contract/test_secured_kafka.py connects with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.kafka.client_config import read_client_config, translated

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return read_client_config(path)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            '{"security.protocol": "SSL", "socket.keepalive.enable": true}',
            {"security.protocol": "SSL", "socket.keepalive.enable": True},
        ),
        (
            "# kcat\nbootstrap.servers=a:9092,b:9092\n\n  sasl.password = a=b:c \n",
            {"bootstrap.servers": "a:9092,b:9092", "sasl.password": "a=b:c"},
        ),
        ("\ufeffclient.id=me\n", {"client.id": "me"}),
        ("! Java's other forms\nclient.id: me\nclient.rack eu\n", {"client.id": "me", "client.rack": "eu"}),
        ("bootstrap.servers=a:9092,\\\n    b:9092\n", {"bootstrap.servers": "a:9092,b:9092"}),
        ("sasl.password=a\\u0062\\\\c\\=\\t.\n", {"sasl.password": "ab\\c=\t."}),
        (
            f'sasl.jaas.config={SCRAM} required username="ann" password="p\\\\"q;r";',
            {"sasl.username": "ann", "sasl.password": 'p"q;r'},
        ),
        (
            f"sasl.jaas.config={PLAIN} required \\\n  username=ann \\\n  password=secret;\n",
            {"sasl.username": "ann", "sasl.password": "secret"},
        ),
        (
            "key.deserializer=org.example.X\nvalue.serializer=Y\nssl.protocol=TLSv1.3\nmax.poll.records=5\nacks=all\n",
            {"acks": "all"},
        ),
    ],
)
def test_a_file_is_read_as_its_owner_reads_it(tmp_path: Path, text: str, settings: dict[str, Any]) -> None:
    assert read(tmp_path, text) == settings


@pytest.mark.parametrize(
    ("settings", "in_librdkafkas_names"),
    [
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem", "ssl.truststore.password": "x"}, {"ssl.ca.location": "/ca.pem"}),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "-----BEGIN"}, {"ssl.ca.pem": "-----BEGIN"}),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem", "ssl.key.password": "x"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem", "ssl.key.password": "x"},
        ),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "c", "ssl.keystore.key": "k"},
            {"ssl.certificate.pem": "c", "ssl.key.pem": "k"},
        ),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
        ),
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
             "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
            {"sasl.mechanism": "OAUTHBEARER"},
        ),
        ({"metadata.broker.list": "a:1", "stats_cb": "app.stats"}, {"bootstrap.servers": "a:1"}),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://id/token",
                "sasl.jaas.config": f'{OAUTH} required clientId="me" clientSecret="s" scope="kafka";',
                "sasl.login.callback.handler.class": "org.example.Handler",
            },
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://id/token",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "kafka",
            },
        ),
        ({"sasl.jaas.config": f"{PLAIN} required username=a password=b;", "sasl.password": "own"}, {"sasl.username": "a", "sasl.password": "own"}),
    ],
)  # fmt: skip
def test_what_a_jvm_client_is_told_is_said_to_librdkafka(settings: dict[str, Any], in_librdkafkas_names: dict[str, Any]) -> None:
    assert translated(settings) == in_librdkafkas_names
    assert translated(in_librdkafkas_names) == in_librdkafkas_names


@pytest.mark.parametrize(
    ("text", "what_to_do"),
    [
        (
            "ssl.truststore.location=/etc/ca.jks",
            r"JKS store.*keytool -importkeystore -srckeystore /etc/ca.jks .* && openssl pkcs12 .*ssl.ca.location",
        ),
        ("ssl.truststore.type=PKCS12\nssl.truststore.location=ca.p12", r"`openssl pkcs12 -in ca.p12 -nokeys -out ca.pem`"),
        ("ssl.keystore.location=me.jks", r"keytool .*me.jks.*set ssl.keystore.type=PKCS12"),
        (
            "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;",
            r"GSSAPI \(Kerberos\) is not supported",
        ),
        (
            "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName=x;",
            r"IAMLoginModule, which is a class of the JVM",
        ),
        ("sasl.jaas.config=user and password", r"set sasl.username and sasl.password instead"),
        ("a line\n=x", r"line 2 is not of the form name=value"),
        ("[1]", r"has to be an object"),
        ("{", r"begins like JSON and is not"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(tmp_path: Path, text: str, what_to_do: str) -> None:
    with pytest.raises(UserError, match=f"client.properties: .*{what_to_do}"):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing.properties: No such file"):
        read_client_config(tmp_path / "missing.properties")
    (tmp_path / "binary").write_bytes(b"\xfe\xed\xfe\xed")  # a key store
    with pytest.raises(UserError, match=r"cannot read the client settings"):
        read_client_config(tmp_path / "binary")


def test_json_that_holds_jvm_settings_is_translated_too(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps({"sasl.jaas.config": f"{PLAIN} required username=a password=b;"})) == {
        "sasl.username": "a",
        "sasl.password": "b",
    }
