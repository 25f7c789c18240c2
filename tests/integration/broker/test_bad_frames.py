"""Bad input from strangers, broken clients and port scanners: an error code or a closed connection, and the broker runs on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode

from tests.support.broker import LogbusBroker
from tests.support.raw_client import RawClient

RSS_GROWTH_BYTES_MAX = 32 << 20


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


def test_an_unknown_version_of_api_versions_is_answered_with_those_there_are(ours: LogbusBroker) -> None:
    with RawClient(ours.bootstrap) as client:
        body = client.request(ApiKey.API_VERSIONS, 77, b"", flexible=False)
    code, count = struct.unpack_from(">hi", body)
    rows = [struct.unpack_from(">hhh", body, 6 + 6 * row) for row in range(count)]
    assert code == ErrorCode.UNSUPPORTED_VERSION
    assert (18, APIS[18].first, APIS[18].last) in rows


def test_a_full_log_of_complaints_is_avoided(ours: LogbusBroker, tmp_path: Path) -> None:
    """A port scanner must not fill the disk with log lines."""
    before = ours.log_path.stat().st_size
    for _ in range(300):
        with RawClient(ours.bootstrap) as client:
            client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert client.is_closed_by_peer()
    assert ours.log_path.stat().st_size - before < 20_000
