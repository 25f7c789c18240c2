"""Every API in every version offered, against another implementation of the protocol (kio), byte for byte; and what is cut short or
changed on the way.

kio does not use the message descriptions that our codec reads. The responses of Produce and Fetch have encoders of their own, with
tests in tests/unit/broker/protocol.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import APIS, ApiKey, Field
from logbus_broker.protocol.codec import ELEMENTS_MAX, decode_request, encode_response, reader, request_class, response_class

from tests.support.examples import examples
from tests.support.kio_messages import requests, responses, written

EXAMPLES = 5  # for each of nearly three hundred
BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}
OFFERED = [
    pytest.param(int(key), version, id=f"{ApiKey(key).name}-v{version}")
    for key, api in APIS.items()
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


@pytest.mark.parametrize(("api_key", "version"), [case for case in OFFERED if case.values[0] not in BY_HAND])
def test_a_response_is_written_as_another_implementation_writes_it(api_key: int, version: int) -> None:
    @settings(max_examples=examples(EXAMPLES))
    @given(responses(api_key, version))
    def check(message: object) -> None:
        raw = written(message)
        assert encode_response(response_class(api_key).decode(raw, version=version), version) == raw

    check()


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_request_that_ends_too_early_is_refused(api_key: int, version: int) -> None:
    @settings(max_examples=examples(EXAMPLES))
    @given(requests(api_key, version), st.randoms(use_true_random=False))
    def check(message: object, chance: Random) -> None:
        raw = written(message)
        for end in {0, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(5))} if raw else ():
            with pytest.raises(ProtocolError):
                decode_request(api_key, version, memoryview(raw)[:end])

    check()


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_request_changed_in_one_byte_is_refused_or_has_no_null_and_no_element_too_many(api_key: int, version: int) -> None:
    kind = request_class(api_key)

    @settings(max_examples=examples(EXAMPLES))
    @given(requests(api_key, version), st.randoms(use_true_random=False))
    def check(message: object, chance: Random) -> None:
        raw = written(message)
        for _ in range(min(len(raw), 8)):
            changed = bytearray(raw)
            changed[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256)))
            try:
                read = decode_request(api_key, version, memoryview(changed))
            except ProtocolError:
                continue
            assert nulls_are_allowed(read, kind.fields, version), changed
            budget = [ELEMENTS_MAX, ELEMENTS_MAX]
            reader(kind, version)(bytes(changed), 0, budget)
            assert budget[1] - budget[0] <= len(raw), changed  # no more elements than bytes

    check()


def nulls_are_allowed(read: Any, fields: tuple[Field, ...], version: int) -> bool:
    """A missing id is the zero id; an absent tagged struct is None."""
    for field in fields:
        if version not in field.versions:
            continue
        value = getattr(read, field.name)
        if value is None:
            if not (version in field.nullable or field.kind == "uuid" or (version in field.tagged and field.default is None)):
                return False
        elif field.fields:
            parts = value if field.is_array else [value]
            if not all(nulls_are_allowed(part, field.fields, version) for part in parts):
                return False
    return True
