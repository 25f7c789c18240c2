"""Clients over their quotas, in the loop without sockets: answered at once, then not read from until the time is over."""

from __future__ import annotations

from typing import Any

import pytest
from logbus_broker.api.handler import Parts
from logbus_broker.network.poller import READ
from logbus_broker.network.throttling import Throttle
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import encode_response, response_class
from logbus_broker.protocol.fetch import FetchAnswer, encode_fetch_response
from logbus_broker.protocol.framing import Request, request_frame
from logbus_broker.protocol.produce import ProduceAnswer, encode_produce_response
from logbus_broker.security.quotas import CONNECTIONS, CONSUMER_BYTES, PRODUCER_BYTES, REQUEST_PERCENTAGE, ClientQuotas
from logbus_broker.security.state import SecurityState

from tests.support.loop import Loop
from tests.support.sockets import ScriptedSocket

RECORDS = 10_000


def answer(request: Request) -> Parts:
    key, version = ApiKey(request.api_key), request.version
    if key is ApiKey.PRODUCE:
        return [encode_produce_response([ProduceAnswer("clicks", 0)], version)]
    if key is ApiKey.FETCH:
        pieces = encode_fetch_response([FetchAnswer("clicks" if version < 13 else bytes(16), 0, 0, 1, 0, RECORDS)], version)
        return [pieces[0], bytes(RECORDS), *pieces[1:]]
    return [encode_response(response_class(key)(), version)]


def limited(**limits: float) -> Loop:
    state = SecurityState(quotas={frozenset({("client-id", "app")}): limits})
    return Loop(answer, throttle=lambda clock: Throttle(ClientQuotas(lambda: state, 11, 1.0), clock.monotonic))


def ask(loop: Loop, sock: ScriptedSocket, key: ApiKey, version: int, client_id: bytes = b"app", size: int = 0) -> None:
    loop.send(request_frame(key, version, 7, client_id, bytes(size)), sock)
    while sock.incoming and loop.asked(sock) == READ:  # larger than the connection's buffer
        loop.turn(loop.ready(sock))


def answers(sock: ScriptedSocket, key: ApiKey, version: int) -> list[Any]:
    """What has been sent since the last call."""
    decoded = []
    while sock.sent:
        length = int.from_bytes(sock.sent[:4], "big")
        head = 8 + (version >= APIS[key].flexible_from)
        decoded.append(response_class(key).decode(bytes(sock.sent[head : 4 + length]), version=version))
        del sock.sent[: 4 + length]
    return decoded


def pass_time(loop: Loop, milliseconds: int) -> None:
    loop.clock.advance_ms(milliseconds)
    loop.turn()


@pytest.mark.parametrize("version", [8, 9, 12])
def test_a_producer_over_its_quota_is_answered_with_the_time_and_not_read_from_until_then(version: int) -> None:
    loop = limited(**{PRODUCER_BYTES: 1_000.0})
    sock, other = loop.connect(), loop.connect()
    ask(loop, sock, ApiKey.PRODUCE, version, size=12_000)
    (first,) = answers(sock, ApiKey.PRODUCE, version)
    assert first.throttle_time_ms == pytest.approx(2_000, abs=50)
    assert first.responses[0].name == "clicks"
    assert loop.asked(sock) == 0, "nothing is read"
    ask(loop, sock, ApiKey.PRODUCE, version, size=10)
    ask(loop, other, ApiKey.PRODUCE, version, b"another", size=12_000)
    assert [row.throttle_time_ms for row in answers(other, ApiKey.PRODUCE, version)] == [0], "another client has no limit"
    assert not sock.sent
    pass_time(loop, first.throttle_time_ms + 1)
    assert loop.asked(sock) == READ
    loop.turn(loop.ready(sock))
    assert len(answers(sock, ApiKey.PRODUCE, version)) == 1


@pytest.mark.parametrize("version", [4, 6, 7, 11, 12, 17])
def test_a_consumer_over_its_quota_gets_no_records_until_the_time_is_over(version: int) -> None:
    loop = limited(**{CONSUMER_BYTES: 900.0})
    sock = loop.connect()
    ask(loop, sock, ApiKey.FETCH, version)
    (first,) = answers(sock, ApiKey.FETCH, version)
    assert len(first.responses[0].partitions[0].records) == RECORDS
    assert 0 < first.throttle_time_ms < 2_000
    pass_time(loop, 100)
    second = loop.connect()
    ask(loop, second, ApiKey.FETCH, version)
    (empty,) = answers(second, ApiKey.FETCH, version)
    assert not empty.responses, "another connection of the same client"
    assert empty.throttle_time_ms > 0
    pass_time(loop, 12_000)
    ask(loop, second, ApiKey.FETCH, version)
    assert answers(second, ApiKey.FETCH, version)[0].responses


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_a_quota_of_next_to_nothing_holds_up_for_as_long_as_can_be_said(key: ApiKey) -> None:
    loop = limited(**{PRODUCER_BYTES: 5e-324, CONSUMER_BYTES: 5e-324})
    sock = loop.connect()
    ask(loop, sock, key, 12, size=100)
    assert answers(sock, key, 12)[0].throttle_time_ms > 2_000_000_000
    assert loop.asked(sock) == 0


def test_request_time_is_held_up_for_a_second_at_most() -> None:
    loop = limited(**{REQUEST_PERCENTAGE: 0.000001})
    sock = loop.connect()
    slow = loop.server._dispatch

    def dispatch(request: Request) -> Any:
        loop.clock.advance_ms(50)
        return slow(request)

    next(iter(loop.server._connections))._dispatch = dispatch
    ask(loop, sock, ApiKey.HEARTBEAT, 4)
    assert answers(sock, ApiKey.HEARTBEAT, 4)[0].throttle_time_ms == 1_000
    pass_time(loop, 1_001)
    assert loop.asked(sock) == READ


def test_an_address_that_connects_too_often_waits_before_it_is_served() -> None:
    state = SecurityState(quotas={frozenset({("ip", None)}): {CONNECTIONS: 0.2}})
    loop = Loop(answer, throttle=lambda clock: Throttle(ClientQuotas(lambda: state, 11, 1.0), clock.monotonic))
    socks = [loop.connect("10.0.0.1") for _ in range(3)]
    assert [loop.asked(sock) for sock in (*socks, loop.connect("10.0.0.2"))] == [READ, READ, 0, READ]
    pass_time(loop, 5_001)
    assert loop.asked(socks[2]) == READ


def test_a_connection_that_closes_while_it_is_held_up_is_forgotten() -> None:
    loop = limited(**{PRODUCER_BYTES: 1.0})
    sock = loop.connect()
    ask(loop, sock, ApiKey.PRODUCE, 8, size=12_000)
    (connection,) = loop.server._connections
    loop.server._close(connection, "peer")
    pass_time(loop, 2_000)
    assert not loop.server._muted
