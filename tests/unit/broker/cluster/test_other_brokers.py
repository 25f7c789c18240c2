"""What one broker makes of the others: whom it suspects, what its log says of those that are gone, and where it connects to.

A broker whose port refuses connections is suspected until it answers, and not suspected again at once.
"""

from __future__ import annotations

import pytest
from logbus_broker.cluster.membership import SUSPECT_SECONDS, FailureDetector, OtherBrokers
from logbus_broker.cluster.metadata_image import BrokerNode, Endpoint, MetadataImage

LISTENER = "INTERNAL"


def image(*incarnations: int, leaving: frozenset[int] = frozenset()) -> MetadataImage:
    """Brokers 1, 2, ... as these processes."""
    nodes = [
        BrokerNode(broker_id=broker, incarnation=number, endpoints={LISTENER: at(broker)})
        for broker, number in enumerate(incarnations, 1)
    ]
    return MetadataImage(brokers={node.broker_id: node for node in nodes}, leaving=leaving)


def at(broker: int) -> Endpoint:
    return Endpoint(host=f"broker-{broker}", port=9092, security_protocol="PLAINTEXT")


class Peers(list[list[int]]):
    """To which brokers connections were to be kept, each time that this was said."""

    def __init__(self) -> None:
        super().__init__()
        self.others = OtherBrokers(1, LISTENER, lambda endpoints: self.append(sorted(endpoints)))


def test_one_answer_clears_a_broker() -> None:
    suspects = FailureDetector()
    suspects.refused(1, 10.0)
    suspects.refused(1, 10.1)
    assert list(suspects.ids) == [1]
    suspects.reached(1)
    assert not suspects.ids


def test_a_port_that_refuses_now_and_then_is_suspected_once_in_five_seconds() -> None:
    suspects = FailureDetector()
    suspects.refused(1, 10.0)
    suspects.reached(1)
    suspects.refused(1, 10.0 + SUSPECT_SECONDS - 0.1)
    assert not suspects.ids
    suspects.refused(1, 10.0 + SUSPECT_SECONDS)
    assert list(suspects.ids) == [1]


def test_a_newer_process_is_not_the_one_that_was_refused() -> None:
    suspects = FailureDetector()
    suspects.learn(image(4))
    suspects.refused(1, 10.0)
    suspects.learn(image(4))
    assert list(suspects.ids) == [1]
    suspects.learn(image(5))
    assert not suspects.ids
    suspects.refused(1, 10.1)
    assert list(suspects.ids) == [1], "it is killed as well"


def test_connections_to_an_earlier_process_are_given_up_before_those_to_the_newer_one_are_made() -> None:
    peers = Peers()
    peers.others.learn(image(1, 1, 1))
    peers.others.learn(image(1, 1, 1))
    peers.others.learn(image(1, 1, 2))
    assert peers == [[2, 3], [2], [2, 3]]


def test_the_end_of_a_broker_is_logged_once_until_it_answers_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker")
    others = Peers().others
    others.learn(image(1, 1))
    others.refused(2, image(1, 1), 10.0)
    others.learn(image(1))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "broker 2 is gone: its port refuses connections" in caplog.text
    others.reached(2)
    assert "broker 2 is back" in caplog.text


def test_a_broker_that_was_being_stopped_is_not_reported_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker")
    others = Peers().others
    others.learn(image(1, 1, leaving=frozenset({2})))
    others.learn(image(1))
    assert caplog.messages == ["broker 2 has been stopped"]
