from __future__ import annotations

import pytest
from logbus_broker.node import allowed_by, reach_of, why_closed
from logbus_broker.properties import build_config

SSL = {"ssl.keystore.location": "key.pem", "ssl.truststore.location": "ca.pem"}
REQUIRED = {**SSL, "ssl.client.auth": "required"}
NAMED = "listener.security.protocol.map"


@pytest.mark.parametrize(
    ("listener", "address", "settings", "opens"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1", {}, True),
        ("PLAINTEXT://[::1]:9092", "::1", {}, True),
        ("PLAINTEXT://localhost:9092", "127.0.0.1", {}, True),
        ("PLAINTEXT://:9092", "::", {}, False),
        ("PLAINTEXT://0.0.0.0:9092", "0.0.0.0", {}, False),
        ("PLAINTEXT://192.168.1.7:9092", "192.168.1.7", {}, False),
        ("PLAINTEXT://broker.example:9092", "10.0.0.7", {}, False),
        ("SSL://0.0.0.0:9093", "0.0.0.0", SSL, False),
        ("SSL://0.0.0.0:9093", "0.0.0.0", {**SSL, "ssl.client.auth": "requested"}, False),
        ("SSL://0.0.0.0:9093", "0.0.0.0", REQUIRED, True),
        (
            "INTERNAL://10.0.0.7:9094",
            "10.0.0.7",
            {NAMED: "INTERNAL:SSL", **SSL, "listener.name.internal.ssl.client.auth": "required"},
            True,
        ),
        ("INTERNAL://10.0.0.7:9094", "10.0.0.7", {NAMED: "INTERNAL:PLAINTEXT", **REQUIRED}, False),
    ],
)
def test_a_listener_that_others_can_reach_must_know_its_clients(listener: str, address: str, settings: dict, opens: bool) -> None:
    advertised = {"advertised.listeners": f"{listener.partition('://')[0]}://broker.example:9092"}
    config = build_config({"listeners": listener, **advertised, **settings})
    reason = why_closed(config.listeners[0], address, config)
    assert (reason is None) == opens
    if reason:
        assert f"listeners={listener}" in reason
        assert "--override logbus.allow.unauthenticated=true" in reason


def test_the_listener_for_metrics_asks_nobody() -> None:
    config = build_config({"logbus.metrics.listener": "http://0.0.0.0:9404", **REQUIRED})
    assert config.metrics_listener is not None
    assert why_closed(config.metrics_listener, "127.0.0.1", config) is None
    reason = why_closed(config.metrics_listener, "0.0.0.0", config)
    assert reason is not None
    assert "logbus.metrics.listener=http://127.0.0.1:9404" in reason
    assert "--override logbus.metrics.allow.unauthenticated=true" in reason


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("logbus.allow.unauthenticated", ["logbus.allow.unauthenticated"] * 2),
        ("logbus.metrics.allow.unauthenticated", ["", "logbus.metrics.allow.unauthenticated"]),
    ],
)
def test_the_words_for_metrics_open_nothing_else(words: str, expected: list[str]) -> None:
    config = build_config({"logbus.metrics.listener": "http://0.0.0.0:9404", words: "true"})
    assert config.metrics_listener is not None
    assert [allowed_by(listener, config) for listener in (*config.listeners, config.metrics_listener)] == expected


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("127.0.0.1", ""),
        ("127.1.2.3", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("0.0.0.0", "every interface"),
        ("::", "every interface"),
        ("192.168.1.7", "an address of the network"),
        ("fd00::1", "an address of the network"),
        ("fe80::1%eth0", "an address of the network"),
        ("::ffff:192.168.1.7", "an address of the network"),
    ],
)
def test_from_where_an_address_can_be_reached(address: str, reach: str) -> None:
    assert reach_of(address) == reach
