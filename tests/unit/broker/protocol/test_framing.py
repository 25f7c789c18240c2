from __future__ import annotations

import pytest
from logbus_broker.errors import ProtocolError, UnsupportedVersion
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import frame_length, read_request, response_head

LIMIT = 1 << 20


def frame(length: int) -> bytearray:
    return bytearray(length.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize("length", [-1, 0, 7, LIMIT + 1, (1 << 31) - 1])
def test_a_length_that_lies_is_refused_before_anything_is_allocated(length: int) -> None:
    with pytest.raises(ProtocolError, match=r"socket\.request\.max\.bytes"):
        frame_length(frame(length), 0, 4, limit=LIMIT)


def test_a_length_of_which_bytes_are_missing_is_not_judged_yet() -> None:
    assert frame_length(frame(9), 0, 3, limit=LIMIT) is None
    assert frame_length(frame(9), 0, 4, limit=LIMIT) == 9


def request_bytes(api_key: int, version: int, client: bytes | None = b"me", tail: bytes = b"") -> memoryview:
    name = b"\xff\xff" if client is None else len(client).to_bytes(2, "big") + client
    return memoryview(api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x2a" + name + tail)


def test_a_classic_header_is_read() -> None:
    request = read_request(request_bytes(ApiKey.METADATA, 4, tail=b"body"))
    assert (request.api_key, request.version, request.correlation_id, request.client_id) == (3, 4, 42, "me")
    assert bytes(request.body) == b"body"
    assert response_head(request, 7) == b"\0\0\0\x0b\0\0\0\x2a"


def test_a_flexible_header_steps_over_unknown_tags() -> None:
    request = read_request(request_bytes(ApiKey.METADATA, 12, client=None, tail=b"\x01\x05\x03abcbody"))
    assert request.client_id is None
    assert bytes(request.body) == b"body"
    assert response_head(request, 7) == b"\0\0\0\x0c\0\0\0\x2a\0"


def test_api_versions_answers_with_the_old_header_in_every_version() -> None:
    assert response_head(read_request(request_bytes(ApiKey.API_VERSIONS, 3, tail=b"\0")), 7) == b"\0\0\0\x0b\0\0\0\x2a"


def test_an_unknown_api_versions_version_is_kept_for_its_handler() -> None:
    assert not read_request(request_bytes(ApiKey.API_VERSIONS, 99)).supported


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (ApiKey.PRODUCE, 2), (ApiKey.FETCH, 99)])
def test_what_is_not_offered_is_named(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion, match="not supported"):
        read_request(request_bytes(api_key, version))


def test_a_client_id_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="client id"):
        read_request(memoryview(b"\0\x03\0\x04\0\0\0\x01\x7f\xff"))
