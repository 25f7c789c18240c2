"""A broker for tests: ours, or Apache Kafka if LOGBUS_TEST_BROKER=kafka, to run the same test against the original. With
LOGBUS_TEST_BROKER=secured it is one with TLS, SASL and ACLs, which the pipeline reads with `client_settings`.

In a conftest.py: `from tests.support.broker import broker  # noqa: F401`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.kafka import SMALL_FLAGS, ApacheKafka, Missing
from benchmarks.peers.logbus import LogbusBroker
from tests.support.secured_kafka import SecuredBroker

__all__ = ["AnyBroker", "ApacheKafka", "LogbusBroker", "any_broker", "broker", "client_settings"]

AnyBroker = LogbusBroker | ApacheKafka


def any_broker(directory: Path, settings: dict[str, str] | None = None) -> AnyBroker:
    """The broker under test, not started."""
    kind = os.environ.get("LOGBUS_TEST_BROKER", "logbus")
    if kind == "logbus":
        return LogbusBroker(directory, settings=settings)
    try:
        if kind == "secured":
            return SecuredBroker(directory, settings=settings)
        return ApacheKafka(directory, settings=settings, flags=SMALL_FLAGS)
    except Missing as missing:
        pytest.skip(str(missing))


def client_settings(running: AnyBroker) -> dict[str, str]:
    """What a reader's client needs."""
    if isinstance(running, SecuredBroker):
        return running.settings("SASL_SSL", "reader")
    return {"bootstrap.servers": running.bootstrap}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    """One broker for a module's tests, which use different topics."""
    with any_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running
