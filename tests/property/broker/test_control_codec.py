"""The control codec against kafka-python's classes, in every API and version offered, and against corrupted bytes.

Both share Kafka's message descriptions; the code made from them differs. kio compares byte for byte in test_codecs.py. A case is
a function of its API, version and number, which a failure reports.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from broker.errors import ProtocolError
from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import ELEMENTS_MAX, decode_request, encode_response, request_class, response_class
from broker.protocol.framing import read_request
from broker.protocol.message_code import reader
from broker.protocol.schema import Field
from tests.support.examples import examples
from tests.support.kafka_python_messages import Tree, any_tree, message, their_class, tree_of

KINDS = {"request": request_class, "response": response_class}
every_api = pytest.mark.parametrize("api_key", [pytest.param(int(key), id=ApiKey(key).name) for key in APIS])
both_kinds = pytest.mark.parametrize("kind", KINDS)


def versions(api_key: int) -> range:
    return range(APIS[api_key].first, APIS[api_key].last + 1)


def cases(api_key: int, kind: str, count: int) -> Iterator[tuple[str, int, Tree, Random]]:
    """Some messages of each version: a name to report, the version, the message, and the generator for the rest of the case."""
    for version in versions(api_key):
        for number in range(examples(count)):
            name = f"{ApiKey(api_key).name} {kind} v{version} case {number}"
            chance = Random(name)
            yield name, version, any_tree(KINDS[kind](api_key).fields, version, chance), chance


@both_kinds
@every_api
def test_a_message_is_written_and_read_as_by_another_implementation(api_key: int, kind: str) -> None:
    ours = KINDS[kind](api_key)
    theirs = their_class(ours.__name__)
    for name, version, tree, _ in cases(api_key, kind, 6):
        raw = bytes(message(theirs, ours.fields, tree).encode(version=version))
        assert encode_response(message(ours, ours.fields, tree), version) == raw, name
        read, end = reader(ours, version)(raw, 0, [1000, 1000])
        assert tree_of(read, ours.fields, version) == tree, name
        assert end == len(raw), name


@every_api
def test_a_request_that_ends_too_early_is_refused(api_key: int) -> None:
    kind = request_class(api_key)
    for name, version, tree, chance in cases(api_key, "request", 3):
        raw = message(kind, kind.fields, tree).encode(version=version)
        for end in {0, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(10))} if raw else ():
            try:
                decode_request(api_key, version, memoryview(raw)[:end])
            except ProtocolError:
                continue
            raise AssertionError(f"{name}: {end} of {len(raw)} bytes were read as a request")


@every_api
def test_a_request_changed_in_one_byte_is_refused_or_has_no_null_and_no_element_too_many(api_key: int) -> None:
    kind = request_class(api_key)
    for name, version, tree, chance in cases(api_key, "request", 3):
        raw = message(kind, kind.fields, tree).encode(version=version)
        for _ in range(min(len(raw), 8)):
            spoiled = bytearray(raw)
            spoiled[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256)))
            try:
                read = decode_request(api_key, version, memoryview(spoiled))
            except ProtocolError:
                continue
            assert has_no_null_where_none_may_be(read, kind.fields, version), (name, spoiled)
            budget = [ELEMENTS_MAX, ELEMENTS_MAX]
            reader(kind, version)(bytes(spoiled), 0, budget)
            assert budget[1] - budget[0] <= len(raw), (name, spoiled)  # no more elements than bytes


def may_be_none(field: Field, version: int) -> bool:
    """A missing id is the zero id; an absent tagged struct is None."""
    return version in field.nullable or field.kind == "uuid" or (version in field.tagged and field.default is None)


def has_no_null_where_none_may_be(read: Any, fields: tuple[Field, ...], version: int) -> bool:
    for field in fields:
        if version not in field.versions:
            continue
        value = getattr(read, field.name)
        if value is None:
            if not may_be_none(field, version):
                return False
        elif field.fields:
            parts = value if field.is_array else [value]
            if not all(has_no_null_where_none_may_be(each, field.fields, version) for each in parts):
                return False
    return True


@both_kinds
@every_api
def test_a_null_that_the_description_does_not_have_is_never_written(api_key: int, kind: str) -> None:
    ours = KINDS[kind](api_key)
    for name, version, tree, _ in cases(api_key, kind, 1):
        for field in ours.fields:
            if field.name not in tree or field.kind == "bool" or may_be_none(field, version):
                continue  # Python accepts any value as a bool
            try:
                message(ours, ours.fields, {**tree, field.name: None}).encode(version=version)
            except (TypeError, AttributeError, struct.error):
                continue
            raise AssertionError(f"{name}: {field.name} was written as null")


@every_api
def test_unknown_tags_are_stepped_over(api_key: int) -> None:
    kind = request_class(api_key)
    for name, version, tree, chance in cases(api_key, "request", 2):
        if version not in kind.flexible:
            continue
        for field in kind.fields:
            if version in field.tagged:
                tree[field.name] = [] if field.default == () else field.default  # defaults are not written
        raw = message(kind, kind.fields, tree).encode(version=version)
        assert raw[-1:] == b"\0", name  # the message's own tag section, which comes last
        values = [chance.randbytes(chance.randrange(1, 100)) for _ in range(chance.randint(1, 3))]
        tags = b"".join(bytes((100 + number, len(value))) + value for number, value in enumerate(values))
        spoken = raw[:-1] + bytes([len(values)]) + tags
        assert tree_of(decode_request(api_key, version, memoryview(spoken)), kind.fields, version) == tree, name
        for end in (len(raw), len(spoken) - 1):
            with pytest.raises(ProtocolError):
                decode_request(api_key, version, memoryview(spoken[:end]))


@every_api
def test_a_header_is_read_in_the_version_that_goes_with_the_api(api_key: int) -> None:
    for version in versions(api_key):
        for client_id in (None, "", "é", "kafka-python"):
            asked = their_class(request_class(api_key).__name__)(version=version)
            asked.with_header(correlation_id=-7, client_id=client_id)
            head = asked.encode_header(flexible=version in request_class(api_key).flexible)
            found = read_request(memoryview(head + b"body"))
            assert (found.api_key, found.version, found.correlation_id, found.client_id) == (api_key, version, -7, client_id)
            assert bytes(found.body) == b"body"
