"""One configuration and one table of errors for both client libraries."""

from __future__ import annotations

import pytest
from kafka import errors as theirs
from logbus.errors import AccessDenied, BrokerUnavailable, LogbusError
from logbus.kafka.client import Client
from logbus.kafka.other_requests import conversation, explained, translated


def test_settings_of_librdkafka_become_those_of_kafka_python_and_others_are_left_out() -> None:
    config = {
        "bootstrap.servers": "b:1",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "plain",
        "sasl.username": "u",
        "linger.ms": 5,
    }
    assert translated(config) == {
        "bootstrap_servers": "b:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
    }


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (theirs.SaslAuthenticationFailedError("no such user"), AccessDenied, "refuses the login"),
        (theirs.ClusterAuthorizationFailedError(), AccessDenied, "lacks Describe on the cluster"),
        (theirs.KafkaConnectionError("111 ECONNREFUSED"), BrokerUnavailable, "ECONNREFUSED"),
        (OSError(58, "not an error of Kafka's"), BrokerUnavailable, "not an error of Kafka's"),
    ],
)
def test_errors_of_kafka_python_are_told_by_the_same_table(error: Exception, kind: type[LogbusError], words: str) -> None:
    found = explained(Client({"bootstrap.servers": "b:1"}), error)
    assert type(found) is kind
    assert words in str(found)
    assert "b:1" in str(found) or kind is AccessDenied


def test_where_no_broker_is_the_sentence_says_where_it_was_looked_for() -> None:
    with (
        pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 did not answer"),
        conversation(Client({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.1)),
    ):
        pass
