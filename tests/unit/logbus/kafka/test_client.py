"""How long the client waits for what a broker will soon know, and how errors that waiting cannot fix are raised."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from logbus import waiting
from logbus.errors import AccessDenied, BrokerNotReady, BrokerUnavailable, LogbusError, TopicMissing, UserError
from logbus.kafka.client import OF_CONSUMERS, OF_PRODUCERS, REPEATS_MAX, Client, Repeats

AWAY = BrokerUnavailable("nobody there")
SOON = BrokerNotReady("a leader is being chosen")


@dataclass(frozen=True)
class Reading:
    error: LogbusError | None = None


@pytest.fixture
def client() -> Client:
    return Client({"bootstrap.servers": "b:1"})


def test_what_the_broker_is_not_ready_for_is_read_again_until_it_is(client: Client) -> None:
    batches = iter([[Reading(SOON), Reading()], [Reading(SOON)], [Reading(), Reading(TopicMissing("gone"))]])
    readings = client.settled(lambda: next(batches))
    assert [type(reading.error) for reading in readings] == [type(None), TopicMissing]
    assert next(batches, None) is None


def test_after_the_time_limit_the_last_readings_are_returned(client: Client) -> None:
    client.timeout_seconds = -1
    assert client.settled(lambda: [Reading(SOON), Reading()]) == [Reading(SOON), Reading()]


@pytest.mark.parametrize("error", [SOON, AWAY])
def test_an_error_that_no_waiting_mends_is_raised_at_once(client: Client, error: LogbusError) -> None:
    def question() -> None:
        raise error

    client.timeout_seconds = -1
    with pytest.raises(type(error), match=str(error)):
        client.patiently(question)


def failed(code: int) -> Future[Any]:
    """It failed with one of the client's errors."""
    future = Future[Any]()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, BrokerNotReady),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.UNKNOWN, BrokerUnavailable),
    ],
)
def test_the_error_of_one_answer_is_given_and_names_no_address(client: Client, code: int, kind: type[LogbusError]) -> None:
    error = client.outcome(failed(code), "t")
    assert type(error) is kind
    assert re.search(r"\bt\b", str(error))
    assert "b:1" not in str(error)


def test_all_answers_of_a_call_or_the_error_with_what_to_do(client: Client) -> None:
    with pytest.raises(TopicMissing, match="b:1 has no topic 't'"):
        client.ask(lambda: {"t": failed(KafkaError.UNKNOWN_TOPIC_OR_PART)}, "t")
    explained = TopicMissing("mine")
    with pytest.raises(TopicMissing, match="mine"):
        client.ask(lambda: {"t": failed(KafkaError.POLICY_VIOLATION)}, "t", explained={KafkaError.POLICY_VIOLATION: explained})


def test_a_broker_that_was_there_is_given_time_to_come_back_and_one_that_never_was_is_not(client: Client) -> None:
    client.away_seconds_max = 60.0
    answers: list[str | Exception] = [AWAY, "a", AWAY, TopicMissing("made a moment ago"), "b", AccessDenied("not you")]

    def next_answer() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(BrokerUnavailable, match="nobody there"):
        client.patiently(next_answer)
    assert [client.patiently(next_answer), client.patiently(next_answer)] == ["a", "b"]
    with pytest.raises(AccessDenied):
        client.patiently(next_answer)


def test_a_handshake_that_failed_is_why_there_is_no_answer(client: Client) -> None:
    timed_out = {"t": failed(KafkaError._TIMED_OUT)}
    note = client.settings(())["error_cb"]
    note(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(BrokerUnavailable, match="b:1 did not answer"):
        client.ask(lambda: timed_out, "t")
    note(KafkaError(KafkaError._SSL, "certificate verify failed"))
    with pytest.raises(AccessDenied, match=r"no TLS connection to the broker at b:1: certificate verify failed\. Set"):
        client.ask(lambda: timed_out, "t")
    error = client.outcome(timed_out["t"], "t")
    assert isinstance(error, AccessDenied)
    assert "b:1" not in str(error)
    assert isinstance(client.unavailable("nothing came"), AccessDenied)
    client.patiently(lambda: "an answer")
    assert type(client.unavailable("nothing came")) is BrokerUnavailable


def test_each_kind_of_handle_gets_the_settings_that_are_its_own() -> None:
    consuming = {"group.id": "g", "isolation.level": "read_committed"}
    client = Client({"bootstrap.servers": "127.0.0.1:1", **consuming, "acks": "all", "linger.ms": 5})
    assert set(client.settings(OF_CONSUMERS + OF_PRODUCERS)) == {"bootstrap.servers", "error_cb"}
    reading = client.settings(OF_PRODUCERS, settings={"group.id": "ours"})
    assert set(reading) == {"bootstrap.servers", "error_cb", "group.id", "isolation.level"}
    sending = client.settings(OF_CONSUMERS, {"linger.ms": 9, "batch.size": 1000}, {"acks": 1})
    assert (reading["group.id"], sending["acks"], sending["linger.ms"], sending["batch.size"]) == ("ours", 1, 5, 1000)
    assert client.admin() is client.admin()


def test_settings_that_no_client_takes_are_an_error_of_the_caller() -> None:
    with pytest.raises(UserError, match="the client settings cannot be used: No such configuration property"):
        Client({"no.such.thing": 1}).admin()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port that accepts connections, and where nobody says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def unused() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def asked(address: str, timeout_seconds: float, slow_seconds_max: float) -> str:
    """What a request to that address fails with; the other of the two limits must not be the one that passes."""
    client = Client({"bootstrap.servers": address}, timeout_seconds=timeout_seconds, slow_seconds_max=slow_seconds_max)
    with pytest.raises(BrokerUnavailable) as failed:
        client.metadata()
    (listed,) = [client.outcome(future, "g") for future in client.ask_groups(["g"]).values()]
    assert isinstance(listed, BrokerUnavailable)
    return str(failed.value)


def test_an_address_at_which_nothing_listens_is_given_up_without_waiting_for_one_that_is_slow(unused: str) -> None:
    assert "Connection refused. Check that it runs" in asked(unused, 0.5, 60.0)
    assert "not known. Check that it runs" in asked("nowhere.invalid:9092", 0.5, 60.0)


def test_a_port_that_hangs_up_is_no_slow_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=hang_up_on_all, args=(listening,), daemon=True).start()
        assert "ends each connection at once" in asked(f"127.0.0.1:{listening.getsockname()[1]}", 0.5, 60.0)


def hang_up_on_all(listening: socket.socket) -> None:
    with suppress(OSError):  # closed
        while True:
            listening.accept()[0].close()


def test_a_broker_that_is_only_slow_is_waited_for_longer_than_one_that_is_away(silent: str, unused: str) -> None:
    assert "no answer within 1.5 s" in asked(silent, 0.0, 1.5)
    assert "no answer within 1.5 s" in asked(f"{unused},{silent}", 0.0, 1.5), "the other one may still answer"
    client = Client.for_page({"bootstrap.servers": silent, "log_level": 0}, 0.5)
    with pytest.raises(BrokerUnavailable, match=r"no answer within 0\.5 s"):
        client.metadata()


def test_a_wait_for_a_slow_broker_is_announced(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENCE_SECONDS_MAX", 0.5)
    messages: list[str] = []
    client = Client({"bootstrap.servers": silent, "log_level": 0}, slow_seconds_max=1.5, say=messages.append)
    with pytest.raises(BrokerUnavailable):
        client.metadata()
    assert messages[0].startswith(f"waiting for the broker at {silent}: ")


def test_a_silence_of_records_is_judged_like_one_of_answers(silent: str, unused: str) -> None:
    long_ago = time.monotonic() - 60.0
    client = Client({"bootstrap.servers": unused, "log_level": 0}, timeout_seconds=30.0)
    client.raise_if_silent(long_ago, "t")
    client.settings(())["error_cb"](KafkaError(KafkaError._TRANSPORT, f"{unused}/bootstrap: Connect to it failed"))
    with pytest.raises(BrokerUnavailable, match="received nothing of t for 60 s"):
        client.raise_if_silent(long_ago, "t")
    client = Client({"bootstrap.servers": silent, "log_level": 0}, timeout_seconds=30.0)
    client.settings(())["error_cb"](KafkaError(KafkaError._TRANSPORT, f"{silent}/bootstrap: Connect to it failed"))
    client.raise_if_silent(long_ago, "t")
    with pytest.raises(BrokerUnavailable):
        client.raise_if_silent(long_ago - 120.0, "t")


FAIL = "FAIL [rdkafka#producer-1] [thrd:b:1/bootstrap]: b:1/bootstrap: Connect to ipv4#10.0.0.1:1 failed: Connection refused"


def test_a_line_of_librdkafka_that_repeats_is_passed_on_once_a_minute_with_how_many_there_were() -> None:
    now_at = [0.0]
    passed = Repeats(lambda: now_at[0])

    def shown(text: str, at: float) -> str | None:
        now_at[0] = at
        record = logging.LogRecord("logbus.client", logging.ERROR, "", 0, "%s", (text,), None)
        return record.getMessage() if passed.filter(record) else None

    assert shown(f"{FAIL} (after 0ms in state CONNECT)", 0.0) is not None
    assert shown(f"{FAIL} (after 3ms in state CONNECT, 30 identical error(s) suppressed)", 1.0) is None
    assert shown(f"{FAIL.replace('producer-1', 'consumer-22')} (after 0ms in state CONNECT)", 59.0) is None
    assert shown(FAIL.replace("10.0.0.1", "10.0.0.2"), 59.0) == FAIL.replace("10.0.0.1", "10.0.0.2")
    again = f"{FAIL} (after 0ms in state CONNECT)"
    assert shown(again, 60.0) == f"{again} [2 more since the last such line]"
    assert shown(again, 120.0) == again


def test_lines_that_all_differ_do_not_fill_the_memory() -> None:
    passed = Repeats(lambda: 0.0)
    for number in range(3 * REPEATS_MAX):
        assert passed.filter(logging.LogRecord("logbus.client", logging.ERROR, "", 0, f"line {number}.", (), None))
    assert len(passed._passed) <= REPEATS_MAX
