"""A cluster member calls each callback that waits for the image once, over the simulated ZooKeeper."""

from __future__ import annotations

import pytest
from logbus_broker.cluster.metadata_image import MetadataImage
from logbus_broker.cluster.metadata_writes import create_topic
from logbus_broker.errors import BrokerError, RequestTimedOut

from tests.sim.coordinated import Coordinated, topic


@pytest.fixture
def outcomes() -> list[BrokerError | None]:
    return []


def _has_clicks(image: MetadataImage) -> bool:
    return "clicks" in image.topics


def test_whoever_waits_for_the_image_is_told_when_it_shows_what_was_waited_for(
    broker: Coordinated, outcomes: list[BrokerError | None]
) -> None:
    broker.member.when_seen(_has_clicks, outcomes.append, 10_000)
    assert outcomes == []
    broker.ask(create_topic(topic("clicks", 1), {}))
    broker.world.run(2)
    assert outcomes == [None]
    broker.world.run(20)
    assert outcomes == [None], "told once"


def test_what_the_image_shows_already_is_told_at_once(broker: Coordinated, outcomes: list[BrokerError | None]) -> None:
    broker.member.when_seen(lambda image: True, outcomes.append, 10_000)
    assert outcomes == [None]


def test_whoever_waits_in_vain_is_told_when_the_time_is_over(broker: Coordinated, outcomes: list[BrokerError | None]) -> None:
    broker.member.when_seen(_has_clicks, outcomes.append, 3_000)
    broker.world.run(2)
    assert outcomes == []
    broker.world.run(2)
    assert [type(error) for error in outcomes] == [RequestTimedOut]
