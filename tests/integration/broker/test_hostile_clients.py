"""Slow, greedy and hostile clients on real sockets: whatever they do costs them their own connection, other clients nothing, and
the broker no memory that it does not get back."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.filesystem import KEPT, OpenFiles
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.records import NewRecord, build_batch

from tests.support.batches import NOW_MS, plain_batch
from tests.support.broker import LogbusBroker
from tests.support.raw_client import Closed, RawClient
from tests.support.scraping import connections, metrics_settings, scrape
from tests.support.topics import create_topic
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body

MIB = 1 << 20
HELD_MAX = 16 * MIB
SETTINGS = {
    "queued.max.request.bytes": str(HELD_MAX),
    "logbus.output.queue.max.bytes": str(MIB),
    "logbus.frame.read.max.ms": "2000",
    "max.connections": "2500",
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path_factory.mktemp("broker"), settings={**SETTINGS, **metrics_settings()}) as running:
        create_topic(running.bootstrap, "honest")
        yield running


@pytest.fixture(autouse=True)
def goes_on(ours: LogbusBroker) -> Iterator[None]:
    """Whatever a test did, the same process keeps serving, no connection is left, and memory held for clients is released."""
    pid = ours.pid
    yield
    produce(ours, "honest")
    assert ours.pid == pid
    wait_until(lambda: connections(ours) == 0, what="the end of all connections")
    assert scrape(ours)["logbus_connection_memory_bytes"] == 0


def produce(broker: LogbusBroker, topic: str, raw: bytes | None = None) -> int:
    """One Produce by an honest client; returns its error code."""
    with RawClient(broker.bootstrap) as client:
        body = produce_body({(topic, 0): bytes(plain_batch(3)) if raw is None else raw})
        return int(produce_answer(client.request(ApiKey.PRODUCE, 9, bytes(body), flexible=True))[topic, 0].error_code)


def produce_frame_of(length: int) -> bytes:
    """The start of a Produce frame that announces `length` bytes."""
    return struct.pack(">ihhih4s", length, ApiKey.PRODUCE, 9, 1, 4, b"slow")


@contextlib.contextmanager
def crowd(broker: LogbusBroker, count: int) -> Iterator[list[socket.socket]]:
    host, _, port = broker.bootstrap.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_SECONDS)) for _ in range(count)]


def test_idle_connections_and_waiting_fetches_cost_only_themselves(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic)
    fetch = bytes(fetch_body(Wanted(topic=topic), wait_ms=60_000))
    before = ours.rss_bytes()
    with crowd(ours, 500), crowd(ours, 1000) as waiting:
        for sock in waiting:
            header = struct.pack(">hhih4sb", ApiKey.FETCH, 12, 1, 4, b"test", 0)
            sock.sendall(struct.pack(">i", len(header) + len(fetch)) + header + fetch)
        name = 'kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}'
        wait_until(lambda: scrape(ours)[name] == 1000, what="a thousand waiting fetches")
        assert ours.rss_bytes() - before < 80 * MIB
        assert produce(ours, "honest") == 0
        assert scrape(ours)[name] == 1000, "nobody was woken by another topic's records"
        assert produce(ours, topic) == 0
        for sock in waiting:
            sock.settimeout(PATIENCE_SECONDS)
            assert sock.recv(4), "every one of them got the record"


def ask_for_ever(sock: socket.socket, request: bytes) -> None:
    """Never reads a response."""
    while True:
        sock.sendall((struct.pack(">i", len(request)) + request) * 1000)


def test_many_clients_that_never_read_lose_their_connections_before_memory_is_lost(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic, partitions=500)
    body = struct.pack(">ih", 1, len(topic)) + topic.encode() + b"\0"
    request = struct.pack(">hhih4s", ApiKey.METADATA, 4, 1, 4, b"deaf") + body
    before, closed = ours.rss_bytes(), scrape(ours).get('logbus_connections_closed_total{reason="memory"}', 0)
    with crowd(ours, 40) as deaf:
        for sock in deaf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                ask_for_ever(sock, request)
        name = 'logbus_connections_closed_total{reason="memory"}'
        wait_until(lambda: scrape(ours).get(name, 0) > closed, what="a connection that was closed")
        assert produce(ours, "honest") == 0
        assert scrape(ours)["logbus_connection_memory_bytes"] <= HELD_MAX
        assert ours.rss_bytes() - before < 6 * HELD_MAX


def test_many_half_sent_frames_are_closed_before_memory_is_lost_and_honest_ones_pass(ours: LogbusBroker) -> None:
    before = ours.rss_bytes()
    with crowd(ours, 60) as hoarding:
        for number, sock in enumerate(hoarding):
            sock.settimeout(PATIENCE_SECONDS)
            with contextlib.suppress(OSError):  # closed by the broker, which is the point
                sock.sendall(produce_frame_of(50 * MIB) + bytes(2 * MIB))
            if number % 10 == 0:
                assert produce(ours, "honest") == 0
        assert scrape(ours)['logbus_connections_closed_total{reason="memory"}'] > 0
        assert ours.rss_bytes() - before < 5 * HELD_MAX


def test_a_frame_that_never_ends_costs_its_sender_the_connection(ours: LogbusBroker) -> None:
    with crowd(ours, 2) as (slow, silent):
        silent.sendall(produce_frame_of(1000))
        slow.sendall(produce_frame_of(1000))
        slow.settimeout(0.1)
        closed = False
        while not closed:  # a byte now and then does not keep it open
            assert produce(ours, "honest") == 0
            try:
                slow.sendall(b"x")
                closed = slow.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                closed = True
        silent.settimeout(PATIENCE_SECONDS)
        assert silent.recv(1) == b""


def test_a_decompression_bomb_is_stored_as_the_small_batch_it_is_and_hurts_nobody(ours: LogbusBroker, topic: str) -> None:
    """A search by time has to decompress it: off the event loop, into a bounded buffer; what does not fit is an error."""
    create_topic(ours.bootstrap, topic)
    bomb = bytes(build_batch([NewRecord(timestamp=NOW_MS, value=bytes(8 * MIB))] * 32, codec=4))
    assert len(bomb) < MIB
    before = ours.rss_bytes()
    assert produce(ours, topic, bomb) == 0
    with RawClient(ours.bootstrap) as client:
        search = struct.pack(">ibih", -1, 0, 1, len(topic)) + topic.encode() + struct.pack(">iiiq", 1, 0, -1, NOW_MS)
        for _ in range(5):
            answer = client.request(ApiKey.LIST_OFFSETS, 4, search, flexible=False)
            code = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0]
            assert code == ErrorCode.CORRUPT_MESSAGE
            assert produce(ours, "honest") == 0
        body = bytes(fetch_body(Wanted(topic=topic), wait_ms=5_000))
        (row,) = fetch_answer(client.request(ApiKey.FETCH, 12, body, flexible=True)).responses[0].partitions
        assert row.records is not None
        assert len(row.records) == len(bomb)
    assert ours.rss_bytes() - before < 96 * MIB


def test_out_of_descriptors_the_log_goes_on_and_newcomers_come_when_others_leave(tmp_path: Path) -> None:
    """The last descriptors are reserved for the log: a crowd takes all the others, and segments still roll."""
    settings = {"log.segment.bytes": "2000", **metrics_settings()}
    with LogbusBroker(tmp_path / "broker", settings=settings, open_files=150) as small:
        create_topic(small.bootstrap, "rolling")
        with RawClient(small.bootstrap) as honest:
            assert honest.request(ApiKey.API_VERSIONS, 0, b"", flexible=False)
            with crowd(small, 300):
                body = bytes(produce_body({("rolling", 0): bytes(plain_batch(3, value=b"x" * 300))}))
                for _ in range(KEPT):  # each rolls a new segment, whose file stays open for a while
                    answer = produce_answer(honest.request(ApiKey.PRODUCE, 9, body, flexible=True))
                    assert answer["rolling", 0].error_code == 0
                cpu = small.cpu_seconds()
                wait_until(lambda: _answers(small), what="a place: the others at the door and inside never ask")
                assert scrape(small)["process_open_fds"] <= OpenFiles(150).connections_end + 6, "the log needs a few"
                assert small.cpu_seconds() - cpu < 1.5, "it does not spin over the crowd at the door"
            wait_until(lambda: _answers(small), what="the broker that answers again")
        assert scrape(small)['logbus_connections_refused_total{reason="descriptors"}'] > 0
    assert "open files" in small.log_path.read_text()


def _answers(broker: LogbusBroker) -> bool:
    try:
        with RawClient(broker.bootstrap) as client:
            return bool(client.request(ApiKey.API_VERSIONS, 0, b"", flexible=False))
    except (Closed, OSError):
        return False


def test_every_line_of_the_log_is_one_of_ours(ours: LogbusBroker) -> None:
    """Runs after all of the above: no log line begins with something a client sent."""
    evil = b'\ntime=now level=CRITICAL message="all is lost"\r\x1b[2J'
    with RawClient(ours.bootstrap) as client:
        client.send_frame(struct.pack(">hhih", ApiKey.METADATA, 1, 1, len(evil)) + evil + struct.pack(">ih", 1, len(evil)) + evil)
        client.receive_frame()
    with RawClient(ours.bootstrap) as client:
        client.send_bytes(evil * 10)
        assert client.is_closed_by_peer()
    for line in ours.log_path.read_text().splitlines():
        assert line.startswith("time=2")
        assert line.isprintable()
