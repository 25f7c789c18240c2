"""Tokens of an issuer: what a token must say, which signatures count, and how often keys are fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from logbus_broker.errors import SaslAuthenticationFailed
from logbus_broker.security import oauthbearer, sasl

RSA, EC, OTHER = (
    rsa.generate_private_key(65_537, 2_048),
    ec.generate_private_key(ec.SECP256R1()),
    ec.generate_private_key(ec.SECP256R1()),
)
KEYS = [
    json.loads(RSAAlgorithm.to_jwk(RSA.public_key())) | {"kid": "rsa", "use": "sig"},
    json.loads(ECAlgorithm.to_jwk(EC.public_key())) | {"kid": "ec"},
    {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
]
RULES = oauthbearer.TokenRules(issuer="https://issuer", audiences=("logbus", "kafka"), subject_claim="sub", skew_seconds=30)
NOW = int(time.time())  # of the import: the tests may run a quarter of an hour later
EXPIRES = NOW + 86_400
CLAIMS = {"sub": "ann", "iss": "https://issuer", "aud": "logbus", "exp": EXPIRES}


class Fetches:
    """The thread that reads the keys, and the clock."""

    def __init__(self) -> None:
        self.count = 0
        self.now = 1_000.0
        self.published: list[dict[str, Any]] | Exception = KEYS
        self.keys = oauthbearer.IssuerKeys(self._fetch, lambda: self.now, 3_600)

    def _fetch(self, outcome: Callable[[Any, BaseException | None], None]) -> None:
        self.count += 1
        if isinstance(self.published, Exception):
            outcome(None, self.published)
        else:
            outcome(json.dumps({"keys": self.published}).encode(), None)


def token(key: Any = EC, key_id: str = "ec", algorithm: str = "ES256", **changed: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": key_id})


def first(content: str, authorization_id: str = "") -> bytes:
    return f"n,{authorization_id},\x01auth=Bearer {content}\x01\x01".encode()


def log_in(message: bytes, fetches: Fetches | None = None, rules: oauthbearer.TokenRules = RULES) -> sasl.Login:
    """Raises SaslAuthenticationFailed, after the answer that the standard asks for."""
    fetches = fetches or Fetches()
    exchange = oauthbearer.exchange(rules, fetches.keys, message)
    result = None
    try:
        while True:
            step = exchange.send(result)
            if callable(step):
                step(lambda result, error: None)
            else:
                assert json.loads(step) == {"status": "invalid_token"}
                result = b"\x01"
    except StopIteration as ended:
        return ended.value


@pytest.mark.parametrize(
    "message",
    [
        first(token()),
        first(token(RSA, "rsa", "RS256")),
        first(token(aud=["other", "kafka"])),
        first(token(), "a=ann"),
        b"n,,\x01host=here\x01auth=bearer " + token().encode() + b"\x01\x01",
    ],
)
def test_a_token_of_the_issuer_logs_in(message: bytes) -> None:
    assert log_in(message) == sasl.Login("ann", until_ms=EXPIRES * 1000)


def test_clocks_may_disagree() -> None:
    rules = replace(RULES, skew_seconds=3_600)
    assert log_in(first(token(exp=NOW - 10)), rules=rules).until_ms == (NOW - 10) * 1000


def test_an_end_too_far_away_for_an_answer_is_nearer() -> None:
    assert log_in(first(token(exp=10**40))).until_ms == (1 << 63) - 1


def test_another_claim_may_be_the_user() -> None:
    rules = oauthbearer.TokenRules(issuer="https://issuer", audiences=("logbus",), subject_claim="client_id", skew_seconds=0)
    assert log_in(first(token(client_id="loader")), rules=rules).user == "loader"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (first(token(exp=NOW - 60)), "token"),
        (first(token(exp=None)), "token"),
        (first(token(nbf=EXPIRES)), "token"),
        (first(token(iss="https://other")), "token"),
        (first(token(iss=None)), "token"),
        (first(token(aud="other")), "token"),
        (first(token(aud=None)), "token"),
        (first(token(sub=None)), "token"),
        (first(token(sub="")), "token"),
        (first(token(OTHER)), "token"),
        (first(token(key_id="unknown")), "token"),
        (first(jwt.encode(CLAIMS, None, "none", headers={"kid": "ec"})), "token"),
        (first(jwt.encode(CLAIMS, b"secret" * 8, "HS256", headers={"kid": "shared"})), "token"),
        (first(token(RSA, "rsa", "PS256")), "token"),
        (first(token(RSA, "ec", "RS256")), "token"),
        (first("a.b.c"), "token"),
        (first("W1tb" * 10_000 + ".e30.e30"), "token"),  # [[[[...
        (first(token(exp=float("inf"))), "token"),
        (first("x" * 70_000), "malformed"),
        (first(token(), "a=bob"), "authorization_id"),
        (b"", "malformed"),
        (b"y,,\x01auth=Bearer x\x01\x01", "malformed"),
        (b"n,,\x01auth=Basic x\x01\x01", "malformed"),
        (b"n,,\x01auth=Bearer x", "malformed"),
    ],
)
def test_another_token_does_not(message: bytes, reason: str) -> None:
    with pytest.raises(SaslAuthenticationFailed) as refusal:
        log_in(message)
    assert refusal.value.reason == reason


def test_keys_are_fetched_when_they_are_old_and_for_unknown_ids_once_a_minute() -> None:
    fetches = Fetches()
    for _ in range(3):
        log_in(first(token()), fetches)
    assert fetches.count == 1
    added = json.loads(ECAlgorithm.to_jwk(OTHER.public_key())) | {"kid": "new"}
    fetches.published = [*KEYS, added]
    for _ in range(3):
        with pytest.raises(SaslAuthenticationFailed):
            log_in(first(token(OTHER, "new")), fetches)
    assert fetches.count == 1, "anybody can invent a key id"
    fetches.now += 60
    log_in(first(token(OTHER, "new")), fetches)
    assert fetches.count == 2
    fetches.now += 3_599
    log_in(first(token()), fetches)
    assert fetches.count == 2
    fetches.now += 1
    fetches.published = OSError("no route")
    log_in(first(token()), fetches)
    assert fetches.count == 3, "those at hand are kept"
    fetches.now += 60
    fetches.published = [added]
    with pytest.raises(SaslAuthenticationFailed):
        log_in(first(token()), fetches)
    assert fetches.count == 4, "a key that is withdrawn is no longer one"


def test_without_keys_the_log_says_why() -> None:
    fetches = Fetches()
    fetches.published = OSError("no route")
    with pytest.raises(SaslAuthenticationFailed) as refusal:
        log_in(first(token()), fetches)
    assert str(refusal.value.__cause__) == "the keys of the issuer cannot be read: no route"
    assert "no route" not in str(refusal.value)
