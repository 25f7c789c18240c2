"""A connection without a socket: bytes arrive in pieces of any size, answers leave in request order, back-pressure works."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.api.handler import Parts, Pending
from logbus_broker.errors import ProtocolError
from logbus_broker.health import NetworkCounters
from logbus_broker.network.connection import Connection, Dispatch
from logbus_broker.protocol.framing import PARTITIONS_MAX, Request
from logbus_broker.settings import BrokerConfig

from tests.support.sockets import ScriptedSocket, metadata_frame


def produce_frame(correlation_id: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    """Version 8; `length` replaces the frame's own length, to announce more bytes than there are."""
    content = b"\0\0\0\x08" + correlation_id.to_bytes(4, "big") + b"\0\0" + body
    return (len(content) if length is None else length).to_bytes(4, "big") + content


NO_TOPICS = b"\xff\xff" + bytes(10)  # a Produce's transactional id, acks, timeout and count of topics


def connected(
    dispatch: Dispatch, sock: ScriptedSocket | None = None, *, hooks: dict[str, Any] | None = None, **settings: int
) -> tuple[Connection, ScriptedSocket]:
    sock = sock or ScriptedSocket()
    connection = Connection(
        sock,  # type: ignore[arg-type]
        "peer",
        dispatch=dispatch,
        config=BrokerConfig(**settings),
        now=0.0,
        on_ready=lambda c: None,
        network=NetworkCounters(),
        **(hooks or {}),
    )
    return connection, sock


def receive(conn: Connection, sock: ScriptedSocket, *frames: bytes) -> None:
    """Receive all of these bytes."""
    sock.incoming += b"".join(frames)
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


def portions(conn: Connection, sock: ScriptedSocket) -> list[int]:
    """How many requests are answered each time that the connection has its turn."""
    handled = []
    while True:
        conn.send(1.0)
        handled.append(len(answers(sock.sent)))
        if not conn.has_unread_requests:
            return handled
        conn.process(1.0)


def echo(request: Request) -> Parts:
    return [bytes(request.body)]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=12), st.integers(1, 50))
def test_frames_arrive_whole_however_the_bytes_are_cut(bodies: list[bytes], piece: int) -> None:
    conn, sock = connected(echo, ScriptedSocket(piece))
    receive(conn, sock, *itertools.starmap(metadata_frame, enumerate(bodies)))
    conn.send(1.0)
    assert answers(sock.sent) == list(enumerate(bodies))


def test_a_frame_larger_than_the_first_buffer_is_read() -> None:
    body = bytes(range(256)) * 4000
    conn, sock = connected(echo, ScriptedSocket(50_000))
    receive(conn, sock, metadata_frame(1, b"x") + metadata_frame(2, body) + metadata_frame(3, b"y"))
    conn.send(1.0)
    assert answers(sock.sent) == [(1, b"x"), (2, body), (3, b"y")]


def test_an_announced_length_reserves_no_memory() -> None:
    conn, sock = connected(echo)
    receive(conn, sock, (90 << 20).to_bytes(4, "big") + b"\0\0\0\x09")
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

    conn, sock = connected(dispatch)
    receive(conn, sock, metadata_frame(1) + metadata_frame(2))
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

    conn, sock = connected(dispatch)
    receive(conn, sock, metadata_frame(1) + metadata_frame(2))
    assert seen == [1]
    assert not conn.wants_to_read
    fetch.complete([b"data"])
    conn.process(2.0)
    assert seen == [1, 2]


def test_a_peer_that_does_not_read_its_answers_is_not_read_from() -> None:
    conn, sock = connected(lambda request: [bytes(600)], ScriptedSocket(room=0), output_bytes_max=1024)
    sock.incoming += b"".join(map(metadata_frame, range(10)))
    conn.receive(1.0)
    assert not conn.wants_to_read
    assert conn.output.bytes_queued < 3000


def test_a_silent_request_sends_nothing_and_a_failed_one_closes() -> None:
    fine, failing = Pending(silent=True), Pending(silent=True)
    order = iter([fine, failing])
    conn, sock = connected(lambda request: next(order))
    receive(conn, sock, metadata_frame(1) + metadata_frame(2))
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
    conn, sock = connected(lambda request: fetch)
    receive(conn, sock, metadata_frame(1))
    conn.close()
    assert cancelled == [True]
    assert sock.closed


def test_only_produce_may_be_large() -> None:
    conn, sock = connected(echo, control_frame_bytes_max=65_536)
    sock.incoming += metadata_frame(1, b"x" * 60_000) + metadata_frame(2, b"x" * 70_000)[:20]
    with pytest.raises(ProtocolError, match=r"logbus\.control\.request\.max\.bytes"):
        receive(conn, sock)


def test_a_grown_buffer_is_counted_given_back_and_forgotten() -> None:
    conn, sock = connected(echo)
    network = conn._network
    frame = metadata_frame(1, b"x" * 300_000)
    receive(conn, sock, frame[:-1])
    assert network.held_bytes == conn.held_bytes > 200_000
    assert conn.stalled_since == 1.0
    conn.give_back()
    assert network.held_bytes > 200_000, "a partial frame stays"
    receive(conn, sock, frame[-1:])
    conn.send(2.0)
    conn.give_back()
    assert network.held_bytes == 0
    conn.close()
    assert network.held_bytes == 0


def test_answers_that_nobody_takes_are_counted_until_the_connection_closes() -> None:
    conn, sock = connected(echo, ScriptedSocket(room=100))
    network = conn._network
    receive(conn, sock, metadata_frame(1, b"x" * 3_000))  # within the first buffer, which is not counted
    conn.send(3.0)
    conn.send(9.0)
    conn.count_output()
    assert network.held_bytes == conn.output.bytes_queued > 2_000
    assert conn.stalled_since == 3.0, "when the peer last took something"
    conn.close()
    assert network.held_bytes == 0


def test_a_crowd_of_small_requests_is_handled_in_portions() -> None:
    conn, sock = connected(echo, pipelined_requests_max=10)
    receive(conn, sock, *map(metadata_frame, range(25)))
    assert portions(conn, sock) == [10, 20, 25]


def test_nothing_is_read_behind_a_parked_request() -> None:
    fetch = Pending(stops_reading=True)
    conn, sock = connected(lambda request: fetch)
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
    conn, sock = connected(lambda request: Pending(), pipelined_requests_max=2)
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    conn.receive(1.0)
    assert not conn.is_parked
    sock.incoming += b"more"
    conn.receive(2.0)
    assert bytes(sock.incoming) == b"more"


def test_nothing_is_read_while_requests_lie_in_the_buffer() -> None:
    ready: list[Connection] = []
    conn, sock = connected(echo, pipelined_requests_max=10)
    conn._on_ready = ready.append
    sock.incoming += b"".join(map(metadata_frame, range(15)))
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
    conn, sock = connected(lambda request: fetch if request.correlation_id == 1 else [b""])
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    conn.receive(1.0)
    fetch.complete([b""])
    sock.incoming += metadata_frame(3)
    conn.receive(2.0)
    assert len(sock.incoming) == len(metadata_frame(3))


def test_a_large_frame_is_read_in_pieces_into_memory_of_its_own_and_counted_as_it_arrives() -> None:
    conn, sock = connected(echo, ScriptedSocket(piece=300_000))
    network = conn._network
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
    conn, sock = connected(echo)
    receive(conn, sock, produce_frame(1, NO_TOPICS + bytes(3 << 20), length=50 << 20))
    assert conn._network.held_bytes > 3 << 20
    assert conn.stalled_since == conn.frame_since == 1.0
    assert not conn.is_idle
    conn.close()
    assert conn._network.held_bytes == 0


def test_a_large_frame_for_which_there_is_no_memory_costs_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("logbus_broker.network.buffers.mmap.mmap", refuse)
    conn, sock = connected(echo)
    sock.incoming += produce_frame(1, NO_TOPICS + bytes(3 << 20))
    with pytest.raises(MemoryError, match="Cannot allocate"):
        receive(conn, sock)
    conn.close()
    assert conn._network.held_bytes == 0


def test_bytes_behind_a_parked_request_stall_since_they_came() -> None:
    fetch = Pending(stops_reading=True)
    conn, sock = connected(lambda request: fetch if request.correlation_id == 1 else [b""])
    receive(conn, sock, metadata_frame(0, bytes(300_000)))
    conn.send(1.0)
    sock.incoming += metadata_frame(1) + metadata_frame(2, bytes(300_000))[:250_000]
    conn.receive(1.0)
    assert not sock.incoming
    assert conn.frame_since is None, "nobody waits for it to end: it is not slow"
    assert conn.stalled_since == 1.0
    conn.give_back()
    assert conn.held_bytes > 200_000


def test_requests_that_wait_do_not_keep_the_buffers_they_came_in() -> None:
    conn, sock = connected(lambda request: Pending())
    receive(conn, sock, metadata_frame(1, bytes(100_000)))
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

    conn, sock = connected(dispatch, hooks={"settle": settle})
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
    conn, sock = connected(echo, ScriptedSocket(piece=4096))
    sock.incoming += produce_frame(1, head + bytes(200_000), length=50 << 20)
    if refused:
        with pytest.raises(ProtocolError, match="accepted: 10000"):
            receive(conn, sock)
        assert conn.held_bytes < 300_000
    else:
        receive(conn, sock)


def test_requests_that_take_long_are_handled_in_slices() -> None:
    moments = iter(range(1000))
    conn, sock = connected(echo, hooks={"monotonic": lambda: next(moments)})
    sock.incoming += b"".join(map(metadata_frame, range(6)))
    conn.receive(1.0)
    assert portions(conn, sock) == [2, 4, 6]


def test_closing_goes_on_where_a_request_cannot_be_cancelled(defects: list[str]) -> None:
    cancelled: list[int] = []

    def dispatch(request: Request) -> Pending:
        pending = Pending()

        def cancel() -> None:
            cancelled.append(request.correlation_id)
            raise ValueError("not mine")

        pending.on_cancel = cancel
        return pending

    conn, sock = connected(dispatch)
    sock.incoming += metadata_frame(1) + metadata_frame(2)
    conn.receive(1.0)
    sock.fails["close"] = OSError("gone")
    conn.close()
    assert cancelled == [1, 2]
    assert sock.closed
    assert defects
    defects.clear()
