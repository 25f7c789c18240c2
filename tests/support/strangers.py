"""Strangers: whoever speaks to a listener before its login. Valid handshakes and logins, damaged in their TLS records, their
frames, the order of these, or inside their tokens.

What is damaged, and how, is a function of a case's seed and number. Nonces and keys of TLS are not: they are random, on both sides.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import random
import ssl
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from logbus_broker.api.handler import Parts, Pending
from logbus_broker.api.users import add_users
from logbus_broker.errors import SaslAuthenticationFailed
from logbus_broker.network.gate import open_gates
from logbus_broker.network.tls import TlsConnection
from logbus_broker.properties import build_config
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.protocol.framing import FRAME_LENGTH, Request, read_response, request_frame
from logbus_broker.security import sasl
from logbus_broker.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from logbus_broker.security.state import ANONYMOUS, SecurityState

from benchmarks.peers.authority import Authority
from tests.support.engine import Harness
from tests.support.fuzzing import UnsyncedFileSystem
from tests.support.logins import PASSWORD, USER, plain
from tests.support.mutations import LYING_NUMBERS, spoil, whole_frames
from tests.support.tls_loop import TlsClient, TlsLoop

Conversation = Generator[bytes, bytes, None]  # yields what is sent, and resumes with the answer's content

HIDDEN = "nobody-sees-this-topic"
ISSUER, FORGER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
FAR_FUTURE = 4_000_000_000
STRANGE_VALUES = (
    None,
    True,
    -1,
    0,
    1e308,
    10**40,
    "",
    "a" * 5_000,
    "\ud800",
    "\0",
    [],
    ["logbus"],
    {},
    float("nan"),
    float("inf"),
)
STRANGE_TEXTS = (b"", b"[" * 100, b"[" * 40_000, b"{" * 40_000, b'{"a":' * 8_000, b"9" * 40_000, b"\xff\xfe", b"null", b'"text"')
STRANGE_TOKENS = (b"", b"\0", b"\0\0", b"n,,", b"=" * 4_000, b",a=" * 1_300, b"\xff" * 3_000, b"n," * 200_000, b"\x01" * 60_000)
STATE = add_users({USER: PASSWORD})(SecurityState())


def ask(api_key: ApiKey, version: int, **fields: Any) -> bytes:
    return request_frame(api_key, version, 1, b"stranger", request_class(api_key)(**fields).encode(version=version))


# -- what a client sends -------------------------------------------------------------------------------------------------------


def visit(chance: random.Random, rate: float, *, knows: bool) -> Conversation:
    """A login, or two on one connection, and a question that only who has logged in may ask. `rate` is how many tokens are
    damaged."""
    if chance.random() < 0.3:
        yield ask(ApiKey.API_VERSIONS, chance.choice((0, 3)))
    for _ in range(chance.choice((1, 1, 1, 2))):
        mechanism, version = chance.choice(MECHANISMS), chance.choice((0, 1, 1))
        yield ask(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)
        yield from log_in(chance, rate, mechanism, knows=knows, is_bare=version == 0)
    yield ask(ApiKey.METADATA, 9, topics=None)


def log_in(chance: random.Random, rate: float, mechanism: str, *, knows: bool, is_bare: bool) -> Conversation:
    tokens, version = tokens_of(chance, mechanism, knows=knows), chance.choice((0, 1, 2))
    with contextlib.suppress(StopIteration, SaslAuthenticationFailed):
        token = next(tokens)
        while True:
            sent = damaged_token(chance, token) if chance.random() < rate else token
            body = (
                yield FRAME_LENGTH.pack(len(sent)) + sent if is_bare else ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=sent)
            )
            if not body:
                return
            token = tokens.send(body if is_bare else token_in(body, version))


def token_in(answer: bytes, version: int) -> bytes:
    """Of an answer to SaslAuthenticate; empty if it is something else, as after frames that were damaged."""
    try:
        _, body = read_response(memoryview(answer), ApiKey.SASL_AUTHENTICATE, version)
        return bytes(response_class(ApiKey.SASL_AUTHENTICATE).decode(body, version=version).auth_bytes)
    except Exception:
        return b""


def tokens_of(chance: random.Random, mechanism: str, *, knows: bool) -> Conversation:
    user, password = (USER, PASSWORD) if knows else (chance.choice((USER, USER, "eve", "\0", "=2C,")), "guessed")
    if mechanism == PLAIN:
        yield plain(user, password, chance.choice(("", "", user, "eve")))
    elif mechanism == OAUTHBEARER:
        yield b"n,,\x01auth=Bearer " + bearer(chance, ISSUER if knows else FORGER) + b"\x01\x01"
        yield b"\x01"
    else:
        yield from sasl.log_in(sasl.NAMES[mechanism], user, password, "nonce")


def bearer(chance: random.Random, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A token that this key has signed, whose content may be anything."""
    header: dict[str, Any] = {"alg": "ES256", "kid": "key", "typ": "JWT"}
    claims: dict[str, Any] = {"sub": USER, "iss": "https://issuer", "aud": "logbus", "exp": FAR_FUTURE}
    parts = []
    for content in (header, claims):
        if chance.random() < 0.3:
            content[chance.choice((*content, "crit", "b64", "nbf", "iat", "jwk"))] = chance.choice(
                (*STRANGE_VALUES, "none", "HS256")
            )
        text = bytearray(json.dumps(content).encode())
        if chance.random() < 0.2:
            spoil(text, chance)
        parts.append(chance.choice(STRANGE_TEXTS) if chance.random() < 0.1 else bytes(text))
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = ECAlgorithm(ECAlgorithm.SHA256).sign(signed, key)
    return signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


# -- how it is damaged -----------------------------------------------------------------------------------------------------------


def damaged_token(chance: random.Random, token: bytes) -> bytes:
    if chance.random() < 0.2:
        return chance.choice(STRANGE_TOKENS)
    if chance.random() < 0.3:
        parts = token.split(b",")
        parts.insert(chance.randrange(len(parts) + 1), chance.choice((*parts, b"", b"m=x", b"a=eve", b"x=" + b"y" * 3_000)))
        chance.shuffle(parts)
        return b",".join(parts)
    content = bytearray(token)
    spoil(content, chance)
    return bytes(content)


def damaged_frames(chance: random.Random, rate: float, frame: bytes) -> list[bytes]:
    """The frame, most of the time; or none, several, others, or a spoilt one, whose length may lie."""
    if chance.random() >= rate:
        return [frame]
    kind = chance.randrange(5)
    if kind == 0:
        return []
    if kind == 1:
        return [frame, frame]
    if kind == 2:
        other = chance.choice(whole_frames())
        return [FRAME_LENGTH.pack(len(other)) + other, *([frame] if chance.random() < 0.5 else [])]
    if kind == 3:
        return [
            chance.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", chance.randbytes(chance.randrange(1, 2_000))))
        ]
    content = bytearray(frame[4:])
    spoil(content, chance)
    return [FRAME_LENGTH.pack(chance.choice(LYING_NUMBERS) if chance.random() < 0.3 else len(content)) + content]


class Stranger(TlsClient):
    """A client of TLS whose records may be damaged: `chance` decides, if there is one."""

    def __init__(self, loop: TlsLoop, authority: Authority, chance: random.Random | None = None) -> None:
        super().__init__(loop, authority)
        self._chance = chance

    def encrypted(self) -> bytes:
        records = bytearray(super().encrypted())
        if records and self._chance is not None and self._chance.random() < 0.5:
            spoil(records, self._chance)
        return bytes(records)


# -- the broker ------------------------------------------------------------------------------------------------------------------


class Gatehouse:
    """A broker, without threads, whose only listener has TLS and every mechanism, and a client that has logged in. `defects` are
    those that the broker's log has."""

    def __init__(self, directory: Path, seed: int, defects: list[str]) -> None:
        self.seed = seed
        self.defects = defects
        self.outcomes: Counter[str] = Counter()
        self.harness = Harness(directory / "data", filesystem=UnsyncedFileSystem())
        self.harness.create(HIDDEN)
        self.authority = Authority(directory)
        keys = directory / "keys.json"
        keys.write_text(json.dumps({"keys": [json.loads(ECAlgorithm.to_jwk(ISSUER.public_key())) | {"kid": "key"}]}))
        settings = {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.location": str(self.authority.issue("server")),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": "https://issuer",
            "sasl.oauthbearer.expected.audience": "logbus",
        }
        engine = self.harness.engine
        for write in engine.context.security.change(lambda _: STATE):
            write()
        gates = open_gates(build_config(settings), engine.context, dispatch=self._dispatch, connect_fast_path=lambda: None)
        self.loop = TlsLoop(
            self._dispatch,
            settings,
            "SASL_SSL",
            clock=self.harness.clock,
            steps=engine,
            gates={"PLAINTEXT": gates["SASL_SSL"]},
        )
        self._may_log_in = True
        self._bystander = self._log_in()
        self._deadlines = len(engine.context.deadlines)

    def run(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            try:
                self._play(random.Random(f"{self.seed}:{number}"))
                seen = [*self.defects, *self.loop.defects]
                assert not seen, seen
                if number % 100 == 0:
                    self._others_go_on()
            except Exception as error:
                raise AssertionError(f"case {number} of seed {self.seed}: {error!r}") from error

    def close(self) -> None:
        self._others_go_on()
        self._leave(self._bystander)
        assert self.loop.network.held_bytes == 0, "closed connections give back everything"
        assert not len(self.harness.engine.context.deadlines)
        gc.collect()
        connections = [one for one in gc.get_objects() if type(one) is TlsConnection and one._network is self.loop.network]
        assert not connections, f"{len(connections)} connections are kept after their end"
        self.loop.stop()
        self.harness.close()

    def _dispatch(self, request: Request) -> Parts | Pending:
        """What gets past the gate."""
        if request.origin.principal == ANONYMOUS:
            assert request.api_key == ApiKey.API_VERSIONS, f"{request.api_key} of a stranger"
        else:
            assert self._may_log_in, f"{request.origin.principal} has no right password"
        return self.harness.engine.dispatch(request)

    def _play(self, chance: random.Random) -> None:
        self._may_log_in = chance.random() < 0.3
        client = Stranger(self.loop, self.authority, chance if chance.random() < 0.15 else None)
        said = b""
        try:
            client.shake_hands()
            rate = chance.choice((0.05, 0.35))  # some come far before anything is wrong
            conversation, answer = visit(chance, rate, knows=self._may_log_in), b""
            frame = next(conversation)
            while not client.is_shut:
                for sent in damaged_frames(chance, rate, frame):
                    answer = self._exchange(client, sent, chance)
                    said += answer
                frame = conversation.send(answer[4:])
        except StopIteration:
            self.outcomes["to the end"] += 1
        except (ssl.SSLError, ConnectionError):
            self.outcomes["TLS failed"] += 1
        else:
            self.outcomes["closed"] += 1
        assert PASSWORD.encode() not in said
        assert self._may_log_in or HIDDEN.encode() not in said
        self.outcomes["logged in"] += HIDDEN.encode() in said
        if chance.random() < 0.05 and not self._may_log_in:  # it stays, and says nothing more
            self.loop.clock.advance_ms(10_001)
            self.loop.turn()
            client.exchange()
            assert client.is_shut, "who does not log in has ten seconds"
        self._leave(client)

    def _exchange(self, client: TlsClient, data: bytes, chance: random.Random | None = None) -> bytes:
        """Send it, at once or in two pieces; returns what came back, once the broker has nothing left to do."""
        cut = chance.randrange(len(data)) if chance is not None and chance.random() < 0.2 and data else len(data)
        answer = client.ask(data[:cut])
        if cut < len(data) and not client.is_shut:
            answer += client.ask(data[cut:])
        while self.harness.thread_pool.jobs:
            self.harness.thread_pool.run()
            self.loop.turn()
            answer += client.ask(b"")
        return answer

    def _log_in(self) -> TlsClient:
        client = TlsClient(self.loop, self.authority)
        client.shake_hands()
        self._exchange(client, ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=PLAIN))
        self._exchange(client, ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=plain(USER, PASSWORD)))
        return client

    def _others_go_on(self) -> None:
        self._may_log_in = True
        newcomer = self._log_in()
        for client in (self._bystander, newcomer):
            assert HIDDEN.encode() in self._exchange(client, ask(ApiKey.METADATA, 9, topics=None))
        self._leave(newcomer)
        self.harness.settle()
        assert len(self.harness.engine.context.deadlines) == self._deadlines
        held = self.loop.network.held_bytes
        assert held < 1 << 20, f"{held} bytes held for one client"

    def _leave(self, client: TlsClient) -> None:
        client.sock.close()
        while self.loop.step():
            pass
