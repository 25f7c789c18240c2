"""How long is waited for what a broker will know soon, and what becomes of errors that no waiting mends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, KafkaException
from logbus.errors import BrokerNotReady, BrokerUnavailable, LogbusError, TopicMissing
from logbus.kafka.requests import AdminRequests

SOON = BrokerNotReady("a leader is being chosen")


@dataclass(frozen=True)
class Reading:
    error: LogbusError | None = None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> AdminRequests:
    monkeypatch.setattr("logbus.kafka.requests.RETRY_PAUSE_SECONDS", 0.0)
    return AdminRequests({"bootstrap.servers": "b:1"})


def test_what_will_be_known_soon_is_read_again_until_it_is(requests: AdminRequests) -> None:
    readings = iter([[Reading(SOON), Reading()], [Reading(SOON)], [Reading(), Reading(TopicMissing("gone"))]])
    found = requests.settled(lambda: next(readings))
    assert [type(one.error) for one in found] == [type(None), TopicMissing]
    assert next(readings, None) is None


def test_when_the_time_is_over_what_is_known_is_given(requests: AdminRequests) -> None:
    requests.timeout_seconds = -1
    assert requests.settled(lambda: [Reading(SOON), Reading()]) == [Reading(SOON), Reading()]
    with pytest.raises(BrokerNotReady):
        requests.patiently(raising(SOON))


def test_an_error_that_no_waiting_mends_is_raised_at_once(requests: AdminRequests) -> None:
    with pytest.raises(BrokerUnavailable, match="no answer"):
        requests.patiently(raising(BrokerUnavailable("no answer")))


def raising(error: Exception) -> Callable[[], None]:
    def question() -> None:
        raise error

    return question


class Failed:
    """A future that ended with the client's error."""

    def __init__(self, code: int) -> None:
        self.code = code

    def result(self, timeout: float) -> None:
        raise KafkaException(KafkaError(self.code))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, BrokerNotReady),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, BrokerUnavailable),
    ],
)
def test_the_error_of_one_answer_is_given_and_names_no_address(
    requests: AdminRequests, code: int, kind: type[LogbusError]
) -> None:
    found = requests.outcome(Failed(code), "t")  # type: ignore[arg-type]
    assert type(found) is kind
    assert "'t'" in str(found)
    assert "b:1" not in str(found)


def test_all_answers_of_a_call_or_the_error_with_what_to_do(requests: AdminRequests) -> None:
    with pytest.raises(TopicMissing, match="b:1 has no topic 't'"):
        requests.ask(lambda: {"t": Failed(KafkaError.UNKNOWN_TOPIC_OR_PART)}, "t")  # type: ignore[dict-item]
    mine = TopicMissing("mine")
    with pytest.raises(TopicMissing, match="mine"):
        requests.ask(lambda: {"t": Failed(KafkaError.POLICY_VIOLATION)}, "t", {KafkaError.POLICY_VIOLATION: mine})  # type: ignore[dict-item]
