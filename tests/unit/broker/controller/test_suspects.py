"""A broker whose port refuses connections is suspected until it answers, and not suspected again at once."""

from __future__ import annotations

from broker.controller.suspects import SUSPECT_SECONDS, Suspects
from broker.coordination.image import BrokerNode, Image


def image(incarnation: int) -> Image:
    return Image(brokers={1: BrokerNode(broker_id=1, incarnation=incarnation, endpoints={})})


def test_one_answer_clears_a_broker() -> None:
    suspects = Suspects()
    suspects.refused(1, 10.0)
    suspects.refused(1, 10.1)
    assert list(suspects.ids) == [1]
    suspects.reached(1)
    assert not suspects.ids


def test_a_port_that_refuses_now_and_then_is_suspected_once_in_five_seconds() -> None:
    suspects = Suspects()
    suspects.refused(1, 10.0)
    suspects.reached(1)
    suspects.refused(1, 10.0 + SUSPECT_SECONDS - 0.1)
    assert not suspects.ids
    suspects.refused(1, 10.0 + SUSPECT_SECONDS)
    assert list(suspects.ids) == [1]


def test_a_newer_process_is_not_the_one_that_was_refused() -> None:
    suspects = Suspects()
    suspects.learn(image(4))
    suspects.refused(1, 10.0)
    suspects.learn(image(4))
    assert list(suspects.ids) == [1]
    suspects.learn(image(5))
    assert not suspects.ids
