"""Logins as raw frames, and what Apache Kafka 4.1 answers to each: the same rows are played to its broker and to ours.

A row is a story told to a connection; it returns what came back: error codes, or CLOSED where the connection ended without an answer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.security import sasl

from tests.support.raw_client import Closed, RawClient

CLOSED = "closed"
USER, PASSWORD = "reader", 'reader\'s "password"; \\'
OTHER_USER, OTHER_PASSWORD = "nobody", "nothing"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HANDSHAKE, _TOKEN, _VERSIONS = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS


class Conversation(Protocol):
    """One connection. `ask` and `bare` return CLOSED if it ends without an answer."""

    def ask(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        """The decoded response."""

    def bare(self, token: bytes) -> Any:
        """A frame without a header, and the content of the one that answers it."""

    def send(self, data: bytes) -> Any:
        """Bytes that are no frame; returns CLOSED, or None if the connection stays open."""

    def is_closed(self) -> bool:
        """Whether the peer has ended it, or does so now."""


class Spoken:
    """A conversation with a broker behind a socket."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(address)

    def ask(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        body, flexible = request_class(api_key)(**fields).encode(version=version), version >= APIS[api_key].flexible_from
        try:
            raw = self.client.request(api_key, version, body, flexible=flexible)
        except (Closed, ConnectionError):
            return CLOSED
        return response_class(api_key).decode(raw, version=version)

    def bare(self, token: bytes) -> Any:
        try:
            self.client.send_frame(token)
            return self.client.receive_frame()
        except (Closed, ConnectionError):
            return CLOSED

    def send(self, data: bytes) -> Any:
        self.client.send_bytes(data)
        return CLOSED if self.client.is_closed_by_peer() else None

    def is_closed(self) -> bool:
        return _versions(self) == CLOSED  # type: ignore[no-any-return]


def plain(user: str, password: str, authorization_id: str = "") -> bytes:
    return b"\0".join(part.encode() for part in (authorization_id, user, password))


def handshake(peer: Conversation, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return code(peer.ask(_HANDSHAKE, version, mechanism=mechanism))


def token(peer: Conversation, content: bytes, version: int = 2) -> Any:
    return code(peer.ask(_TOKEN, version, auth_bytes=content))


def code(answer: Any) -> Any:
    return answer if answer == CLOSED else int(answer.error_code)


def log_in(peer: Conversation, mechanism: str = "PLAIN", user: str = USER, password: str = PASSWORD, version: int = 2) -> Any:
    """All of it; returns the last answer."""
    handshake(peer, mechanism)
    if mechanism == "PLAIN":
        return peer.ask(_TOKEN, version, auth_bytes=plain(user, password))
    client = sasl.log_in(sasl.NAMES[mechanism], user, password, "nonce")
    message = next(client)
    while True:
        answer = peer.ask(_TOKEN, version, auth_bytes=message)
        if code(answer):
            return answer
        try:
            message = client.send(answer.auth_bytes)
        except StopIteration:
            return answer


def _after(*steps: Callable[[Conversation], Any]) -> Callable[[Conversation], list[Any]]:
    """What each step returns, and at the end whether the connection is closed."""

    def play(peer: Conversation) -> list[Any]:
        said = [step(peer) for step in steps]
        return said if said[-1] == CLOSED or not peer.is_closed() else [*said, CLOSED]

    return play


def _scram(first: bytes, *more: bytes) -> Callable[[Conversation], list[Any]]:
    return _after(
        lambda peer: handshake(peer, "SCRAM-SHA-256"),
        *(lambda peer, content=content: token(peer, content) for content in (first, *more)),
    )  # type: ignore[misc]


def _plain(content: bytes) -> Callable[[Conversation], list[Any]]:
    return _after(handshake, lambda peer: token(peer, content))


def _metadata(peer: Conversation) -> Any:
    topic = request_class(ApiKey.METADATA).MetadataRequestTopic(name="t", topic_id=None)
    answer = peer.ask(ApiKey.METADATA, 9, topics=[topic])
    return answer if answer == CLOSED else int(answer.topics[0].error_code)


def _versions(peer: Conversation) -> Any:
    return code(peer.ask(_VERSIONS, 0))


def _server_first(peer: Conversation) -> list[Any]:
    handshake(peer, "SCRAM-SHA-512")
    answer = peer.ask(_TOKEN, 1, auth_bytes=f"n,,n={USER},r=abc".encode())
    names = [part[:2] for part in answer.auth_bytes.decode().split(",")]
    return [*names, answer.auth_bytes.decode().startswith("r=abc")]


def _bare(content: bytes) -> Callable[[Conversation], list[Any]]:
    def play(peer: Conversation) -> list[Any]:
        said = [handshake(peer, version=0), peer.bare(content)]
        return said if said[-1] == CLOSED else [*said, _versions(peer)]

    return play


def _again(mechanism: str = "PLAIN", **changed: str) -> Callable[[Conversation], list[Any]]:
    def play(peer: Conversation) -> list[Any]:
        first = log_in(peer)
        second = log_in(peer, mechanism, **changed)
        return [code(first), first.session_lifetime_ms > 0, code(second), _versions(peer)]

    return play


def _handshake_again(peer: Conversation) -> list[Any]:
    return [code(log_in(peer, "SCRAM-SHA-512")), handshake(peer, "SCRAM-SHA-512"), _versions(peer)]


def _has_an_end(mechanism: str) -> Callable[[Conversation], list[Any]]:
    return lambda peer: [log_in(peer, mechanism, version=1).session_lifetime_ms > 0]


def _no_login(peer: Conversation) -> list[Any]:
    answer = peer.ask(_HANDSHAKE, 1, mechanism="PLAIN")
    return [int(answer.error_code), list(answer.mechanisms), token(peer, b""), _versions(peer)]


# Where the listener requires a login; one by SCRAM never ends.
ROWS: Mapping[str, tuple[Callable[[Conversation], list[Any]], list[Any]]] = {
    "a mechanism that is not enabled": (_after(lambda peer: handshake(peer, "GSSAPI")), [33, CLOSED]),
    "the enabled ones with it": (lambda peer: sorted(peer.ask(_HANDSHAKE, 1, mechanism="?").mechanisms), list(MECHANISMS)),
    "Metadata first": (_after(_metadata), [CLOSED]),
    "SaslAuthenticate first": (_after(lambda peer: token(peer, plain(USER, PASSWORD))), [CLOSED]),
    "ApiVersions twice": (_after(_versions, _versions), [0, CLOSED]),
    "a second handshake": (_after(handshake, handshake), [0, 34, CLOSED]),
    "ApiVersions after the handshake": (_after(handshake, _versions), [0, 34, CLOSED]),
    "Metadata after the handshake": (_after(handshake, _metadata), [0, 34, CLOSED]),
    "a version of SaslHandshake that does not exist": (_after(lambda peer: peer.send(bytes.fromhex("00000011 0011 0002 00000001 ffff 0005") + b"PLAIN")), [CLOSED]),
    "a frame of a byte too many": (_after(lambda peer: peer.send((524_289).to_bytes(4, "big"))), [CLOSED]),
    "HTTP": (_after(lambda peer: peer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")), [CLOSED]),
    "PLAIN: right": (_plain(plain(USER, PASSWORD)), [0, 0]),
    "PLAIN: wrong password": (_plain(plain(USER, "wrong")), [0, 58, CLOSED]),
    "PLAIN: no such user": (_plain(plain("eve", PASSWORD)), [0, 58, CLOSED]),
    "PLAIN: empty password": (_plain(plain(USER, "")), [0, 58, CLOSED]),
    "PLAIN: no user": (_plain(plain("", PASSWORD)), [0, 58, CLOSED]),
    "PLAIN: two parts": (_plain(b"reader\0password"), [0, 58, CLOSED]),
    "PLAIN: for another": (_plain(plain(USER, PASSWORD, OTHER_USER)), [0, 58, CLOSED]),
    "PLAIN: for itself": (_plain(plain(USER, PASSWORD, USER)), [0, 0]),
    "SCRAM: right": (lambda peer: [code(log_in(peer, "SCRAM-SHA-256"))], [0]),
    "SCRAM: right, the longer": (lambda peer: [code(log_in(peer, "SCRAM-SHA-512"))], [0]),
    "SCRAM: wrong password": (_after(lambda peer: code(log_in(peer, "SCRAM-SHA-256", password="wrong"))), [58, CLOSED]),
    "SCRAM: no such user": (_scram(b"n,,n=eve,r=abc"), [0, 0]),
    "SCRAM: y,,": (_scram(b"y,,n=reader,r=abc"), [0, 58, CLOSED]),
    "SCRAM: p=": (_scram(b"p=tls-unique,,n=reader,r=abc"), [0, 58, CLOSED]),
    "SCRAM: garbage": (_scram(b"garbage"), [0, 58, CLOSED]),
    "SCRAM: empty": (_scram(b""), [0, 58, CLOSED]),
    "SCRAM: for another": (_scram(b"n,a=nobody,n=reader,r=abc"), [0, 58, CLOSED]),
    "SCRAM: m=": (_scram(b"n,,m=x,n=reader,r=abc"), [0, 58, CLOSED]),
    "SCRAM: garbage at the end": (_scram(b"n,,n=reader,r=abc", b"garbage"), [0, 0, 58, CLOSED]),
    "SCRAM: another nonce": (_scram(b"n,,n=reader,r=abc", b"c=biws,r=abcd,p=" + base64.b64encode(bytes(32))), [0, 0, 58, CLOSED]),
    "SCRAM: the server's first": (_server_first, ["r=", "s=", "i=", True]),
    "bare tokens: right": (_bare(plain(USER, PASSWORD)), [0, b"", 0]),
    "bare tokens: wrong": (_bare(plain(USER, "wrong")), [0, CLOSED]),
    "a handshake after the login": (_handshake_again, [0, 34, 0]),
    "without an end": (_has_an_end("SCRAM-SHA-512"), [False]),
}  # fmt: skip
# Where logins by PLAIN have an end.
ENDING_ROWS: Mapping[str, tuple[Callable[[Conversation], list[Any]], list[Any]]] = {
    "again": (_again(), [0, True, 0, 0]),
    "as another": (_again(user=OTHER_USER, password=OTHER_PASSWORD), [0, True, 58, CLOSED]),
    "by another mechanism": (_again("SCRAM-SHA-256"), [0, True, 58, CLOSED]),
    "with an end": (_has_an_end("PLAIN"), [True]),
}
# Where none is required.
OPEN_ROWS: Mapping[str, tuple[Callable[[Conversation], list[Any]], list[Any]]] = {"a login": (_no_login, [34, [], 34, 0])}
# Where ours is better: users cannot be told from nobody; what the standard forbids is refused; the client learns why.
KAFKA_ANSWERS: Mapping[str, list[Any]] = {
    "SCRAM: no such user": [0, 58, CLOSED],
    "SCRAM: m=": [0, 0],
    "by another mechanism": [0, True, CLOSED, CLOSED],
}
