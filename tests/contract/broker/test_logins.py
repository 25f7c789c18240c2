"""Each row of what Apache Kafka answers to a login, played to a real one and to ours: the same codes, the same ends of connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class

from tests.support import logins, secured_logbus
from tests.support.secured_kafka import SecuredKafka

Rows = dict[str, list[object]]


def play_all(connect: Callable[[str], logins.Conversation], ending: str) -> Rows:
    """What each row returns; `ending` is the listener where logins by PLAIN have an end."""
    played = {name: play(connect("SASL_PLAINTEXT")) for name, (play, _) in logins.ROWS.items()}
    played |= {name: play(connect(ending)) for name, (play, _) in logins.ENDING_ROWS.items()}
    return played | {name: play(connect("PLAINTEXT")) for name, (play, _) in logins.OPEN_ROWS.items()}


EXPECTED = {
    name: expected for rows in (logins.ROWS, logins.ENDING_ROWS, logins.OPEN_ROWS) for name, (_, expected) in rows.items()
}


def test_apache_kafka_answers_as_the_rows_say(secured_kafka: SecuredKafka) -> None:
    played = play_all(lambda listener: logins.Spoken(secured_kafka.address(listener)), "SASL_PLAINTEXT")
    assert played == EXPECTED | logins.KAFKA_ANSWERS


def test_our_broker_answers_as_the_rows_say(tmp_path: Path) -> None:
    with secured_logbus.SecuredLogbus(tmp_path / "broker") as broker:
        played = play_all(lambda listener: logins.Spoken(broker.address(listener)), secured_logbus.ENDING)
    assert played == EXPECTED


def changes_of_users(peer: logins.Conversation) -> dict[str, object]:
    """The codes that an administrator gets, by what is wrong."""
    request = request_class(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)

    def add(name: str = "rows", mechanism: int = 1, iterations: int = 4_096) -> Any:
        return request.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=b"salt",
            salted_password=bytes(64 if mechanism == 2 else 32),
        )

    def remove(name: str = "rows", mechanism: int = 1) -> Any:
        return request.ScramCredentialDeletion(name=name, mechanism=mechanism)

    def alter(*rows: Any) -> list[int]:
        upsertions = [row for row in rows if isinstance(row, request.ScramCredentialUpsertion)]
        deletions = [row for row in rows if row not in upsertions]
        answer = peer.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions)
        return [row.error_code for row in answer.results]

    def describe(*names: str) -> list[int]:
        users = [request_class(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS).UserName(name=name) for name in names]
        answer = peer.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
        return [answer.error_code, *(row.error_code for row in answer.results)]

    logins.log_in(peer, user="admin", password="admin-password")
    return {
        "too few iterations": alter(add(iterations=4_095)),
        "too many": alter(add(iterations=16_385)),
        "no user": alter(add("")),
        "mechanism": alter(add(mechanism=9)),
        "twice": alter(add(), add()),
        "added and removed": [alter(add(), remove()), alter(add()), alter(add(), remove())],
        "removed twice": [alter(add()), alter(remove()), alter(remove())],
        "unknown user": describe("nobody at all"),
        "a user twice": describe("reader", "reader"),
    }


CHANGES = {
    "too few iterations": [93],
    "too many": [93],
    "no user": [93],
    "mechanism": [33],
    "twice": [92],
    "added and removed": [[91], [0], [92]],
    "removed twice": [[0], [0], [91]],
    "unknown user": [0, 91],
    "a user twice": [0, 92],
}


def test_apache_kafka_changes_users_as_the_table_says(secured_kafka: SecuredKafka) -> None:
    assert changes_of_users(logins.Spoken(secured_kafka.address("SASL_PLAINTEXT"))) == CHANGES


def test_our_broker_changes_users_as_the_table_says(tmp_path: Path) -> None:
    with secured_logbus.SecuredLogbus(tmp_path / "broker") as broker:
        assert changes_of_users(logins.Spoken(broker.bootstrap)) == CHANGES
