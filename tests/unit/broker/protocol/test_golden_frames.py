"""What current clients really send is read, and our encoders reproduce byte for byte what Apache Kafka answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus_broker.errors import ProtocolError, UnsupportedVersion
from logbus_broker.health import NetworkCounters
from logbus_broker.network.connection import Connection
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import decode_request, encode_response, response_class
from logbus_broker.protocol.fetch import parse_fetch
from logbus_broker.protocol.framing import Request, read_request, response_head
from logbus_broker.protocol.produce import parse_produce

from tests.support.engine import Harness
from tests.support.frames import CapturedPair, captured_pairs
from tests.support.kio_messages import read_response
from tests.support.sockets import ScriptedSocket

OFFERED = [pair for pair in captured_pairs() if pair.api_key in APIS and pair.version in APIS[pair.api_key]]
NOT_OFFERED = [pair for pair in captured_pairs() if pair not in OFFERED]


def named(pair: CapturedPair) -> str:
    return f"{pair.api_key}v{pair.version}-{pair.client}"


def decode(request: Request) -> object:
    if request.api_key == ApiKey.PRODUCE:
        return parse_produce(request.body, request.version)
    if request.api_key == ApiKey.FETCH:
        return parse_fetch(request.body, request.version)
    return decode_request(request.api_key, request.version, request.body)


@pytest.mark.parametrize("pair", OFFERED, ids=named)
def test_a_captured_request_is_read(pair: CapturedPair) -> None:
    request = read_request(memoryview(pair.request))
    assert (request.api_key, request.version) == (pair.api_key, pair.version)
    assert decode(request) is not None


@pytest.mark.parametrize("pair", OFFERED, ids=named)
def test_every_truncation_of_a_captured_request_is_refused_cleanly(pair: CapturedPair) -> None:
    accepted = 0
    for cut in range(8, min(len(pair.request), 400)):
        try:
            decode(read_request(memoryview(pair.request[:cut])))
        except ProtocolError:
            continue
        accepted += 1
    # The general codec accepts a request without its optional trailing fields; Produce and Fetch have to be whole.
    assert accepted == 0 or pair.api_key not in (ApiKey.PRODUCE, ApiKey.FETCH)


@pytest.mark.parametrize("pair", [p for p in OFFERED if p.api_key not in (ApiKey.PRODUCE, ApiKey.FETCH)], ids=named)
def test_a_captured_response_is_written_back_byte_for_byte(pair: CapturedPair) -> None:
    flexible = pair.version >= APIS[pair.api_key].flexible_from and pair.api_key != ApiKey.API_VERSIONS
    body = pair.response[5:] if flexible else pair.response[4:]
    message = response_class(pair.api_key).decode(body, version=pair.version)
    assert encode_response(message, pair.version) == body


@pytest.mark.parametrize("pair", NOT_OFFERED, ids=named)
def test_what_is_not_offered_is_refused_by_name(pair: CapturedPair) -> None:
    with pytest.raises(UnsupportedVersion):
        read_request(memoryview(pair.request))


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


@pytest.mark.parametrize("pair", OFFERED, ids=named)
def test_a_captured_request_that_comes_byte_by_byte_is_answered_in_its_own_version(broker: Harness, pair: CapturedPair) -> None:
    sock = ScriptedSocket(piece=1)
    sock.incoming += len(pair.request).to_bytes(4, "big") + pair.request
    connection = Connection(
        sock,  # type: ignore[arg-type]
        "peer:1",
        dispatch=broker.engine.dispatch,
        config=broker.engine.config,
        now=0.0,
        on_ready=lambda ready: None,
        network=NetworkCounters(),
    )
    while sock.incoming:
        connection.receive(0.0)
    for _ in range(5):  # lets waiting fetches and joins end
        broker.settle()
        broker.settle(after_ms=60_000)
    connection.send(0.0)
    assert sock.sent, "no answer"
    request = read_request(memoryview(pair.request))
    head_bytes = len(response_head(request, 0))
    body = bytes(sock.sent[head_bytes:])
    assert sock.sent[:head_bytes] == response_head(request, len(body))
    read_response(pair.api_key, pair.version, body)
