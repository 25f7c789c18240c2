"""The control plane's codec: kafka-python's message classes behind two functions.

Only requests that are rare or small come here; produce and fetch have codecs of their own. The package was written for
clients, but its classes decode requests and encode responses as well; whatever hostile bytes make it raise becomes a
ProtocolError. It takes null for any string or array; the schema says where null may be, and elsewhere it is refused, as Kafka
does: so no handler meets a None that its message does not have, nor more elements than a broker has partitions.

The package writes a decoder for each message and version, in which every list is a loop over `range(count)`, and in which a
struct with tags copies all that follows in the request. Both names, `range` and `bytes`, are ours in those functions
(`_Reading`): so a count that a peer made up is refused before anything is read for it, and a megabyte that is tags in ten
thousand places is not copied ten thousand times. tests/unit/broker/protocol/test_control.py fails where another release of the
package does it otherwise.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from broker.errors import ProtocolError
from broker.light_package import import_lightly
from broker.protocol.api import ApiKey

# Which module of the package has an API's messages. It builds them from their schemas as it is imported, a few milliseconds each:
# the first request of a kind pays for its own, so that a start pays for none.
_MODULES: Mapping[str, tuple[ApiKey, ...]] = {
    "metadata.api_versions": (ApiKey.API_VERSIONS,),
    "metadata.metadata": (ApiKey.METADATA,),
    "metadata.find_coordinator": (ApiKey.FIND_COORDINATOR,),
    "producer.produce": (ApiKey.PRODUCE,),
    "producer.transaction": (ApiKey.INIT_PRODUCER_ID,),
    "consumer.fetch": (ApiKey.FETCH,),
    "consumer.offsets": (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    "consumer.group": (
        *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP),
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE),
    ),
    "admin.topics": (
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
        *(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.ELECT_LEADERS),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ),
    "admin.configs": (
        *(ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
        ApiKey.LIST_CONFIG_RESOURCES,
    ),
    "admin.groups": (ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS),
    "admin.cluster": (ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_LOG_DIRS),
}
_MODULE_OF: Mapping[int, str] = {key: module for module, keys in _MODULES.items() for key in keys}

# In all lists of one request together; twice the default logbus.partitions.max: who names more means harm, or another broker. So
# many short names take the loop 40 ms to read, and a handler makes up to a kilobyte of each.
ELEMENTS_MAX = 20_000
# A request of half a megabyte may have tags in a hundred places; clients of today send none in any.
COPIED_BYTES_MAX = 64 << 20
_DECODE_ERRORS = (UnicodeDecodeError, IndexError, struct.error, ValueError, OverflowError, MemoryError, TypeError)


@cache
def _class(api_key: int, kind: str) -> Any:
    """The message class of an API: kind is "request" or "response"."""
    family, _, _ = (module := _MODULE_OF[api_key]).partition(".")
    for package in ("kafka", f"kafka.protocol.{family}"):
        import_lightly(package)
    found = importlib.import_module(f"kafka.protocol.{module}")
    return next(
        each
        for each in vars(found).values()
        if getattr(each, "API_KEY", None) == api_key and getattr(each, "type", None) == kind and each._class_version is None
    )


def response_class(api_key: int) -> Any:
    """The message class of an API's response; its nested classes are attributes of it."""
    return _class(api_key, "response")


def request_class(api_key: int) -> Any:
    """The message class of an API's request."""
    return _class(api_key, "request")


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Read a request's body (behind its header); ProtocolError where the bytes make no sense."""
    kind = _counting_class(api_key, version)
    _reading.begin()
    try:
        message = kind.decode(bytes(body), version=version)
    except _DECODE_ERRORS as error:
        raise ProtocolError(f"a body of api key {api_key} version {version} that cannot be read: {error}") from error
    finally:
        _reading.end()
    _check(message, _rules(api_key, version), api_key)
    return message


class _Reading:
    """What the request that is being read has cost so far; the loop reads one at a time."""

    elements = 0
    copied_bytes = 0
    is_on = False  # a client in the same process reads by the same functions

    def begin(self) -> None:
        self.elements = self.copied_bytes = 0
        self.is_on = True

    def end(self) -> None:
        self.is_on = False

    def range_of(self, count: int) -> range:
        """What decoders call with the length of each list. A negative one is nonsense, and no element."""
        if self.is_on:
            self.elements += max(count, 0)
            if self.elements > ELEMENTS_MAX:
                raise ValueError(f"{self.elements} elements in its lists: at most {ELEMENTS_MAX} are taken")
        return range(count)

    def bytes_of(self, view: memoryview) -> bytes:
        """What decoders call for a field of bytes, and, where a struct has tags, with all that follows in the request."""
        if self.is_on:
            self.copied_bytes += len(view)
            if self.copied_bytes > COPIED_BYTES_MAX:
                raise ValueError(f"tags in so many places: at most {COPIED_BYTES_MAX} bytes are copied for them")
        return bytes(view)


_reading = _Reading()


@cache
def _counting_class(api_key: int, version: int) -> Any:
    """The request's class, with its decoder for this version made and counting."""
    kind = request_class(api_key)
    flexible = kind.flexible_version_q(version)
    decoder = kind._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=kind[None])
    decoder.__globals__.update({"range": _reading.range_of, "bytes": _reading.bytes_of})
    tagged_fields = importlib.import_module("kafka.protocol.schemas.fields.codecs.tagged_fields")
    vars(tagged_fields)["range"] = _reading.range_of
    return kind


class _Rule(NamedTuple):
    """One field of a message: whether it may be null, and the rules of its elements or parts."""

    name: str
    nullable: bool
    is_array: bool
    inside: tuple[_Rule, ...]


@cache
def _rules(api_key: int, version: int) -> tuple[_Rule, ...]:
    return _rules_of(request_class(api_key)._struct, version)


def _rules_of(struct_field: Any, version: int) -> tuple[_Rule, ...]:
    rules = []
    for field in struct_field.untagged_fields(version):
        nullable = field.nullable_for_version_q(version) or field._type_str == "uuid"  # the codec gives None for the zero id
        inner = field.array_of if field.is_array() else field
        inside = _rules_of(inner, version) if inner.is_struct() else ()
        if inside or field.is_array() or not nullable:
            rules.append(_Rule(field.name, nullable, field.is_array(), inside))
    return tuple(rules)


def _check(message: Any, rules: tuple[_Rule, ...], api_key: int) -> None:
    for name, nullable, is_array, inside in rules:
        value = getattr(message, name)
        if value is None:
            if not nullable:
                raise ProtocolError(f"a body of api key {api_key} whose {name} is null")
            continue
        if is_array and not inside and None in value:
            raise ProtocolError(f"a body of api key {api_key} with a null among its {name}")
        if inside:
            for part in value if is_array else (value,):
                _check(part, inside, api_key)


def encode_response(message: Any, version: int) -> bytes:
    """Write a response's body, without its header."""
    message._header = None
    return bytes(message.encode(version=version))
