"""Every control API in every version offered, against another implementation of the protocol (kio), byte for byte.

kio does not use the message descriptions that our codec reads. Produce and Fetch have separate codecs and separate tests:
tests/unit/broker/protocol.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import decode_request, encode_response, response_class
from tests.support.examples import examples
from tests.support.kio_messages import requests, responses, written

EXAMPLES = 5  # for each of nearly three hundred; test_control_codec.py covers more nulls and empty arrays
BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}
OFFERED = [
    pytest.param(int(key), version, id=f"{ApiKey(key).name}-v{version}")
    for key, api in APIS.items()
    if key not in BY_HAND
    for version in range(api.first, api.last + 1)
]


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_request_is_read_as_it_was_written(api_key: int, version: int) -> None:
    @settings(max_examples=examples(EXAMPLES))
    @given(requests(api_key, version))
    def check(message: object) -> None:
        raw = written(message)
        read = decode_request(api_key, version, memoryview(raw))
        assert bytes(read.encode(version=version)) == raw

    check()


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_response_is_written_as_another_implementation_writes_it(api_key: int, version: int) -> None:
    @settings(max_examples=examples(EXAMPLES))
    @given(responses(api_key, version))
    def check(message: object) -> None:
        raw = written(message)
        assert encode_response(response_class(api_key).decode(raw, version=version), version) == raw

    check()
