"""SCRAM on the server's side: the standard's own example, what else is accepted, and everything that is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace

import pytest
from logbus_broker.errors import SaslAuthenticationFailed
from logbus_broker.security import sasl
from logbus_broker.security.state import ScramMechanism, SecurityState, encode_state

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")  # RFC 7677, section 3
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PASSWORD = "pencil"


def state_of(*users: str, mechanism: ScramMechanism = SHA_256) -> SecurityState:
    credential = sasl.credential_of_password(mechanism, PASSWORD, SALT)
    return SecurityState(credentials={(user, mechanism): credential for user in users}, nobody_key=b"key")


class Client:
    """Sends what a client sends; `doubled` as librdkafka 2.0 does, other attributes as given."""

    def __init__(self, state: SecurityState, mechanism: ScramMechanism = SHA_256, nonce: str = "rOprNGfwEbeRWgbNEkqO") -> None:
        self.users = sasl.Users(lambda: state, b"own key")
        self.mechanism = mechanism
        self.nonce = nonce

    def begin(self, bare: str, gs2: str = "n,,") -> str:
        self.bare = bare
        self.exchange = sasl.scram_exchange(self.mechanism, self.users, lambda: SERVER_NONCE, (gs2 + bare).encode())
        self.server_first = next(self.exchange).decode()
        return self.server_first

    def end(self, nonce: str, binding: str = "biws", extensions: str = "", password: str = PASSWORD) -> sasl.Login:
        fields = dict(part.split("=", 1) for part in self.server_first.split(","))
        salted = sasl.salted_password(self.mechanism, password, base64.b64decode(fields["s"]), int(fields["i"]))
        hash_name = {SHA_256: "sha256", SHA_512: "sha512"}[self.mechanism]
        key = hmac.digest(salted, b"Client Key", hash_name)
        unproven = f"c={binding},r={nonce}{extensions}"
        signed = f"{self.bare},{self.server_first},{unproven}".encode()
        signature = hmac.digest(hashlib.new(hash_name, key).digest(), signed, hash_name)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        try:
            self.exchange.send(f"{unproven},p={proof}".encode())
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the exchange went on")


def test_the_example_of_the_standard() -> None:
    users = sasl.Users(lambda: state_of("user"), b"")
    exchange = sasl.scram_exchange(SHA_256, users, lambda: SERVER_NONCE, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert next(exchange) == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    with pytest.raises(StopIteration) as ended:
        exchange.send(final)
    assert ended.value.value == sasl.Login("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("bare", "gs2", "end", "user"),
    [
        ("n=ann,r=abc", "n,,", {}, "ann"),
        ("n=ann,r=abc", "n,a=ann,", {"binding": base64.b64encode(b"n,a=ann,").decode()}, "ann"),
        ("n=a=2Cb=3Dc,r=abc", "n,,", {}, "a,b=c"),
        ("n=\u00e5nn,r=abc", "n,,", {}, "\u00e5nn"),
        ("n=ann,r=abc,tokenauth=false", "n,,", None, ""),
        ("n=ann,r=abc,t=later", "n,,", {"extensions": ",u=later"}, "ann"),
        ("n=ann,r=abc", "n,,", {"nonce": "abcabc" + SERVER_NONCE}, "ann"),
        # -- refused, by the first message
        ("n=ann,r=abc", "y,,", None, ""),
        ("n=ann,r=abc", "p=tls-unique,,", None, ""),
        ("n=ann,r=abc", "n,a=bob,", None, "ann"),
        ("n=a=2cb,r=abc", "n,,", None, ""),
        ("m=x,n=ann,r=abc", "n,,", None, ""),
        ("n=ann,r=abc,m=x", "n,,", None, ""),
        ("n=,r=abc", "n,,", None, ""),
        ("n=ann,r=", "n,,", None, ""),
        ("garbage", "", None, ""),
        ("", "", None, ""),
        ("n=ann,r=" + "a" * 4_096, "n,,", None, ""),
        # -- and by the second
        ("n=ann,r=abc", "n,,", {"password": "wrong"}, None),
        ("n=eve,r=abc", "n,,", {}, None),
        ("n=ann,r=abc", "n,,", {"nonce": "abc" + SERVER_NONCE + "x"}, None),
        ("n=ann,r=abc", "n,,", {"nonce": "xabc" + SERVER_NONCE}, None),
        ("n=ann,r=abc", "n,,", {"nonce": SERVER_NONCE}, None),
        ("n=ann,r=abc", "n,,", {"nonce": "abc"}, None),
        ("n=ann,r=abc", "n,,", {"nonce": "abcabcabc" + SERVER_NONCE}, None),
        ("n=ann,r=abc", "n,,", {"binding": "eSws"}, None),
        ("n=ann,r=abc", "n,,", {"extensions": ",m=x"}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_login(bare: str, gs2: str, end: dict[str, str] | None, user: str | None, mechanism: ScramMechanism) -> None:
    client = Client(state_of("ann", "a,b=c", "\u00e5nn", mechanism=mechanism), mechanism)
    try:
        client.begin(bare, gs2)
        assert end is not None
        assert client.end(**{"nonce": "abc" + SERVER_NONCE, **end}).user == user
    except SaslAuthenticationFailed as refusal:
        assert user is None or (end is None and refusal.user == user), refusal
        assert "invalid credentials with SASL mechanism SCRAM-SHA-" in str(refusal) or "authorization id" in str(refusal)


def test_a_user_that_does_not_exist_is_answered_like_one_that_does() -> None:
    known = state_of("ann", "bob")
    later = replace(known, credentials={**known.credentials, ("eve2", SHA_256): known.credentials["ann", SHA_256]})
    asked = [Client(state).begin("n=eve,r=abc") for state in (known, known, later)]
    assert len(set(asked)) == 1, "the salt of a user does not change, so that of nobody must not"
    assert len(asked[0]) == len(Client(known).begin("n=ann,r=abc"))
    assert len({Client(known).begin(f"n={user},r=abc") for user in ("eve", "ann", "joe")}) == 3
    texts = set()
    for user in ("eve", "ann"):
        client = Client(known)
        client.begin(f"n={user},r=abc")
        with pytest.raises(SaslAuthenticationFailed) as refusal:
            client.end("abc" + SERVER_NONCE, password="wrong")
        texts.add((str(refusal.value), refusal.value.reason == "unknown_user"))
    assert len(texts) == 2
    assert len({text for text, _ in texts}) == 1


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({}, False),
        ({"first": ("r=rOpr", "r=xOpr")}, True),  # not the nonce that was sent
        ({"first": ("i=4096", "i=4095")}, True),  # fewer rounds than any broker keeps
        ({"first": ("i=4096", "i=999999999")}, True),  # hours of work
        ({"first": ("r=", "m=x,r=")}, True),
        ({"last": ("v=6", "v=7")}, True),  # somebody who does not have the credential
        ({"last": ("v=", "e=")}, True),
    ],
)
def test_a_broker_logs_in_at_another_as_in_the_standard_and_only_at_one_that_knows_it(
    change: dict[str, tuple[str, str]], is_refused: bool
) -> None:
    state = state_of("user")
    client = sasl.log_in(SHA_256, "user", PASSWORD, "rOprNGfwEbeRWgbNEkqO")
    server = sasl.scram_exchange(SHA_256, sasl.Users(lambda: state, b""), lambda: SERVER_NONCE, next(client))
    first = next(server).decode().replace(*change.get("first", ("", "")))
    try:
        with pytest.raises(StopIteration) as ended:
            server.send(client.send(first.encode()))
        client.send(ended.value.value.last.decode().replace(*change.get("last", ("", ""))).encode())
    except SaslAuthenticationFailed:
        assert is_refused
    except StopIteration:
        assert not is_refused


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_brokers_user_may_have_any_name(mechanism: ScramMechanism) -> None:
    state = state_of("a,b=c\u00e5", mechanism=mechanism)
    client = sasl.log_in(mechanism, "a,b=c\u00e5", PASSWORD, "abc")
    server = sasl.scram_exchange(mechanism, sasl.Users(lambda: state, b""), lambda: SERVER_NONCE, next(client))
    with pytest.raises(StopIteration) as ended:
        server.send(client.send(next(server)))
    assert ended.value.value.user == "a,b=c\u00e5"


def test_nothing_is_kept_that_lets_somebody_log_in() -> None:
    stored = json.dumps(encode_state(state_of("ann"))).encode()
    salted = sasl.salted_password(SHA_256, PASSWORD, SALT, sasl.ITERATIONS_MIN)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    for secret in (PASSWORD.encode(), salted, client_key):
        assert secret not in stored
        assert base64.b64encode(secret) not in stored
        assert secret.hex().encode() not in stored
    credential = state_of("ann").credentials["ann", SHA_256]
    assert sasl.is_password(credential, SHA_256, PASSWORD)
    assert not sasl.is_password(credential, SHA_256, PASSWORD + " ")
