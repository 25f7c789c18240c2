"""Who makes the tokens of OAUTHBEARER. tests/contract/test_secured_kafka.py connects with some."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.kafka import client_config
from logbus.kafka.client import Client


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({"bootstrap.servers": "b-1.a.b1.c2.kafka.eu-west-1.amazonaws.com:9098,b-2.a.b1.c2.kafka.eu-west-1.amazonaws.com:9098"}, "msk:eu-west-1"),
        ({"bootstrap.servers": "boot-a.c2.kafka-serverless.US-EAST-1.amazonaws.com:9098"}, "msk:us-east-1"),
        ({"bootstrap.servers": "b-1.a.kafka.cn-north-1.amazonaws.com.cn"}, "msk:cn-north-1"),
        ({"bootstrap.servers": "bootstrap.a.europe-west1.managedkafka.project.cloud.goog:9092"}, "gcp"),
        ({"bootstrap.servers": "b-1.a.kafka.eu-west-1.amazonaws.com:9098", "oauth_cb": "my.tokens"}, "my.tokens"),
        ({"bootstrap.servers": "b-1.a.kafka.eu-west-1.amazonaws.com:9096", "sasl.mechanism": "SCRAM-SHA-512"}, None),
        ({"bootstrap.servers": "h:1", "sasl.oauthbearer.method": "oidc"}, None),
        ({"bootstrap.servers": "h:1", "sasl.mechanism": "PLAIN"}, None),
    ],
)  # fmt: skip
def test_an_address_says_who_makes_the_tokens_as_for_airflows_provider(settings: dict[str, Any], recipe: str | None) -> None:
    assert client_config.token_recipe({"sasl.mechanism": "OAUTHBEARER"} | settings) == recipe


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "no setting says where tokens come from: sasl.oauthbearer.method=oidc"),
        ({"bootstrap.servers": "b-1.a.kafka.eu-west-1.amazonaws.com:9098"}, r"pip install 'logbus\[msk\]'"),
        ({"oauth_cb": "gcp"}, r"pip install 'logbus\[gcp\]'"),
        ({"oauth_cb": "no.such.function"}, "oauth_cb is 'no.such.function', and there is no such function here"),
        ({"oauth_cb": "tokens"}, "oauth_cb is 'tokens', and there is no such function here"),
        ({"sasl.mechanism": "PLAIN", "oauth_cb": "text"}, "the client settings cannot be used: .*oauth_cb"),
    ],
)
def test_without_one_a_sentence_says_what_to_set_or_install(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], sentence: str
) -> None:
    for module in ("aws_msk_iam_sasl_signer", "google.auth"):
        monkeypatch.setitem(sys.modules, module, None)
    config = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"} | settings
    with pytest.raises(UserError, match=sentence):
        Client(config).admin()


def test_amazons_token_is_made_by_its_library_and_expires_in_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "aws_msk_iam_sasl_signer.py").write_text(
        "class MSKAuthTokenProvider:\n"
        "    generate_auth_token = staticmethod(lambda region: (f'signed for {region}', 1_700_000_000_500))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert client_config.token_function("msk:eu-west-1")("") == ("signed for eu-west-1", 1_700_000_000.5)
