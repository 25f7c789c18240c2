"""The loop without sockets: whatever one peer or one step of a turn does, the others are served and the loop continues."""

from __future__ import annotations

import pytest
from logbus_broker.api.handler import Parts, Pending
from logbus_broker.network.connection import Connection
from logbus_broker.network.poller import PEER_END, READ, RESET, WRITE
from logbus_broker.protocol.framing import Request

from tests.support.loop import WAKEUP, Loop
from tests.support.sockets import ScriptedSocket, metadata_frame

SECOND = 1_000


def at_once(request: Request) -> Parts | Pending:
    return [b"answer"]


class Parking:
    """Requests with an even correlation id stay pending until the test completes them."""

    def __init__(self) -> None:
        self.parked: list[Pending] = []
        self.cancelled = 0

    def __call__(self, request: Request) -> Parts | Pending:
        if request.correlation_id % 2:
            return [b"answer"]
        pending = Pending(stops_reading=True)
        pending.on_cancel = self._cancel
        self.parked.append(pending)
        return pending

    def _cancel(self) -> None:
        self.cancelled += 1


# -- reading stops, but the peer's close is noticed ------------------------------------------------------------------------------


def test_behind_a_parked_request_only_the_peers_end_is_waited_for() -> None:
    parking = Parking()
    loop = Loop(parking)
    sock = loop.connect()
    loop.send(metadata_frame(2), sock)
    loop.send(metadata_frame(3), sock)
    assert loop.asked(sock) == PEER_END
    assert bytes(sock.incoming) == metadata_frame(3)
    parking.parked[0].complete([b"at last"])
    loop.server._ready.add(next(iter(loop.server._connections)))
    loop.turn()
    assert loop.asked(sock) == READ
    assert b"at last" in sock.sent


def test_a_parked_request_whose_client_left_is_cancelled() -> None:
    parking = Parking()
    loop = Loop(parking)
    sock = loop.connect()
    loop.send(metadata_frame(2), sock)
    sock.ended = True
    loop.turn(loop.ready(sock))
    assert loop.asked(sock) == PEER_END
    assert parking.cancelled == 0
    loop.turn(loop.ready(sock, PEER_END))
    assert parking.cancelled == 1
    assert loop.network.closed == {"peer": 1}


def test_a_half_closed_client_gets_the_answers_that_a_full_pipeline_still_owes_it() -> None:
    pendings: list[Pending] = []

    def dispatch(request: Request) -> Pending:
        pendings.append(Pending())
        return pendings[-1]

    loop = Loop(dispatch, pipelined_requests_max=2)
    sock = loop.connect()
    loop.send(metadata_frame(1) + metadata_frame(2), sock)
    sock.ended = True
    loop.turn(loop.ready(sock))
    assert loop.asked(sock) == 0, "neither spins over the end nor takes it for a reason to leave"
    for pending in pendings:
        pending.complete([b"answer"])
    loop.turn()
    assert sock.sent.count(b"answer") == 2
    assert loop.asked(sock) == READ
    loop.turn(loop.ready(sock))
    assert loop.network.closed == {"peer": 1}


def test_a_half_closed_client_gets_the_answers_that_it_did_not_take_yet() -> None:
    loop = Loop(lambda request: [bytes(2000)], output_bytes_max=1024)
    sock = loop.connect(sock=ScriptedSocket(room=100))
    loop.send(metadata_frame(1), sock)
    assert loop.asked(sock) == WRITE
    sock.ended, sock.room = True, 10_000
    loop.turn(loop.ready(sock, WRITE))
    assert len(sock.sent) == 2008
    assert loop.asked(sock) == READ
    loop.turn(loop.ready(sock))
    assert loop.network.closed == {"peer": 1}


def test_a_connection_that_was_reset_while_nothing_was_waited_for_is_closed() -> None:
    loop = Loop(lambda request: Pending(), pipelined_requests_max=1)
    sock = loop.connect()
    loop.send(metadata_frame(1), sock)
    loop.turn(loop.ready(sock))
    assert loop.asked(sock) == 0
    loop.turn(loop.ready(sock, RESET))
    assert loop.network.closed == {"network": 1}


# -- guards ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["drain_thread_pool", "end_turn", "answer_staged", "next_deadline"])
def test_a_step_of_the_turn_that_fails_is_told_and_the_others_still_happen(step: str) -> None:
    loop = Loop(at_once)
    loop.steps.fails[step] = ValueError("injected")
    sock = loop.connect()
    loop.send(metadata_frame(1), sock)
    loop.steps.fails.clear()
    loop.turn()
    assert b"answer" in sock.sent
    assert loop.network.closed == {}
    assert loop.defects
    assert all("injected" in defect for defect in loop.defects)


def test_turns_that_fail_again_and_again_are_fifty_milliseconds_apart() -> None:
    loop = Loop(at_once)
    loop.steps.fails["end_turn"] = ValueError("injected")
    began = loop.clock.monotonic()
    for _ in range(10):
        loop.turn([(WAKEUP, READ)])
    assert len(loop.defects) >= 10
    assert loop.poller.rested == [0.05] * 9, "the first failure costs nobody anything"
    assert loop.clock.monotonic() - began >= 0.45


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_to_end_the_process_does(kind: type[BaseException]) -> None:
    loop = Loop(at_once)

    def interrupted() -> None:
        raise kind

    loop.poller.owners[WAKEUP] = interrupted
    with pytest.raises(kind):
        loop.turn([(WAKEUP, READ)])


def test_what_the_loop_is_woken_for_may_fail_and_others_are_served() -> None:
    loop = Loop(at_once)
    sock = loop.connect()

    def failing() -> None:
        raise OSError("no more")

    loop.poller.owners[WAKEUP] = failing
    sock.incoming += metadata_frame(1)
    loop.turn([(WAKEUP, READ), *loop.ready(sock)])
    assert b"answer" in sock.sent
    assert loop.defects == ["what the loop was woken for: no more"]


@pytest.mark.parametrize("method", ["setblocking", "setsockopt"])
def test_a_newcomer_that_is_gone_before_it_is_let_in_costs_nobody_else_anything(method: str) -> None:
    loop = Loop(at_once)
    gone = loop.knock()
    gone.fails[method] = OSError(22, "Invalid argument")
    other = loop.connect()
    loop.send(metadata_frame(1), other)
    loop.stop()
    assert gone.closed
    assert b"answer" in other.sent
    assert loop.network.connections == 0
    assert loop.network.accepted == 1
    assert loop.defects == []


def test_an_error_of_one_newcomer_is_no_reason_to_stop_accepting() -> None:
    loop = Loop(at_once)
    loop.listener.knocking.append(OSError(71, "Protocol error"))
    other = loop.connect()
    loop.send(metadata_frame(1), other)
    assert b"answer" in other.sent
    assert loop.network.refused == {}


def test_a_newcomer_that_cannot_be_watched_is_closed() -> None:
    loop = Loop(at_once)
    loop.poller.fails["register"] = OSError(28, "No space left on device")
    assert loop.connect().closed
    assert loop.network.connections == 0
    assert loop.defects == []


def test_a_connection_whose_interest_cannot_be_changed_is_closed_alone() -> None:
    loop = Loop(Parking())
    first, other = loop.connect(), loop.connect()
    loop.poller.fails["modify"] = OSError(12, "Cannot allocate memory")
    first.incoming += metadata_frame(2) + metadata_frame(4)
    other.incoming += metadata_frame(1)
    loop.turn([*loop.ready(first), *loop.ready(other)])
    loop.turn(loop.ready(first))
    assert first.closed
    assert not other.closed
    assert b"answer" in other.sent
    loop.stop()
    assert loop.defects == []


def test_a_sweep_goes_on_where_one_part_or_one_connection_fails(monkeypatch: pytest.MonkeyPatch, defects: list[str]) -> None:
    loop = Loop(at_once, connections_idle_ms_max=8_000)
    loop.fails_in_sweep = ValueError("injected")
    first, other = loop.connect(), loop.connect()
    broken: list[Connection] = []

    def give_back(connection: Connection) -> None:
        if connection.sock is first:
            broken.append(connection)
            raise ValueError("broken")

    monkeypatch.setattr(Connection, "give_back", give_back)
    loop.send(metadata_frame(1), first, other)
    for milliseconds in (5_500, 3_000):
        loop.clock.advance_ms(milliseconds)
        loop.turn()
    assert broken
    assert loop.network.closed == {"defect": 1, "idle": 1}
    assert set(loop.defects) == {"what is done each second: injected"}
    assert loop.swept >= 2
    assert defects
    defects.clear()


# -- which connections stay ------------------------------------------------------------------------------------------------------


def test_a_connection_without_a_request_is_closed_after_ten_seconds_and_one_that_asked_is_not() -> None:
    loop = Loop(at_once)
    socks = _, begun, asking = loop.connect(), loop.connect(), loop.connect()
    loop.send(metadata_frame(1)[:6], begun)
    loop.send(metadata_frame(1), asking)
    assert [sock.closed for sock in socks] == [False, False, False]
    loop.clock.advance_ms(9_000)
    loop.turn()
    assert [sock.closed for sock in socks] == [False, False, False]
    loop.clock.advance_ms(1_500)
    loop.turn()
    assert [sock.closed for sock in socks] == [True, True, False]
    assert loop.network.closed["silent"] == 2


def test_a_newcomer_takes_the_place_of_who_has_been_silent_longest() -> None:
    loop = Loop(at_once, connections_max=3)
    asking, silent, younger = loop.connect(), loop.connect(), loop.connect()
    loop.send(metadata_frame(1), asking)
    loop.clock.advance_ms(100)
    assert loop.connect().closed, "the others had not had a second"
    loop.clock.advance_ms(SECOND)
    newcomer = loop.connect()
    assert [sock.closed for sock in (silent, newcomer, younger, asking)] == [True, False, False, False]
    assert loop.network.closed["silent"] == 1
    assert loop.network.refused == {"max.connections": 1}


def test_connections_per_address_are_limited_as_the_setting_is_now() -> None:
    loop = Loop(at_once)
    socks = [loop.connect(), loop.connect()]
    loop.per_ip_max = 2
    socks.append(loop.knock())
    loop.connect("127.0.0.2")
    assert [sock.closed for sock in socks] == [False, False, True]
    assert loop.network.refused == {"max.connections.per.ip": 1}


def crowded(loop: Loop, hosts: list[str]) -> list[ScriptedSocket]:
    """A connection from each address, all of which have sent a request."""
    socks = [loop.connect(host) for host in hosts]
    loop.send(metadata_frame(1), *socks)
    return socks


def test_a_newcomer_takes_the_place_of_the_longest_idle_of_a_much_larger_crowd() -> None:
    loop = Loop(Parking(), connections_max=6)
    socks = crowded(loop, ["10.0.0.1"] * 5 + ["10.0.0.2"])
    loop.clock.advance_ms(2 * SECOND)
    loop.send(metadata_frame(3), socks[0])
    loop.send(metadata_frame(2), socks[1])
    loop.clock.advance_ms(SECOND)
    newcomers = [loop.connect("10.0.0.3")]
    loop.send(metadata_frame(1), newcomers[0])
    loop.clock.advance_ms(SECOND)
    newcomers.append(loop.connect("10.0.0.1"))
    assert [sock.closed for sock in socks[:2] + socks[5:]] == [False] * 3, "a busy, a parked one, and one of another address"
    assert [sock.closed for sock in socks[2:5]].count(True) == 1
    assert [sock.closed for sock in newcomers] == [False, True], "five are not twice as many as the crowd's own"
    assert loop.network.closed["crowded"] == 1


def test_a_crowd_that_knocks_all_the_time_makes_nobody_look_at_all_connections_more_than_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    idle = Connection.is_idle

    def is_idle(connection: Connection) -> bool:
        nonlocal looked
        looked += 1
        return bool(idle.fget(connection))  # type: ignore[attr-defined]

    monkeypatch.setattr(Connection, "is_idle", property(is_idle))
    loop = Loop(at_once, connections_max=50)
    crowded(loop, ["10.0.0.1"] * 50)
    for number in range(40):
        loop.clock.advance_ms(SECOND * 2 if number == 0 else 1)
        loop.knock("10.0.0.1")
        loop.connect(f"10.0.1.{number}")
    assert loop.network.refused["max.connections"] >= 40, "the crowd's own"
    assert loop.network.closed["crowded"] > 10
    assert looked <= 50 + 2 * loop.network.closed["crowded"]


def test_too_much_held_costs_the_one_behind_a_parked_request_and_not_the_honest_one_in_its_frame() -> None:
    loop = Loop(Parking(), held_bytes_max=5 << 18, connections_max=16)
    hog, honest = loop.connect(), loop.connect()
    produce = b"\0\0\0\x08\0\0\0\1\0\0" + b"\xff\xff" + bytes(10)
    for data in (metadata_frame(1, bytes(400_000)), *[b""] * 12, metadata_frame(2) + bytes(300_000)):
        loop.send(data, hog)
    for data in ((8 << 20).to_bytes(4, "big") + produce, bytes(700_000), *[b""] * 14):
        loop.clock.advance_ms(10)
        loop.send(data, honest)
    assert hog.closed
    assert not honest.closed
    assert loop.network.closed["memory"] == 1


def test_who_holds_less_than_its_share_is_not_closed_for_memory_however_long_it_stalls() -> None:
    loop = Loop(lambda request: [bytes(3000)], held_bytes_max=1 << 20, connections_max=16)
    slow, greedy = loop.connect(sock=ScriptedSocket(room=10)), loop.connect(sock=ScriptedSocket(room=10))
    loop.send(metadata_frame(1), slow)
    many = b"".join(map(metadata_frame, range(250)))
    for _ in range(2):
        loop.clock.advance_ms(SECOND)
        for data in (many, *[b""] * 4):
            loop.send(data, greedy)
    assert greedy.closed
    assert not slow.closed
    assert loop.network.closed["memory"] == 1


def test_a_request_knows_the_listener_that_it_came_through() -> None:
    origins = []

    def answer(request: Request) -> Parts | Pending:
        origins.append(request.origin)
        return [b"answer"]

    loop = Loop(answer)
    loop.send(metadata_frame(1), loop.connect("10.0.0.7"))
    assert origins == [("10.0.0.7", "PLAINTEXT", "User:ANONYMOUS")]


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (
            b"\0\0\0\x0a\0\x01\0\0\0\0\0\x01\xff\xff",
            "of a client that is too old, or did not ask which versions are supported: FETCH version 0",
        ),
        (b"\0\0\0\x01x", "that does not speak the protocol: a frame of 1 bytes"),
    ],
)
def test_an_old_client_is_told_from_one_that_speaks_something_else(
    caplog: pytest.LogCaptureFixture, frame: bytes, line: str
) -> None:
    loop = Loop(at_once)
    loop.send(frame, loop.connect())
    assert line in caplog.text
