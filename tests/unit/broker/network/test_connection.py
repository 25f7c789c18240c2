"""A connection without a socket: bytes arrive in any pieces, answers leave in request order, back-pressure holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import BrokerConfig
from broker.counters import NetworkCounters
from broker.errors import ProtocolError
from broker.handlers.reply import Parts, Pending
from broker.network.connection import Connection
from broker.protocol.framing import Request
from tests.support.sockets import ScriptedSocket


def metadata_frame(correlation_id: int, body: bytes = b"") -> bytes:
    content = b"\0\x03\0\x04" + correlation_id.to_bytes(4, "big") + b"\0\0" + body
    return len(content).to_bytes(4, "big") + content


def connection(sock: ScriptedSocket, dispatch, **settings: int) -> Connection:
    config = BrokerConfig(**settings)
    return Connection(sock, "peer", dispatch=dispatch, config=config, now=0.0, on_ready=lambda c: None, network=NetworkCounters())  # type: ignore[arg-type]


def receive_all(conn: Connection, sock: ScriptedSocket) -> None:
    while sock.incoming:
        conn.receive(1.0)


def answers(raw: bytes | bytearray) -> list[tuple[int, bytes]]:
    found = []
    position = 0
    while position < len(raw):
        size = int.from_bytes(raw[position : position + 4], "big")
        found.append((int.from_bytes(raw[position + 4 : position + 8], "big"), bytes(raw[position + 8 : position + 4 + size])))
        position += 4 + size
    return found


def echo(request: Request) -> Parts:
    return [bytes(request.body)]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=12), st.integers(1, 50))
def test_frames_arrive_whole_however_the_bytes_are_cut(bodies: list[bytes], piece: int) -> None:
    sock = ScriptedSocket(piece)
    conn = connection(sock, echo)
    for number, body in enumerate(bodies):
        sock.incoming += metadata_frame(number, body)
    receive_all(conn, sock)
    conn.send(1.0)
    assert answers(sock.sent) == list(enumerate(bodies))


def test_a_frame_larger_than_the_first_buffer_is_read() -> None:
    body = bytes(range(256)) * 4000
    sock = ScriptedSocket(50_000)
    conn = connection(sock, echo)
    sock.incoming += metadata_frame(1, b"x") + metadata_frame(2, body) + metadata_frame(3, b"y")
    receive_all(conn, sock)
    conn.send(1.0)
    assert answers(sock.sent) == [(1, b"x"), (2, body), (3, b"y")]


def test_an_announced_length_reserves_no_memory() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, echo)
    sock.incoming += (90 << 20).to_bytes(4, "big") + b"\0\0\0\x09"
    receive_all(conn, sock)
    conn.receive(2.0)
    assert sock.largest_view < 1 << 20
    assert conn.frame_since == 1.0


def test_a_lying_length_is_a_protocol_error() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, echo)
    sock.incoming += b"GET / HTTP/1.1\r\n\r\n"
    with pytest.raises(ProtocolError):
        conn.receive(1.0)


def test_answers_leave_in_request_order_even_when_the_first_is_late() -> None:
    pendings: list[Pending] = []

    def dispatch(request: Request) -> Parts | Pending:
        if request.correlation_id == 1:
            pendings.append(Pending())
            return pendings[0]
        return [b"at once"]

    sock = ScriptedSocket()
    conn = connection(sock, dispatch)
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    receive_all(conn, sock)
    conn.send(1.0)
    assert sock.sent == b""
    pendings[0].complete([b"late"])
    conn.send(1.0)
    assert answers(sock.sent) == [(1, b"late"), (2, b"at once")]


def test_reading_stops_behind_a_waiting_fetch_and_goes_on_after_it() -> None:
    seen: list[int] = []
    fetch = Pending(stops_reading=True)

    def dispatch(request: Request) -> Parts | Pending:
        seen.append(request.correlation_id)
        return fetch if request.correlation_id == 1 else [b""]

    sock = ScriptedSocket()
    conn = connection(sock, dispatch)
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    receive_all(conn, sock)
    assert seen == [1]
    assert not conn.wants_to_read
    fetch.complete([b"data"])
    conn.process(2.0)
    assert seen == [1, 2]


def test_a_peer_that_does_not_read_its_answers_is_not_read_from() -> None:
    sock = ScriptedSocket(room=0)
    conn = connection(sock, lambda request: [bytes(600)], output_bytes_max=1024)
    for number in range(10):
        sock.incoming += metadata_frame(number)
    conn.receive(1.0)
    assert not conn.wants_to_read
    assert conn.output.bytes_queued < 3000


def test_the_pipeline_is_bounded() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: Pending(), pipelined_requests_max=4)
    for number in range(10):
        sock.incoming += metadata_frame(number)
    conn.receive(1.0)
    assert not conn.wants_to_read
    assert conn.has_unread_requests


def test_a_silent_request_sends_nothing_and_a_failed_one_closes() -> None:
    fine, failing = Pending(silent=True), Pending(silent=True)
    order = iter([fine, failing])
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: next(order))
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    receive_all(conn, sock)
    fine.complete([])
    assert conn.closing is None
    failing.fail_silently()
    conn.send(1.0)
    assert sock.sent == b""
    assert conn.closing == "acks_0"


def test_closing_cancels_what_waits() -> None:
    cancelled: list[bool] = []
    fetch = Pending(stops_reading=True)
    fetch.on_cancel = lambda: cancelled.append(True)
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: fetch)
    sock.incoming += metadata_frame(1)
    receive_all(conn, sock)
    conn.close()
    assert cancelled == [True]
    assert sock.closed


def test_only_produce_may_be_large() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, echo, control_frame_bytes_max=65_536)
    sock.incoming += metadata_frame(1, b"x" * 60_000) + metadata_frame(2, b"x" * 70_000)[:20]
    with pytest.raises(ProtocolError, match=r"logbus\.control\.request\.max\.bytes"):
        receive_all(conn, sock)


def test_a_grown_buffer_is_counted_given_back_and_forgotten() -> None:
    sock, network = ScriptedSocket(), NetworkCounters()
    conn = Connection(sock, "peer", dispatch=echo, config=BrokerConfig(), now=0.0, on_ready=lambda c: None, network=network)  # type: ignore[arg-type]
    frame = metadata_frame(1, b"x" * 300_000)
    sock.incoming += frame[:-1]
    receive_all(conn, sock)
    assert network.held_bytes == conn.held_bytes > 200_000
    assert conn.stalled_since == 1.0
    conn.give_back()
    assert network.held_bytes > 200_000, "a partial frame stays"
    sock.incoming += frame[-1:]
    receive_all(conn, sock)
    conn.send(2.0)
    conn.give_back()
    assert network.held_bytes == 0
    conn.close()
    assert network.held_bytes == 0


def test_answers_that_nobody_takes_are_counted_until_the_connection_closes() -> None:
    sock, network = ScriptedSocket(room=100), NetworkCounters()
    conn = Connection(sock, "peer", dispatch=echo, config=BrokerConfig(), now=0.0, on_ready=lambda c: None, network=network)  # type: ignore[arg-type]
    sock.incoming += metadata_frame(1, b"x" * 3_000)  # within the first buffer, which is not counted
    receive_all(conn, sock)
    conn.send(3.0)
    conn.send(9.0)
    conn.count_output()
    assert network.held_bytes == conn.output.bytes_queued > 2_000
    assert conn.stalled_since == 3.0, "when the peer last took something"
    conn.close()
    assert network.held_bytes == 0


def test_a_crowd_of_small_requests_is_handled_in_portions() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, echo, pipelined_requests_max=10)
    for number in range(25):
        sock.incoming += metadata_frame(number)
    receive_all(conn, sock)
    handled = []
    while True:
        conn.send(1.0)
        handled.append(len(answers(sock.sent)))
        if not conn.has_unread_requests:
            break
        conn.process(1.0)
    assert handled == [10, 20, 25]
