"""Bad input from strangers, broken clients and port scanners: an error code or a closed connection, and the broker runs on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.protocol.api import APIS, ApiKey, ErrorCode
from tests.support.batches import altered, plain_batch
from tests.support.broker import LogbusBroker
from tests.support.frames import CapturedPair, captured_pairs
from tests.support.raw_client import Closed, RawClient, byte_by_byte
from tests.support.topics import create_topic, read_partition
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body

RSS_GROWTH_BYTES_MAX = 32 << 20
HEADER = struct.pack(">hhih4s", ApiKey.API_VERSIONS, 0, 1, 4, b"test")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(autouse=True)
def goes_on(ours: LogbusBroker) -> Iterator[None]:
    """Whatever a test sent, the same process answers the next client afterwards and has not grown in memory."""
    pid, before = ours.pid, ours.rss_bytes()
    yield
    with RawClient(ours.bootstrap) as client:
        assert client.request(ApiKey.API_VERSIONS, 0, b"", flexible=False)
    assert ours.pid == pid
    assert ours.alive
    assert ours.rss_bytes() - before < RSS_GROWTH_BYTES_MAX


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 100 * 1024 * 1024 + 1) + b"x" * 100,
        struct.pack(">i", 3) + b"abc",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 200,
        struct.pack(">i", 14) + struct.pack(">hhih4s", 999, 0, 1, 4, b"test"),
        struct.pack(">i", 14) + struct.pack(">hhih4s", -1, 0, 1, 4, b"test"),
        struct.pack(">i", 14) + struct.pack(">hhih4s", ApiKey.METADATA, 99, 1, 4, b"test"),
        struct.pack(">i", 10) + struct.pack(">hhih", ApiKey.METADATA, 1, 1, 5000),
        struct.pack(">i", 18) + struct.pack(">hhih4si", ApiKey.METADATA, 1, 1, 4, b"test", 1_000_000_000),
        struct.pack(">i", 20) + struct.pack(">hhih4s", ApiKey.METADATA, 9, 1, 4, b"test") + bytes.fromhex("00ffffffff7f"),
        struct.pack(">i", 21) + struct.pack(">hhih4sih", ApiKey.METADATA, 1, 1, 4, b"test", 1, 1) + b"\xff",
    ],
    ids=[
        "empty frame", "negative length", "most negative length", "2 GiB", "one byte over the limit", "shorter than a header",
        "HTTP", "TLS hello", "unknown API", "negative API", "unknown version", "client id that is not there",
        "array of a thousand million", "compact array of 2^34", "bad UTF-8",
    ],
)  # fmt: skip
def test_what_makes_no_sense_closes_the_connection(ours: LogbusBroker, sent: bytes) -> None:
    with RawClient(ours.bootstrap) as client:
        client.send_bytes(sent)
        assert client.is_closed_by_peer()


def test_a_negative_string_length_reads_nothing_it_should_not(ours: LogbusBroker) -> None:
    """The codec reads any negative length as null, Kafka closes the connection: either way nothing is created or revealed."""
    with RawClient(ours.bootstrap) as client:
        client.send_frame(struct.pack(">hhih4sih", ApiKey.METADATA, 1, 1, 4, b"test", 1, -7))
        try:
            answer = client.receive_frame()
        except Closed:
            answer = struct.pack(">i", 0)
    assert answer.endswith(struct.pack(">i", 0)), "no topics"


def test_an_unknown_version_of_api_versions_is_answered_with_those_there_are(ours: LogbusBroker) -> None:
    with RawClient(ours.bootstrap) as client:
        body = client.request(ApiKey.API_VERSIONS, 77, b"", flexible=False)
    code, count = struct.unpack_from(">hi", body)
    rows = [struct.unpack_from(">hhh", body, 6 + 6 * row) for row in range(count)]
    assert code == ErrorCode.UNSUPPORTED_VERSION
    assert (18, APIS[18].first, APIS[18].last) in rows


def test_half_a_frame_holds_up_nobody_else(ours: LogbusBroker) -> None:
    with RawClient(ours.bootstrap) as slow, RawClient(ours.bootstrap) as other:
        slow.send_bytes(struct.pack(">i", len(HEADER)) + HEADER[:5])
        assert other.request(ApiKey.API_VERSIONS, 0, b"", flexible=False)
        slow.send_bytes(HEADER[5:])
        assert slow.receive_frame()


def test_a_client_that_leaves_in_the_middle_of_a_frame_is_forgotten(ours: LogbusBroker) -> None:
    for _ in range(50):
        with RawClient(ours.bootstrap) as client:
            client.send_bytes(struct.pack(">i", 1_000_000) + b"x" * 1000)
    with RawClient(ours.bootstrap) as client:
        assert client.request(ApiKey.API_VERSIONS, 0, b"", flexible=False)
    assert "Traceback" not in ours.log_path.read_text()


def test_pipelined_requests_are_answered_in_order(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic)
    with RawClient(ours.bootstrap) as client:
        sent = []
        for number in range(50):
            produce = produce_body({(topic, 0): plain_batch(3)})
            sent.append(client.send_request(ApiKey.PRODUCE, 9, bytes(produce), flexible=True))
            wait_ms = 300 if number == 10 else 0
            fetch = fetch_body(Wanted(topic=topic, offset=10**6 if number % 7 == 0 else 0), wait_ms=wait_ms)
            sent.append(client.send_request(ApiKey.FETCH, 12, bytes(fetch), flexible=True))
        assert [struct.unpack_from(">i", client.receive_frame())[0] for _ in sent] == sent


def test_what_a_connection_asked_before_is_done_before_what_it_reads(ours: LogbusBroker, topic: str) -> None:
    """OffsetCommit then OffsetFetch, Produce then ListOffsets: pipelined, and answered as if sent one after the other."""
    create_topic(ours.bootstrap, topic)
    name = struct.pack(">h", len(topic)) + topic.encode()
    with RawClient(ours.bootstrap) as client:
        for offset in (7, 8, 9):
            row = struct.pack(">iqh", 0, offset, 0)
            commit = name + struct.pack(">ihq", -1, 0, -1) + struct.pack(">i", 1) + name + struct.pack(">i", 1) + row
            client.send_request(ApiKey.OFFSET_COMMIT, 2, commit, flexible=False)
            asked = name + struct.pack(">i", 1) + name + struct.pack(">ii", 1, 0)
            client.send_request(ApiKey.OFFSET_FETCH, 1, asked, flexible=False)
        for offset in (7, 8, 9):
            committed = client.receive_frame()
            assert committed.endswith(struct.pack(">ih", 0, ErrorCode.NONE))
            assert struct.unpack_from(">iq", client.receive_frame(), 4 + 4 + len(name) + 4) == (0, offset)
    with RawClient(ours.bootstrap) as client:
        for _ in range(3):
            client.send_request(ApiKey.PRODUCE, 9, bytes(produce_body({(topic, 0): plain_batch(3)}, acks=1)), flexible=True)
            latest = struct.pack(">ii", -1, 1) + name + struct.pack(">iiq", 1, 0, -1)
            client.send_request(ApiKey.LIST_OFFSETS, 1, latest, flexible=False)
        for end in (3, 6, 9):
            client.receive_frame()
            (found,) = struct.unpack(">q", client.receive_frame()[-8:])
            assert found >= end, "it waits until what was sent before it is on the disk, and may see more then"


BATCH = plain_batch(3)
BAD_BATCHES = {
    "no records": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "cut short": (bytes(BATCH[:-1]), ErrorCode.INVALID_RECORD),
    "two batches": (bytes(BATCH + BATCH), ErrorCode.INVALID_RECORD),
    "length lies": (bytes(BATCH[:8] + struct.pack(">i", 10) + BATCH[12:]), ErrorCode.INVALID_RECORD),
    "old magic": (bytes(altered(BATCH, magic=1)), ErrorCode.INVALID_RECORD),
    "count and last offset differ": (bytes(altered(BATCH, record_count=2)), ErrorCode.INVALID_RECORD),
    "control batch": (bytes(altered(BATCH, attributes=0x20)), ErrorCode.INVALID_RECORD),
    "flipped bit": (bytes(BATCH[:-1] + bytes([BATCH[-1] ^ 1])), ErrorCode.CORRUPT_MESSAGE),
    "unknown codec": (bytes(altered(BATCH, attributes=7)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_leaves_no_trace(ours: LogbusBroker, topic: str, name: str) -> None:
    raw, code = BAD_BATCHES[name]
    create_topic(ours.bootstrap, topic)
    with RawClient(ours.bootstrap) as client:
        for records, expected in ((BATCH, ErrorCode.NONE), (raw, code), (BATCH, ErrorCode.NONE)):
            body = produce_body({(topic, 0): None if records is None else bytes(records)})
            answer = produce_answer(client.request(ApiKey.PRODUCE, 9, bytes(body), flexible=True))
            assert answer[topic, 0].error_code == expected
    assert [message.offset() for message in read_partition(ours.bootstrap, topic)] == list(range(6))


@pytest.mark.parametrize(("offset", "code"), [(-5, ErrorCode.OFFSET_OUT_OF_RANGE), (10**9, ErrorCode.OFFSET_OUT_OF_RANGE)])
def test_a_fetch_outside_the_log_says_so(ours: LogbusBroker, topic: str, offset: int, code: ErrorCode) -> None:
    create_topic(ours.bootstrap, topic)
    with RawClient(ours.bootstrap) as client:
        body = fetch_body(Wanted(topic=topic, offset=offset))
        answer = fetch_answer(client.request(ApiKey.FETCH, 12, bytes(body), flexible=True))
    assert answer.responses[0].partitions[0].error_code == code


def test_a_fetch_from_the_middle_of_a_batch_gives_the_whole_batch(ours: LogbusBroker, topic: str) -> None:
    create_topic(ours.bootstrap, topic)
    with RawClient(ours.bootstrap) as client:
        produce = produce_body({(topic, 0): bytes(plain_batch(10))})
        assert produce_answer(client.request(ApiKey.PRODUCE, 9, bytes(produce), flexible=True))[topic, 0].error_code == 0
        fetch = fetch_body(Wanted(topic=topic, offset=5, bytes_max=1), wait_ms=5_000)
        answer = fetch_answer(client.request(ApiKey.FETCH, 12, bytes(fetch), flexible=True))
    records = answer.responses[0].partitions[0].records
    assert struct.unpack_from(">q", records)[0] == 0
    assert len(records) == len(plain_batch(10))


PAIRS = captured_pairs()


def _pair_name(pair: CapturedPair) -> str:
    return f"{pair.api_key}-v{pair.version}-{pair.client}"


@pytest.mark.skipif(not PAIRS, reason="the captured frames are not beside this checkout")
@pytest.mark.parametrize("pair", PAIRS, ids=_pair_name)
def test_what_todays_clients_send_is_answered_also_byte_by_byte(ours: LogbusBroker, pair: CapturedPair) -> None:
    """Supported versions get a response with the request's correlation id; others close the connection (except ApiVersions)."""
    frame = struct.pack(">i", len(pair.request)) + pair.request
    offered = pair.api_key in APIS and pair.version in APIS[pair.api_key]
    for pieces in ([frame], byte_by_byte(frame)):
        with RawClient(ours.bootstrap) as client:
            if offered:
                client.send_bytes(*pieces)
                assert client.receive_frame()[:4] == pair.request[4:8]
            else:
                client.send_bytes(frame)
                assert client.is_closed_by_peer()


def test_a_full_log_of_complaints_is_avoided(ours: LogbusBroker, tmp_path: Path) -> None:
    """A port scanner must not fill the disk with log lines."""
    before = ours.log_path.stat().st_size
    for _ in range(300):
        with RawClient(ours.bootstrap) as client:
            client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert client.is_closed_by_peer()
    assert ours.log_path.stat().st_size - before < 20_000
