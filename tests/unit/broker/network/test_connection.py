"""A connection without a socket: bytes arrive in pieces of any size, answers leave in request order, back-pressure works."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api.handler import Parts, Pending
from broker.config.settings import BrokerConfig
from broker.counters import NetworkCounters
from broker.errors import ProtocolError
from broker.network.connection import Connection
from broker.protocol.framing import Request
from broker.protocol.primitives import PARTITIONS_MAX
from tests.support.sockets import ScriptedSocket


def metadata_frame(correlation_id: int, body: bytes = b"") -> bytes:
    content = b"\0\x03\0\x04" + correlation_id.to_bytes(4, "big") + b"\0\0" + body
    return len(content).to_bytes(4, "big") + content


def produce_frame(correlation_id: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    """Version 8; `length` replaces the frame's own length, to announce more bytes than there are."""
    content = b"\0\0\0\x08" + correlation_id.to_bytes(4, "big") + b"\0\0" + body
    return (len(content) if length is None else length).to_bytes(4, "big") + content


NO_TOPICS = b"\xff\xff" + bytes(10)  # a Produce's transactional id, acks, timeout and count of topics


def connection(sock: ScriptedSocket, dispatch, *, hooks: dict[str, Any] | None = None, **settings: int) -> Connection:
    return Connection(
        sock,  # type: ignore[arg-type]
        "peer",
        dispatch=dispatch,
        config=BrokerConfig(**settings),
        now=0.0,
        on_ready=lambda c: None,
        network=NetworkCounters(),
        **(hooks or {}),
    )


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


def test_a_silent_request_sends_nothing_and_a_failed_one_closes() -> None:
    fine, failing = Pending(silent=True), Pending(silent=True)
    order = iter([fine, failing])
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: next(order))
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    receive_all(conn, sock)
    fine.complete([])
    assert conn.closing is None
    failing.close_instead("acks_0")
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


def test_nothing_is_read_behind_a_parked_request() -> None:
    fetch = Pending(stops_reading=True)
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: fetch)
    sock.incoming += metadata_frame(1)
    conn.receive(1.0)
    assert conn.is_parked
    sock.incoming += metadata_frame(2)
    conn.receive(2.0)
    assert bytes(sock.incoming) == metadata_frame(2)
    fetch.complete([b""])
    conn.receive(3.0)
    assert not sock.incoming


def test_nothing_is_read_behind_a_full_pipeline() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: Pending(), pipelined_requests_max=2)
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    conn.receive(1.0)
    assert not conn.is_parked
    sock.incoming += b"more"
    conn.receive(2.0)
    assert bytes(sock.incoming) == b"more"


def test_nothing_is_read_while_requests_lie_in_the_buffer() -> None:
    sock = ScriptedSocket()
    ready: list[Connection] = []
    conn = connection(sock, echo, pipelined_requests_max=10)
    conn._on_ready = ready.append
    for number in range(15):
        sock.incoming += metadata_frame(number)
    conn.receive(1.0)
    ready.clear()
    sock.incoming += metadata_frame(99)
    conn.receive(1.0)
    assert len(sock.incoming) == len(metadata_frame(99)), "what is here comes first"
    assert ready == [conn], "and the server comes back for it"
    conn.process(1.0)
    conn.receive(1.0)
    conn.send(1.0)
    assert [number for number, _ in answers(sock.sent)] == [*range(15), 99]


def test_the_same_holds_for_requests_behind_which_reading_had_stopped() -> None:
    fetch = Pending(stops_reading=True)
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: fetch if request.correlation_id == 1 else [b""])
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    conn.receive(1.0)
    fetch.complete([b""])
    sock.incoming += metadata_frame(3)
    conn.receive(2.0)
    assert len(sock.incoming) == len(metadata_frame(3))


def test_a_large_frame_is_read_in_pieces_into_memory_of_its_own_and_counted_as_it_arrives() -> None:
    sock, network = ScriptedSocket(piece=300_000), NetworkCounters()
    conn = connection(sock, echo)
    conn._network = network
    records = NO_TOPICS + bytes(range(251)) * 20_000
    sock.incoming += metadata_frame(1, b"x") + produce_frame(2, records) + produce_frame(3, b"behind") + metadata_frame(4)
    largest = 0
    while sock.incoming:
        arrived = len(sock.incoming)
        conn.receive(1.0)
        assert len(sock.incoming) < arrived
        assert network.held_bytes == conn.held_bytes
        largest = max(largest, conn.held_bytes)
    assert len(conn._buffer) == 1 << 20
    assert sock.largest_view <= 1 << 20
    assert len(records) <= largest < len(records) + (1 << 20) + 300_000
    conn.send(1.0)
    assert answers(sock.sent) == [(1, b"x"), (2, records), (3, b"behind"), (4, b"")]
    assert network.held_bytes == conn.held_bytes < 1 << 20
    conn.give_back()
    assert network.held_bytes == 0


def test_a_connection_closed_in_the_middle_of_a_large_frame_gives_back_all_of_it() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, echo)
    sock.incoming += produce_frame(1, NO_TOPICS + bytes(3 << 20), length=50 << 20)
    receive_all(conn, sock)
    assert conn._network.held_bytes > 3 << 20
    assert conn.stalled_since == conn.frame_since == 1.0
    assert not conn.is_idle
    conn.close()
    assert conn._network.held_bytes == 0


def test_a_large_frame_for_which_there_is_no_memory_costs_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("broker.network.buffers.mmap.mmap", refuse)
    sock = ScriptedSocket()
    conn = connection(sock, echo)
    sock.incoming += produce_frame(1, NO_TOPICS + bytes(3 << 20))
    with pytest.raises(MemoryError, match="Cannot allocate"):
        receive_all(conn, sock)
    conn.close()
    assert conn._network.held_bytes == 0


def test_bytes_behind_a_parked_request_stall_since_they_came() -> None:
    fetch = Pending(stops_reading=True)
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: fetch if request.correlation_id == 1 else [b""])
    sock.incoming += metadata_frame(0, bytes(300_000))
    receive_all(conn, sock)
    conn.send(1.0)
    sock.incoming += metadata_frame(1) + metadata_frame(2, bytes(300_000))[:250_000]
    conn.receive(1.0)
    assert not sock.incoming
    assert conn.frame_since is None, "nobody waits for it to end: it is not slow"
    assert conn.stalled_since == 1.0
    conn.give_back()
    assert conn.held_bytes > 200_000


def test_requests_that_wait_do_not_keep_the_buffers_they_came_in() -> None:
    sock = ScriptedSocket()
    conn = connection(sock, lambda request: Pending())
    sock.incoming += metadata_frame(1, bytes(100_000))
    receive_all(conn, sock)
    buffer = conn._buffer
    length = len(buffer)
    conn.give_back()
    buffer.append(0)  # BufferError if a view is left
    assert len(buffer) == length + 1


def test_what_is_staged_is_settled_before_a_request_that_reads_is_handled() -> None:
    happened: list[str] = []
    staged: list[Pending] = []

    def dispatch(request: Request) -> Parts | Pending:
        happened.append(f"{request.correlation_id}")
        if request.correlation_id in (2, 3):
            staged.append(Pending())
            return staged[-1]
        return [b""]

    def settle() -> None:
        happened.append("settled")
        for pending in staged:
            pending.complete([b"staged"])
        staged.clear()

    sock = ScriptedSocket()
    conn = connection(sock, dispatch, hooks={"settle": settle})
    sock.incoming += metadata_frame(1) + produce_frame(2) + produce_frame(3) + metadata_frame(4) + metadata_frame(5)
    conn.receive(1.0)
    assert happened == ["1", "2", "3", "settled", "4", "5"]
    conn.send(1.0)
    assert [number for number, _ in answers(sock.sent)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("head", "refused"),
    [
        (b"\xff\xff" + b"\0\x01\0\0\0\0" + (PARTITIONS_MAX + 1).to_bytes(4, "big"), True),
        (b"\xff\xff" + b"\0\x01\0\0\0\0" + b"\0\0\0\x01\0\x01x" + (PARTITIONS_MAX + 1).to_bytes(4, "big"), True),
        (b"\xff\xff" + b"\0\x01\0\0\0\0" + b"\0\0\0\x01\0\x01x" + PARTITIONS_MAX.to_bytes(4, "big"), False),
    ],
)
def test_a_large_produce_that_names_too_much_is_refused_before_it_is_here(head: bytes, refused: bool) -> None:
    sock = ScriptedSocket(piece=4096)
    conn = connection(sock, echo)
    sock.incoming += produce_frame(1, head + bytes(200_000), length=50 << 20)
    if refused:
        with pytest.raises(ProtocolError, match="accepted: 10000"):
            receive_all(conn, sock)
        assert conn.held_bytes < 300_000
    else:
        receive_all(conn, sock)


def test_requests_that_take_long_are_handled_in_slices() -> None:
    moments = iter(range(1000))
    sock = ScriptedSocket()
    conn = connection(sock, echo, hooks={"monotonic": lambda: next(moments)})
    for number in range(6):
        sock.incoming += metadata_frame(number)
    conn.receive(1.0)
    handled = []
    while True:
        conn.send(1.0)
        handled.append(len(answers(sock.sent)))
        if not conn.has_unread_requests:
            break
        conn.process(1.0)
    assert handled == [2, 4, 6]


def test_closing_goes_on_where_a_request_cannot_be_cancelled(defects: list[str]) -> None:
    cancelled: list[int] = []

    def dispatch(request: Request) -> Pending:
        pending = Pending()

        def cancel() -> None:
            cancelled.append(request.correlation_id)
            raise ValueError("not mine")

        pending.on_cancel = cancel
        return pending

    sock = ScriptedSocket()
    conn = connection(sock, dispatch)
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    conn.receive(1.0)
    sock.fails["close"] = OSError("gone")
    conn.close()
    assert cancelled == [1, 2]
    assert sock.closed
    assert defects
    defects.clear()
