"""A broker's connections to its peers, over real sockets: which events are reported, and when."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.network.peer import CONNECT_SECONDS_MAX, RETRY_SECONDS_MAX
from logbus_broker.network.peer_connection import Account, PeerSecurity
from logbus_broker.protocol import codec
from logbus_broker.protocol.api import ApiKey
from logbus_broker.replication.interfaces import PeerRequest
from logbus_broker.security import sasl
from logbus_broker.security.state import ScramMechanism, SecurityState

from benchmarks.peers.authority import Authority
from tests.support.peer_world import PeerWorld, ScriptedPeer

FETCH = 1
FLEXIBLE_VERSION = 17


@pytest.fixture
def world() -> Iterator[PeerWorld]:
    world = PeerWorld()
    yield world
    world.close()


@pytest.fixture
def peer() -> Iterator[ScriptedPeer]:
    peer = ScriptedPeer()
    yield peer
    peer.die()


@pytest.fixture
def dead() -> Iterator[ScriptedPeer]:
    """Its port is not listening, and no other process can take it."""
    peer = ScriptedPeer(is_listening=False)
    yield peer
    peer.die()


def test_a_broker_is_reached_when_it_has_answered(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.peers.know({2: peer.endpoint})
    world.until(peer.is_greeted)
    assert not world.peers.is_reached(2), "an open port is not yet a broker"
    _, version, correlation_id, rest = peer.read()
    assert (version, rest) == (0, b"")
    peer.answer(correlation_id, b"\0\0\0\0\0\0")
    world.until(lambda: world.peers.is_reached(2))
    assert world.events == [("reached", 2)]


def test_answers_come_in_the_order_of_their_requests(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    world.send(2, b"first")
    world.send(2, b"second")
    world.turn()
    asked = [peer.read() for _ in range(2)]
    assert [(key, version, body) for key, version, _, body in asked] == [(FETCH, 4, b"first"), (FETCH, 4, b"second")]
    for number, (_, _, correlation_id, _) in enumerate(asked):
        peer.answer(correlation_id, b"answer %d" % number)
    world.until(lambda: len(world.answers) == 2)
    assert world.answers == [b"answer 0", b"answer 1"]


def test_flexible_versions_have_tags_before_their_bodies(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    world.send(2, b"body", version=FLEXIBLE_VERSION)
    world.turn()
    _, _, correlation_id, rest = peer.read()
    assert rest == b"\0body"
    peer.answer(correlation_id, b"\0answer")
    world.until(lambda: bool(world.answers))
    assert world.answers == [b"answer"]


@pytest.mark.parametrize("size", [0, 65_532, 262_138, 262_140, 262_144, 3 << 20])
def test_answers_of_any_size_arrive_whole(peer: ScriptedPeer, request: pytest.FixtureRequest, size: int) -> None:
    """However small a request may be: an answer is none."""
    world = PeerWorld(frame_bytes_max=1024)
    request.addfinalizer(world.close)
    world.reach(peer)
    content = bytes(range(251)) * (size // 251 + 1)
    world.send(2, b"")
    world.send(2, b"")
    world.turn()
    numbers = [peer.read()[2] for _ in range(2)]
    assert peer.sock is not None
    bodies = zip(numbers, (content[:size], b"end"), strict=True)
    unsent = memoryview(b"".join(struct.pack(">ii", len(body) + 4, number) + body for number, body in bodies))
    peer.sock.setblocking(False)
    while len(world.answers) < 2:
        if unsent:
            try:
                unsent = unsent[peer.sock.send(unsent[:100_000]) :]
            except BlockingIOError:
                pass
        world.turn(0.001)
    assert world.answers == [content[:size], b"end"]


def test_a_request_of_megabytes_leaves_whole(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    content = bytes(5 << 20)
    world.send(2, content)
    assert peer.sock is not None
    arrived = bytearray()
    peer.sock.setblocking(False)
    while len(arrived) < 4 or len(arrived) < 4 + struct.unpack_from(">i", arrived)[0]:
        world.turn(0.001)
        try:
            arrived += peer.sock.recv(1 << 20)
        except BlockingIOError:
            continue
    (length,) = struct.unpack_from(">i", arrived)
    assert length + 4 == len(arrived)
    assert arrived.endswith(content)


def test_a_process_that_died_is_known_at_once(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    world.send(2, b"never answered")
    world.turn()
    peer.die()
    world.until(lambda: ("refused", 2) in world.events)
    assert world.answers == [None]
    assert world.events == [("reached", 2), ("closed", 2), ("refused", 2)], "and no time has passed"


def test_a_connection_that_was_only_lost_is_made_again(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    peer.hang_up()
    world.until(lambda: ("closed", 2) in world.events)
    assert not world.peers.is_reached(2)
    world.reach_known(peer)
    assert world.events == [("reached", 2), ("closed", 2), ("reached", 2)]


def test_pauses_between_attempts_grow_to_a_second(world: PeerWorld, dead: ScriptedPeer) -> None:
    world.peers.know({2: dead.endpoint})
    at: list[float] = []
    while len(at) < 9:
        before = len(world.events)
        world.turn()
        world.until(lambda: not world.poller.owners)  # no attempt is in progress
        if len(world.events) > before:
            at.append(world.clock.monotonic())
        world.clock.advance_ms(10)
    pauses = [round((later - earlier) * 1000) for earlier, later in pairwise(at)]
    wanted = [50, 100, 200, 400, 800, *[round(RETRY_SECONDS_MAX * 1000)] * 3]
    assert all(0 <= pause - least <= 10 for pause, least in zip(pauses, wanted, strict=True)), pauses  # steps of 10 ms
    assert set(world.events) == {("refused", 2)}


def test_a_broker_that_comes_back_is_reached_again(world: PeerWorld, dead: ScriptedPeer) -> None:
    world.peers.know({2: dead.endpoint})
    world.until(lambda: bool(world.events))
    dead.listen()
    world.clock.advance_ms(50)
    world.reach_known(dead)
    assert world.events == [("refused", 2), ("reached", 2)]


def test_a_stopped_process_is_neither_reached_nor_refused(world: PeerWorld, peer: ScriptedPeer) -> None:
    """Its kernel accepts the connection, but the process never answers."""
    world.peers.know({2: peer.endpoint})
    world.until(peer.is_greeted)
    world.clock.advance_ms(round(CONNECT_SECONDS_MAX * 1000))
    world.turn()
    assert peer.read()[0] == 18
    with pytest.raises(EOFError):
        peer.read()
    assert world.events == []


def test_a_request_without_a_connection_is_answered_with_nothing(world: PeerWorld) -> None:
    world.send(2, b"to nobody")
    assert world.answers == [], "not from inside of the call"
    assert world.peers.due <= world.clock.monotonic()
    world.turn()
    assert world.answers == [None]


def test_a_peer_that_owes_an_answer_for_too_long_loses_the_connection(peer: ScriptedPeer) -> None:
    world = PeerWorld(replica_socket_ms_max=2_000)
    world.reach(peer)
    world.send(2, b"")
    world.turn()
    world.clock.advance_ms(2_000)
    world.turn()
    assert world.answers == []
    world.clock.advance_ms(1_001)
    world.turn()
    assert world.answers == [None]
    assert ("closed", 2) in world.events
    world.close()


@pytest.mark.parametrize(
    "nonsense",
    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x03abc", struct.pack(">ii", 4, 77), b"HTTP/1.1 400 Bad Request\r\n\r\n"],
)
def test_what_is_no_answer_ends_the_connection(world: PeerWorld, peer: ScriptedPeer, nonsense: bytes) -> None:
    world.reach(peer)
    world.send(2, b"")
    world.turn()
    assert peer.sock is not None
    peer.sock.sendall(nonsense)
    world.until(lambda: ("closed", 2) in world.events)
    assert world.answers == [None]


def test_an_answer_that_nobody_asked_for_ends_the_connection(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    peer.answer(2, b"")
    world.until(lambda: len(world.events) > 1)
    assert (world.events, world.answers) == ([("reached", 2), ("closed", 2)], [])


def test_a_handler_that_fails_costs_its_connection_only(world: PeerWorld, peer: ScriptedPeer) -> None:
    def fails(answer: memoryview | None) -> None:
        raise RuntimeError("a defect")

    world.reach(peer)
    world.peers.send(2, PeerRequest(FETCH, 4, b""), fails)
    world.turn()
    peer.answer(peer.read()[2], b"")
    world.until(lambda: ("closed", 2) in world.events)
    peer.sock = None  # the next connection has a new socket
    world.reach_known(peer)
    assert world.events == [("reached", 2), ("closed", 2), ("reached", 2)]


def test_a_broker_that_is_not_known_any_more_is_left_without_an_event(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    world.send(2, b"")
    world.peers.know({})
    world.turn()
    assert world.answers == [None]
    assert peer.sock is not None
    assert peer.sock.recv(100) == b""
    assert world.events == [("reached", 2)]
    assert world.poller.owners == {}


def test_a_broker_that_moved_is_reached_at_its_new_address(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.reach(peer)
    other = ScriptedPeer()
    world.reach(other)
    assert world.events == [("reached", 2), ("reached", 2)]
    other.die()


def test_no_connection_is_made_to_oneself(world: PeerWorld, peer: ScriptedPeer) -> None:
    world.peers.know({1: peer.endpoint})
    world.turn()
    assert world.poller.owners == {}


def test_names_are_looked_up_elsewhere_and_every_address_is_tried(
    world: PeerWorld, peer: ScriptedPeer, dead: ScriptedPeer
) -> None:
    world.peers.know({2: Endpoint(host="broker.example", port=peer.port)})
    world.turn()
    ((endpoint, then),) = world.looked_up
    assert endpoint.host == "broker.example"
    then([(socket.AF_INET, ("127.0.0.1", one.port)) for one in (dead, peer)])
    world.reach_known(peer)
    assert world.events == [("reached", 2)], "one address that refuses says nothing"


def test_a_name_without_an_address_is_tried_again_and_not_taken_for_dead(world: PeerWorld) -> None:
    world.peers.know({2: Endpoint(host="broker.example", port=9092)})
    world.turn()
    world.looked_up.pop()[1]([])
    world.clock.advance_ms(50)
    world.turn()
    assert len(world.looked_up) == 1
    assert world.events == []


# TLS and logins

SHA_512 = ScramMechanism.SCRAM_SHA_512
USERS = SecurityState(
    credentials={("brokers", SHA_512): sasl.credential_of_password(SHA_512, "secret", b"salt")}, nobody_key=b"key"
)


def account(password: str = "secret", mechanism: str = "SCRAM-SHA-512") -> Account:
    nonces = count()
    return Account(mechanism=mechanism, user="brokers", password=password, new_nonce=lambda: f"client{next(nonces)}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def encrypted_peer(authority: Authority) -> Iterator[ScriptedPeer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("peer"))
    peer = ScriptedPeer(context=context)
    yield peer
    peer.die()


def test_a_broker_that_has_logged_in_by_tls_sends_and_receives_and_logs_in_again(
    authority: Authority, encrypted_peer: ScriptedPeer
) -> None:
    peer, context = encrypted_peer, ssl.create_default_context(cafile=authority.certificate)
    world = PeerWorld(PeerSecurity(context=lambda: context, account=account()))
    world.peers.know({2: peer.endpoint})
    world.log_in(peer, USERS, lifetime_ms=10_000)
    assert world.events == []
    world.reach_known(peer)
    world.send(2, bytes(300_000))
    world.until(peer.is_greeted)
    assert peer.sock is not None
    peer.sock.setblocking(False)
    arrived = bytearray()
    content = bytes(range(251)) * 20_000
    while len(arrived) < 300_000:
        world.turn(0.001)
        try:
            arrived += peer.sock.recv(1 << 20)
        except ssl.SSLWantReadError:
            continue
    assert arrived.endswith(bytes(300_000))
    (number,) = struct.unpack_from(">8xi", arrived)
    unsent = memoryview(struct.pack(">ii", len(content) + 4, number) + content)
    while not world.answers:
        try:
            unsent = unsent[peer.sock.send(unsent[:50_000]) :] if unsent else unsent
        except ssl.SSLWantWriteError:
            pass
        world.turn(0.001)
    assert world.answers == [content]
    peer.sock.settimeout(PATIENCE_SECONDS)
    for _ in range(2):
        world.clock.advance_ms(6_990)
        world.turn()
        assert not peer.is_greeted()
        world.clock.advance_ms(11)
        world.turn()
        world.log_in(peer, USERS, lifetime_ms=10_000)
    world.send(2, b"last")
    world.until(peer.is_greeted)
    assert peer.read()[3] == b"last"
    assert world.events == [("reached", 2)]
    world.close()


def test_a_login_that_is_refused_is_told_and_tried_again(peer: ScriptedPeer, caplog: pytest.LogCaptureFixture) -> None:
    world = PeerWorld(PeerSecurity(account=account(password="guessed")))
    world.peers.know({2: peer.endpoint})
    world.log_in(peer, USERS)
    world.until(lambda: "cannot connect to broker 2 at 127.0.0.1" in caplog.text)
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in caplog.text
    peer.hang_up()
    world.clock.advance_ms(50)
    world.until(peer.is_greeted)
    correlation_id, _ = peer.read_message(ApiKey.SASL_HANDSHAKE)
    peer.answer_message(correlation_id, ApiKey.SASL_HANDSHAKE, error_code=33, mechanisms=["PLAIN"])
    world.until(lambda: "does not offer sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512: PLAIN" in caplog.text)
    assert world.events == []
    world.close()


def test_a_broker_that_cannot_be_verified_is_told_nothing(encrypted_peer: ScriptedPeer, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context()
    world = PeerWorld(PeerSecurity(context=lambda: context, account=account()))
    world.peers.know({2: encrypted_peer.endpoint})
    world.until(lambda: encrypted_peer.is_greeted() or "certificate is refused: unable to get" in caplog.text)
    assert "cannot connect to broker 2 at 127.0.0.1" in caplog.text
    assert not encrypted_peer.is_greeted()
    assert world.events == []
    world.close()


def test_a_password_is_sent_as_it_is_only_where_the_mechanism_is_plain() -> None:
    login = account(mechanism="PLAIN").log_in()
    next(login)
    handshake = codec.response_class(ApiKey.SASL_HANDSHAKE)(error_code=0, mechanisms=["PLAIN"])
    request = login.send(memoryview(handshake.encode(version=1)))
    assert codec.decode_request(request.api_key, request.version, memoryview(request.body)).auth_bytes == b"\0brokers\0secret"
    assert "secret" not in repr(account())
