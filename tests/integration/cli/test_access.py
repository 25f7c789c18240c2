"""A broker that rejects the client, with the real client at a real port: one line says what to set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logbus.kafka import client

from tests.support.broker import AnyBroker
from tests.support.commands import Run

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security.protocol": "SSL"}, ("speaks PLAINTEXT, and security.protocol is SSL", "set it to PLAINTEXT")),
        (LOGIN, ("speaks PLAINTEXT, and security.protocol is SASL_PLAINTEXT", "set it to PLAINTEXT")),
    ],
)
def test_a_port_that_speaks_neither_tls_nor_sasl_is_told_from_a_broker_that_is_away(
    run: Run, broker: AnyBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], words: tuple[str, str]
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS_MAX", 2.0)
    path = tmp_path / "client.json"
    path.write_text(json.dumps(settings))
    said = run("topic", "ls", "--client-config", str(path), status=1).stderr
    assert said.startswith("error: ")
    for word in words:
        assert word in said
