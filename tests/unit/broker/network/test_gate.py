"""Logins below the sockets: every row of Apache Kafka's answers, how long a refusal is held back, what a session's end closes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.users import add_users
from logbus_broker.network import gate
from logbus_broker.network.poller import RESET
from logbus_broker.protocol import codec, framing
from logbus_broker.protocol.api import ApiKey
from logbus_broker.security import sasl
from logbus_broker.security.state import SecurityState

from tests.support import logins
from tests.support.engine import Harness
from tests.support.loop import Loop
from tests.support.sockets import ScriptedSocket

PASSWORDS = {logins.USER: logins.PASSWORD, logins.OTHER_USER: logins.OTHER_PASSWORD}
STATE = add_users(PASSWORDS)(SecurityState())  # PBKDF2 of four credentials, once
SECOND = 1_000


class Scripted:
    """A broker without sockets whose only listener requires a login, and connections to it."""

    def __init__(self, directory: Path, **rules: int) -> None:
        self.harness = Harness(directory)
        context = self.harness.engine.context
        for write in context.security.change(lambda _: STATE):
            write()
        self.users = sasl.Users(lambda: context.security.state, b"key")
        self.checks = gate.PasswordChecks(self.harness.thread_pool.submit)
        mechanisms: dict[str, sasl.Mechanism] = {"PLAIN": lambda first: sasl.plain(self.users, self.checks.in_thread, first)}
        for name, mechanism in sasl.NAMES.items():
            mechanisms[name] = lambda first, mechanism=mechanism: sasl.scram_exchange(
                mechanism, self.users, lambda: "server", first
            )  # type: ignore[misc]
        limits = {"frame_bytes_max": 524_288, "session_ms_max": 0, "failure_delay_ms": 100, **rules}
        engine = self.harness.engine
        self.gate = gate.Gate(
            gate.GateRules(mechanisms=mechanisms, **limits),
            context,
            dispatch=self.dispatch,
            connect_fast_path=lambda: engine.fast_path and engine.fast_path.connect(),
            failed=sasl.FailedLogins(),
        )
        self.loop = Loop(
            engine.dispatch,
            fast_path=engine.fast_path,
            clock=self.harness.clock,
            steps=engine,
            gates={"PLAINTEXT": self.gate},
        )
        self.origins: list[framing.Origin] = []

    def dispatch(self, request: framing.Request) -> Any:
        self.origins.append(request.origin)
        return self.harness.engine.dispatch(request)

    def connect(self, host: str = "127.0.0.1") -> ScriptedConversation:
        return ScriptedConversation(self, host)

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.harness.engine.counters.network.refused_logins)


class ScriptedConversation:
    def __init__(self, broker: Scripted, host: str) -> None:
        self.broker = broker
        self.sock = broker.loop.connect(host)
        self.waited_ms = 0

    def ask(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        body = codec.request_class(api_key)(**fields).encode(version=version)
        raw = self._exchange(framing.request_frame(api_key, version, 1, b"test", body))
        if raw == logins.CLOSED:
            return raw
        return codec.response_class(api_key).decode(framing.read_response(memoryview(raw), api_key, version)[1], version=version)

    def bare(self, token: bytes) -> Any:
        return self._exchange(len(token).to_bytes(4, "big") + token)

    def send(self, data: bytes) -> Any:
        self.broker.loop.send(data, self.sock)
        return logins.CLOSED if self.sock.closed else None

    def is_closed(self) -> bool:
        return self.sock.closed

    def _exchange(self, frame: bytes) -> Any:
        self.sock.sent.clear()
        self.waited_ms = 0
        self.broker.loop.send(frame, self.sock)
        while not self.sock.sent and not self.sock.closed:
            self.broker.harness.thread_pool.run()
            self.broker.loop.turn()
            if not self.sock.sent and not self.sock.closed:
                assert self.waited_ms < 20 * SECOND, "no answer"
                self.waited_ms += 20
                self.broker.harness.clock.advance_ms(20)
                self.broker.loop.turn()
        return bytes(self.sock.sent[4:]) if self.sock.sent else logins.CLOSED


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., Scripted]]:
    def begin(**rules: int) -> Scripted:
        return Scripted(tmp_path, **rules)

    yield begin


def test_logins_are_answered_as_by_kafka(scripted: Callable[..., Scripted]) -> None:
    broker = scripted()
    for name, (play, expected) in logins.ROWS.items():
        assert play(broker.connect()) == expected, name
    for origin in broker.origins:
        assert origin.principal in ("User:ANONYMOUS", f"User:{logins.USER}")
    assert broker.connect().send((524_288).to_bytes(4, "big")) is None, "waited for"


@pytest.mark.parametrize(("name", "row"), logins.ENDING_ROWS.items())
def test_logins_that_have_an_end_are_answered_as_by_kafka(scripted: Callable[..., Scripted], name: str, row: Any) -> None:
    play, expected = row
    assert play(scripted(session_ms_max=4 * SECOND).connect()) == expected


def test_a_login_where_none_is_required(tmp_path: Path) -> None:
    broker = Scripted(tmp_path)
    broker.loop.server._gates = {}
    for play, expected in logins.OPEN_ROWS.values():
        assert play(broker.connect()) == expected


def test_a_request_after_the_end_of_its_session_closes_the_connection(scripted: Callable[..., Scripted]) -> None:
    broker = scripted(session_ms_max=4 * SECOND)
    peer, renewing, bare = broker.connect(), broker.connect(), broker.connect()
    assert logins.log_in(peer).session_lifetime_ms == 4 * SECOND
    logins.log_in(renewing)
    logins.handshake(bare, version=0)
    assert bare.bare(logins.plain(logins.USER, logins.PASSWORD)) == b""
    broker.harness.clock.advance_ms(3 * SECOND)
    broker.loop.turn()
    assert not logins.code(logins.log_in(renewing, "PLAIN"))
    assert not logins.code(peer.ask(ApiKey.API_VERSIONS, 0)), "it goes on until then"
    broker.harness.clock.advance_ms(2 * SECOND)
    broker.loop.turn()
    assert [peer.ask(ApiKey.API_VERSIONS, 0), bare.ask(ApiKey.API_VERSIONS, 0)] == [logins.CLOSED] * 2
    assert not logins.code(renewing.ask(ApiKey.API_VERSIONS, 0))
    broker.harness.clock.advance_ms(5 * SECOND)
    broker.loop.turn()
    assert not logins.code(logins.log_in(renewing)), "a new login is taken late, as by Kafka"
    assert not logins.code(renewing.ask(ApiKey.API_VERSIONS, 0))
    renewing.sock.ended = True
    broker.loop.send(b"", renewing.sock)
    assert not len(broker.harness.engine.context.deadlines), "closed connections leave none"


def test_no_deadline_keeps_a_connection_that_is_gone(scripted: Callable[..., Scripted]) -> None:
    broker = scripted(session_ms_max=60 * SECOND)
    admitted, refused = broker.connect(), broker.connect()
    logins.log_in(admitted)
    logins.log_in(admitted)
    logins.handshake(refused)
    body = codec.request_class(ApiKey.SASL_AUTHENTICATE)(auth_bytes=b"nonsense").encode(version=1)
    broker.loop.send(framing.request_frame(ApiKey.SASL_AUTHENTICATE, 1, 1, b"test", body), refused.sock)
    assert [connection.is_held_back for connection in sessions(broker)] == [False, True]
    admitted.sock.ended = True
    broker.loop.send(b"", admitted.sock)
    broker.loop.turn(broker.loop.ready(refused.sock, RESET))
    broker.loop.turn()
    gc.collect()
    assert sessions(broker) == []


def sessions(broker: Scripted) -> list[gate.ConnectionLogin]:
    """Those that anything still refers to."""
    return [one for one in gc.get_objects() if type(one) is gate.ConnectionLogin and one._gate is broker.gate]


def test_refusals_are_held_back_longer_each_time_for_that_user_and_address(
    scripted: Callable[..., Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    broker = scripted()

    def wait_of(user: str, password: str, host: str = "127.0.0.1") -> int:
        peer = broker.connect(host)
        logins.log_in(peer, user=user, password=password)
        return round(peer.waited_ms, -2)

    with caplog.at_level(logging.WARNING, "broker.login"):
        waits = [wait_of(logins.USER, "wrong") for _ in range(9)]
        assert waits == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
        assert wait_of("eve", "wrong") == wait_of(logins.USER, "wrong", "10.0.0.1") == 100
        assert wait_of(logins.USER, logins.PASSWORD) == 0, "who knows the password does not wait"
        assert wait_of(logins.USER, "wrong") == 100
        broker.harness.clock.advance_ms(601 * SECOND)
        assert wait_of(logins.USER, "wrong") == 100
    lines = [(record.getMessage(), record.user, record.mechanism) for record in caplog.records]  # type: ignore[attr-defined]
    assert ("a login was refused: the password is wrong", logins.USER, "PLAIN") in lines
    assert ("a login was refused: there is no such user, or none for this mechanism", "eve", "PLAIN") in lines
    assert len(lines) < 8, "not one for each"
    assert "wrong" not in str(lines).replace("the password is wrong", "")
    assert broker.refused == {"credentials": 12, "unknown_user": 1}


def test_names_that_are_made_up_cost_little_memory() -> None:
    failed = sasl.FailedLogins()
    for number in range(20_000):
        failed.note("10.0.0.1", f"{number:_>100}" + "x" * 1_000, "unknown_user", 0.1, 1.0)
    assert sum(len(user) for _, user in failed._rows) == 10_000 * 100


def test_who_does_not_log_in_is_closed_and_who_waits_for_a_refusal_is_answered(scripted: Callable[..., Scripted]) -> None:
    broker = scripted(failure_delay_ms=10 * SECOND)
    silent, begun, refused = broker.connect(), broker.connect(), broker.connect()
    logins.handshake(begun)
    broker.harness.clock.advance_ms(5 * SECOND)
    assert logins.code(logins.log_in(refused, password="wrong")) == 58
    assert refused.waited_ms >= 10 * SECOND
    assert [silent.sock.closed, begun.sock.closed] == [True, True]
    assert broker.loop.network.closed["silent"] == 2


def test_logged_in_connections_get_the_fast_path_and_lose_it_with_their_session(scripted: Callable[..., Scripted]) -> None:
    broker = scripted(session_ms_max=4 * SECOND)
    peer = broker.connect()
    connection = broker.loop.poller.owners[peer.sock.fileno()]
    assert connection._fast_path is None
    logins.log_in(peer)
    assert connection._fast_path is not None
    broker.harness.clock.advance_ms(5 * SECOND)
    broker.loop.turn()
    assert connection._fast_path is None


def test_a_crowd_with_wrong_passwords_leaves_one_thread_and_gets_no_line_without_end(scripted: Callable[..., Scripted]) -> None:
    broker = scripted()
    socks: list[ScriptedSocket] = []
    body = codec.request_class(ApiKey.SASL_HANDSHAKE)(mechanism="PLAIN").encode(version=1)
    token = codec.request_class(ApiKey.SASL_AUTHENTICATE)(auth_bytes=logins.plain(logins.USER, "wrong")).encode(version=2)
    for _ in range(300):
        socks.append(broker.loop.connect())
        broker.loop.send(framing.request_frame(ApiKey.SASL_HANDSHAKE, 1, 1, b"", body), socks[-1])
        broker.loop.send(framing.request_frame(ApiKey.SASL_AUTHENTICATE, 2, 2, b"", token), socks[-1])
    assert len(broker.harness.thread_pool.jobs) == 1
    assert broker.refused["busy"] == 300 - 257
    for sock in socks:
        sock.ended = True
        broker.loop.send(b"", sock)
    broker.harness.thread_pool.jobs.clear()
