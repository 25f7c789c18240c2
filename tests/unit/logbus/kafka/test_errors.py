"""How a broker's error is reported: who has to act, and what to do."""

from __future__ import annotations

import string

import pytest
from confluent_kafka import KafkaError
from logbus.errors import AccessDenied, BrokerNotReady, BrokerUnavailable, ExitCode, LogbusError, UserError, exit_code_of
from logbus.kafka.errors import COMING, CONNECTING, MEANINGS, MISSING, explain, explain_code, failed_handshake

AT = "the broker at b:1"
FAILED = "SSL handshake failed: "


def test_every_sentence_can_be_filled_in_and_says_what_it_is_about() -> None:
    for code, (kind, sentence) in MEANINGS.items():
        error = explain_code(code, "SAID", "orders", broker=AT, needs="Write")
        fields = {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
        assert (type(error) is kind, "{" in str(error)) == (True, False)
        assert fields <= {"broker", "about", "needs", "message", "principal"}
        assert "orders" in str(error) or "about" not in fields
        assert "SAID" in str(error) or code in MISSING


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._SSL, ("no TLS connection to the broker at b:1", "security.protocol", "ssl.ca.location")),
        (KafkaError._AUTHENTICATION, ("authentication with", "sasl.username", "sasl.password")),
        (KafkaError.SASL_AUTHENTICATION_FAILED, ("authentication with", "sasl.username", "sasl.password")),
        (KafkaError.UNSUPPORTED_SASL_MECHANISM, ("sasl.mechanism", "sasl.enabled.mechanisms")),
        (KafkaError.ILLEGAL_SASL_STATE, ("requires authentication", "SASL_SSL")),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ("lacks Write on topic orders", "--operation Write --topic orders")),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ("lacks Write on group orders", "--operation Write --group orders")),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, ("lacks Write on the cluster", "--operation Write --cluster")),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ("transactional.id", "--operation Write")),
    ],
)
def test_access_denied_names_the_missing_setting_or_grant(code: int, words: tuple[str, ...]) -> None:
    found = explain_code(code, "said", "orders", broker=AT, needs="Write")
    assert type(found) is AccessDenied
    for word in words:
        assert word in str(found)


def test_access_denied_is_no_reason_to_try_again() -> None:
    assert exit_code_of(explain_code(KafkaError.TOPIC_AUTHORIZATION_FAILED, "")) is ExitCode.FAILED
    assert exit_code_of(explain_code(KafkaError._TRANSPORT, "")) is ExitCode.UNREACHABLE
    assert all(MEANINGS[code][0] is AccessDenied for code in CONNECTING)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KafkaError(KafkaError.REQUEST_TIMED_OUT), BrokerUnavailable),
        (KafkaError(KafkaError.REQUEST_TIMED_OUT, "later", False, True), BrokerNotReady),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no", False, True), AccessDenied),
        *((KafkaError(code), BrokerNotReady) for code in COMING),
    ],
)
def test_a_temporary_error_is_worth_another_try(error: KafkaError, kind: type[LogbusError]) -> None:
    assert type(explain(error, "t")) is kind


def test_an_unknown_code_comes_with_the_brokers_own_message() -> None:
    found = explain_code(999, "a word of a later release", "orders")
    assert type(found) is BrokerUnavailable
    assert str(found).startswith("the broker did not answer a request about 'orders': a word of a later release.")


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        *(
            (
                code,
                f"ssl://b:1/7: SSL handshake failed: {why} (after 1ms in state SSL_HANDSHAKE)",
                (KafkaError._SSL, f"{FAILED}{why}"),
            )
            for code, why in ((KafkaError._SSL, "no certificate"), (KafkaError._TRANSPORT, "a PLAINTEXT listener?"))
        ),
        (KafkaError._AUTHENTICATION, "sasl_ssl://b:1/7: no such user", (KafkaError._AUTHENTICATION, "no such user")),
        (KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down", None),
    ],
)
def test_the_reason_for_a_failed_handshake_is_given_without_the_address(
    code: int, said: str, told: tuple[int, str] | None
) -> None:
    found = failed_handshake(KafkaError(code, said))
    assert (None if found is None else (found.code(), found.str())) == told


def test_a_name_with_braces_is_a_name() -> None:
    assert "{broker}" in str(explain_code(KafkaError.INVALID_CONFIG, "{said}", "{broker}"))
    assert isinstance(explain_code(KafkaError._SSL, "{about}"), UserError)
