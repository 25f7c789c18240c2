"""Each row of what Apache Kafka answers to a login, played to a real one and to ours: the same codes, the same ends of connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support import logins, secured_logbus
from tests.support.secured_kafka import SecuredKafka, secured_kafka  # noqa: F401

Rows = dict[str, list[object]]


def play_all(connect: Callable[[str], logins.Conversation], ending: str) -> Rows:
    """What each row returns; `ending` is the listener where logins by PLAIN have an end."""
    played = {name: play(connect("SASL_PLAINTEXT")) for name, (play, _) in logins.ROWS.items()}
    played |= {name: play(connect("SASL_PLAINTEXT")) for name, (play, _, _) in logins.BETTER.items()}
    played |= {name: play(connect(ending)) for name, (play, _) in logins.ENDING_ROWS.items()}
    return played | {name: play(connect("PLAINTEXT")) for name, (play, _) in logins.OPEN_ROWS.items()}


EXPECTED = {
    name: expected for rows in (logins.ROWS, logins.ENDING_ROWS, logins.OPEN_ROWS) for name, (_, expected) in rows.items()
}


def test_apache_kafka_answers_as_the_rows_say(secured_kafka: SecuredKafka) -> None:  # noqa: F811
    played = play_all(lambda listener: logins.Spoken(secured_kafka.address(listener)), "SASL_PLAINTEXT")
    assert played == EXPECTED | {name: theirs for name, (_, _, theirs) in logins.BETTER.items()}


def test_our_broker_answers_as_the_rows_say(tmp_path: Path) -> None:
    with secured_logbus.SecuredLogbus(tmp_path / "broker") as broker:
        played = play_all(lambda listener: logins.Spoken(broker.address(listener)), secured_logbus.ENDING)
    assert played == EXPECTED | {name: ours for name, (_, ours, _) in logins.BETTER.items()}
