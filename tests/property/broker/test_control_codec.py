"""The control codec against kafka-python's classes, in every API and version that is offered, and against bytes that went wrong.

Kafka's descriptions are common to both; what is made of them is not. kio compares byte for byte in test_codecs.py.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import ELEMENTS_MAX, decode_request, encode_response, request_class, response_class
from broker.protocol.framing import read_request
from broker.protocol.message_code import reader
from broker.protocol.schema import Field
from tests.support.examples import examples
from tests.support.kafka_python_messages import message, their_class, tree_of, trees

EXAMPLES = 5  # of each of some hundred and fifty, and of their answers
KINDS = {"request": request_class, "response": response_class}
OFFERED = [
    pytest.param(int(key), version, id=f"{ApiKey(key).name}-v{version}")
    for key, api in APIS.items()
    for version in range(api.first, api.last + 1)
]
quickly = settings(max_examples=examples(EXAMPLES), suppress_health_check=[HealthCheck.too_slow])


@cache
def any_tree(api_key: int, version: int, kind: str) -> st.SearchStrategy[dict[str, Any]]:
    return trees(KINDS[kind](api_key).fields, version)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_each_side_reads_what_the_other_wrote(api_key: int, version: int, kind: str) -> None:
    ours, theirs = KINDS[kind](api_key), their_class(api_key, kind)

    @quickly
    @given(any_tree(api_key, version, kind))
    def check(tree: dict[str, Any]) -> None:
        raw = message(theirs, ours.fields, tree).encode(version=version)
        written = encode_response(message(ours, ours.fields, tree), version)
        read, end = reader(ours, version)(raw, 0, [1000, 1000])
        assert tree_of(read, ours.fields, version) == tree
        assert end == len(raw)
        if (api_key, kind) == (ApiKey.API_VERSIONS, "response") and tree["error_code"]:
            assert written == raw  # they read an error in the oldest form
        else:
            assert tree_of(theirs.decode(written, version=version), ours.fields, version) == tree

    check()


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_request_cut_or_changed_in_one_byte_is_refused_or_read(api_key: int, version: int) -> None:
    kind = request_class(api_key)

    @quickly
    @given(any_tree(api_key, version, "request"), st.randoms(use_true_random=False))
    def check(tree: dict[str, Any], chance: Any) -> None:
        raw = message(kind, kind.fields, tree).encode(version=version)
        for end in range(len(raw)):
            with pytest.raises(ProtocolError):
                decode_request(api_key, version, memoryview(raw)[:end])
        for _ in range(min(len(raw), 30)):
            spoiled = bytearray(raw)
            spoiled[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256)))
            budget = [ELEMENTS_MAX, ELEMENTS_MAX]
            try:
                read = decode_request(api_key, version, memoryview(spoiled))
            except ProtocolError:
                continue
            assert no_null_where_none_may_be(read, kind.fields, version)
            reader(kind, version)(bytes(spoiled), 0, budget)
            assert budget[1] - budget[0] <= len(raw), "no more elements than bytes"

    check()


def no_null_where_none_may_be(read: Any, fields: tuple[Field, ...], version: int) -> bool:
    for field in fields:
        if version not in field.versions:
            continue
        value = getattr(read, field.name)
        if value is None:
            if version not in field.nullable and field.kind != "uuid":
                return False
        elif field.is_array or field.fields:
            parts = value if field.is_array else [value]
            if field.fields and not all(no_null_where_none_may_be(each, field.fields, version) for each in parts):
                return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_null_that_the_description_does_not_have_is_never_written(api_key: int, version: int, kind: str) -> None:
    ours = KINDS[kind](api_key)

    @settings(max_examples=1)
    @given(any_tree(api_key, version, kind))
    def check(tree: dict[str, Any]) -> None:
        for field in ours.fields:
            if version in field.versions and version not in field.nullable and field.kind != "uuid":
                with pytest.raises((TypeError, AttributeError, struct.error)):
                    message(ours, ours.fields, {**tree, field.name: None}).encode(version=version)

    check()


@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_unknown_tags_are_stepped_over(api_key: int, version: int) -> None:
    kind = request_class(api_key)

    @quickly
    @given(any_tree(api_key, version, "request"), st.lists(st.binary(max_size=100), min_size=1, max_size=3))
    def check(tree: dict[str, Any], values: list[bytes]) -> None:
        without = {field.name: field.default for field in kind.fields if version in field.tagged}
        known = {**tree, **{name: [] if value == () else value for name, value in without.items() if name in tree}}
        raw = message(kind, kind.fields, known).encode(version=version)
        assert raw[-1:] == b"\0"  # the message's own section of tags, which is last
        more = b"".join(bytes((100 + number, len(value))) + value for number, value in enumerate(values))
        spoken = raw[:-1] + bytes([len(values)]) + more
        assert tree_of(decode_request(api_key, version, memoryview(spoken)), kind.fields, version) == known
        with pytest.raises(ProtocolError):
            decode_request(api_key, version, memoryview(spoken[: len(raw)]))

    if version in kind.flexible:
        check()


@pytest.mark.parametrize("client_id", [None, "", "é", "kafka-python"])
@pytest.mark.parametrize(("api_key", "version"), OFFERED)
def test_a_header_is_read_in_the_version_that_goes_with_the_api(api_key: int, version: int, client_id: str | None) -> None:
    theirs, ours = their_class(api_key, "request"), request_class(api_key)
    tree = dict.fromkeys((), None)
    asked = theirs(version=version, **tree)
    asked.with_header(correlation_id=-7, client_id=client_id)
    head = asked.encode_header(flexible=version in ours.flexible)
    found = read_request(memoryview(head + b"body"))
    assert (found.api_key, found.version, found.correlation_id, found.client_id) == (api_key, version, -7, client_id)
    assert bytes(found.body) == b"body"
