"""Requests of any API and version whose fields are legal but extreme: the longest strings, the largest and smallest numbers,
empty and repeated elements, null wherever it is allowed.

The shape of a message comes from Kafka's descriptions; the bytes are written here, since no client library would write most of
this. `requests` makes one field extreme and keeps the others sensible, so that a request gets as far into its handler as it can,
and then makes all of them extreme at once.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker.protocol.api import APIS, ApiKey
from broker.protocol.control import request_class
from broker.protocol.schema import Field as Described
from broker.records.builder import NewRecord, build_batch

TOPIC, COMPACTED, DOOMED = "clicks", "compacted", "doomed"
LONGEST = 32_767  # of a string in the old encoding
LONGER = (40_000, 70_000)  # in the compact one, which has no such limit: beyond a signed and an unsigned 16-bit length
BYTES_MAX = 70_000
_WIDTHS = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d"}
_numbers = itertools.count(1)

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a message in one version. `kind` is its type, or that of its elements; `inside` are the fields of a struct."""

    name: str
    kind: str
    is_array: bool
    nullable: bool
    tag: int | None
    inside: tuple[Field, ...]


def fields_of(api_key: int, version: int) -> tuple[Field, ...]:
    """The fields of a request."""
    kind = request_class(api_key)
    return _fields(kind.fields, version, is_flexible=version in kind.flexible)


def _fields(found: tuple[Described, ...], version: int, *, is_flexible: bool) -> tuple[Field, ...]:
    return tuple(
        Field(
            name=field.name,
            kind="struct" if field.fields else field.kind,
            is_array=field.is_array,
            nullable=version in field.nullable,
            tag=field.tag if is_flexible and version in field.tagged else None,
            inside=_fields(field.fields, version, is_flexible=is_flexible),
        )
        for field in found
        if version in field.versions
    )


# -- what makes sense ----------------------------------------------------------------------------------------------------------------


def _batch() -> bytes:
    return bytes(build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=b"key", value=b"value")]))


def _new_name() -> str:
    return f"new-{next(_numbers)}"


SENSIBLE: Mapping[str, Any] = {
    **dict.fromkeys(("name", "topic", "topic_name", "topics", "topic_names"), TOPIC),
    **dict.fromkeys(("group_id", "groups", "groups_names", "coordinator_keys", "key"), _new_name),
    "resource_name": TOPIC,
    "resource_type": 2,
    "resource_types": 2,
    "records": _batch,
    "acks": -1,
    "count": 2,
    "num_partitions": 1,
    "replication_factor": 1,
    "max_wait_ms": 1,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "timeout_ms": 1_000,
    "session_timeout_ms": 1_000,
    "rebalance_timeout_ms": 1_000,
    "session_epoch": -1,
    "last_fetched_epoch": -1,
    "current_leader_epoch": -1,
    "replica_id": -1,
    "log_start_offset": -1,
    "timestamp": -1,
    "committed_leader_epoch": -1,
    "generation_id_or_member_epoch": -1,
    "member_epoch": -1,
    "retention_time_ms": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "endpoint_type": 1,
    "response_partition_limit": 100,
    "max_num_offsets": 1,
    "protocol_type": "consumer",
    "protocol_name": "range",
    "client_software_name": "tests",
    "client_software_version": "1",
    "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff",
    "configuration_keys": "retention.ms",
    "value": "1000000",
    "member_id": "",
    "offset": 0,
    "validate_only": False,
}
SENSIBLE_OF: Mapping[tuple[int, str], Any] = {
    (ApiKey.CREATE_TOPICS, "name"): _new_name,
    (ApiKey.CREATE_TOPICS, "assignments"): [],
    (ApiKey.CREATE_PARTITIONS, "assignments"): None,
    (ApiKey.JOIN_GROUP, "name"): "range",
    (ApiKey.DELETE_TOPICS, "topic_id"): bytes(16),
    (ApiKey.DELETE_TOPICS, "name"): DOOMED,
    (ApiKey.DELETE_TOPICS, "topic_names"): [DOOMED],
    (ApiKey.METADATA, "topic_id"): bytes(16),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "cursor"): None,
    (ApiKey.LIST_GROUPS, "states_filter"): [],
    (ApiKey.LIST_GROUPS, "types_filter"): [],
    **{(key, "name"): "retention.ms" for key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)},
}
_NOTHING = {"bool": True, "string": "text", "bytes": b"some", "records": b"", "uuid": bytes(16), "float64": 0.5}


def sensible(api_key: int, fields: tuple[Field, ...], topic_id: bytes) -> Tree:
    """Every field as a well-behaved client would set it; topics are `TOPIC`, by name or by `topic_id`."""
    return {field.name: _sensible(api_key, field, topic_id) for field in fields}


def _sensible(api_key: int, field: Field, topic_id: bytes) -> Any:
    if (api_key, field.name) in SENSIBLE_OF:
        value = SENSIBLE_OF[api_key, field.name]
        return value() if callable(value) else value
    if field.kind == "struct":
        inside = sensible(api_key, field.inside, topic_id)
        return [inside] if field.is_array else None if field.nullable else inside
    if field.kind == "uuid":
        value = topic_id
    elif field.name in SENSIBLE:
        value = SENSIBLE[field.name]
        value = value() if callable(value) else value
    elif field.nullable and not field.is_array:
        value = None
    else:
        value = _NOTHING.get(field.kind, 0)
    return [value] if field.is_array else value


# -- what is extreme -----------------------------------------------------------------------------------------------------------------


def extremes(field: Field, value: Any, *, flexible: bool) -> dict[str, Any]:
    """The extreme values of a field, each by a name, given its sensible value."""
    found: dict[str, Any] = {"null": None} if field.nullable else {}
    if field.is_array:
        elements = value or [_NOTHING.get(field.kind, 0) if field.kind != "struct" else None]
        if elements[0] is not None:
            found["thrice"] = elements * 3
        found["empty"] = []
    elif field.kind == "string":
        found |= {"empty": "", "longest": "x" * LONGEST, "wide": "é" * (LONGEST // 2), "unprintable": "a\nb\0c\x1b[1m d"}
        if flexible:
            found |= {f"{length}": "y" * length for length in LONGER}
    elif field.kind in ("bytes", "records"):
        found |= {"empty": b"", "one": b"\0", "longest": b"z" * BYTES_MAX}
    elif field.kind in _WIDTHS and field.kind.startswith("int"):
        bits = int(field.kind[3:])
        found |= {"least": -(1 << (bits - 1)), "longest": (1 << (bits - 1)) - 1, "minus one": -1}
    elif field.kind == "bool":
        found |= {"longest": True, "empty": False}
    elif field.kind == "uuid":
        found |= {"empty": bytes(16), "longest": b"\xff" * 16}
    return found


def requests(api_key: int, version: int, topic_id: bytes) -> Iterator[tuple[str, bytes]]:
    """What is extreme, and the request's body: nothing, each field in each way, and all fields in the same way."""
    fields = fields_of(api_key, version)
    flexible = version >= APIS[api_key].flexible_from

    def made(change: Callable[[Field, Any, tuple[str, ...]], Any]) -> bytes:
        return encode(fields, _changed(fields, sensible(api_key, fields, topic_id), change, ()), flexible=flexible)

    yield "nothing", made(lambda field, value, path: value)
    for path, field in _walk(fields, ()):
        value = _SensibleOf(api_key, topic_id)(field)
        for name, extreme in extremes(field, value, flexible=flexible).items():
            yield f"{'.'.join(path)}: {name}", made(_replacing(path, extreme))
    for name in ("longest", "least", "empty", "null", "thrice", *(map(str, LONGER) if flexible else ())):
        yield f"everything: {name}", made(lambda field, value, path: extremes(field, value, flexible=flexible).get(name, value))  # noqa: B023


@dataclass(frozen=True, slots=True)
class _SensibleOf:
    api_key: int
    topic_id: bytes

    def __call__(self, field: Field) -> Any:
        return _sensible(self.api_key, field, self.topic_id)


def _replacing(path: tuple[str, ...], extreme: Any) -> Callable[[Field, Any, tuple[str, ...]], Any]:
    return lambda field, value, place: extreme if place == path else value


def _walk(fields: tuple[Field, ...], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    for field in fields:
        yield (*above, field.name), field
        yield from _walk(field.inside, (*above, field.name))


def _changed(
    fields: tuple[Field, ...], tree: Tree, change: Callable[[Field, Any, tuple[str, ...]], Any], above: tuple[str, ...]
) -> Tree:
    """The tree with every value passed through `change`, inner ones first."""
    changed = {}
    for field in fields:
        value, path = tree[field.name], (*above, field.name)
        if field.inside and value is not None:
            inner = [_changed(field.inside, part, change, path) for part in (value if field.is_array else [value])]
            value = inner if field.is_array else inner[0]
        changed[field.name] = change(field, value, path)
    return changed


# -- bytes ---------------------------------------------------------------------------------------------------------------------------


def encode(fields: tuple[Field, ...], tree: Tree, *, flexible: bool) -> bytes:
    """A request's body in its wire format."""
    plain = b"".join(_value(field, tree[field.name], flexible) for field in fields if field.tag is None)
    if not flexible:
        return plain
    tagged = [(field.tag, _value(field, tree[field.name], flexible)) for field in fields if field.tag is not None]
    return plain + _varint(len(tagged)) + b"".join(_varint(tag or 0) + _varint(len(raw)) + raw for tag, raw in sorted(tagged))


def _value(field: Field, value: Any, flexible: bool) -> bytes:
    if not field.is_array:
        return _one(field, value, flexible)
    if value is None:
        return b"\0" if flexible else b"\xff\xff\xff\xff"
    head = _varint(len(value) + 1) if flexible else struct.pack(">i", len(value))
    element = Field(name=field.name, kind=field.kind, is_array=False, nullable=False, tag=None, inside=field.inside)
    return head + b"".join(_one(element, each, flexible) for each in value)


def _one(field: Field, value: Any, flexible: bool) -> bytes:
    if field.kind == "struct":
        if value is None:
            return b"\xff"
        return (b"\x01" if field.nullable else b"") + encode(field.inside, value, flexible=flexible)
    if field.kind in ("string", "bytes", "records"):
        if value is None:
            return b"\0" if flexible else b"\xff\xff" if field.kind == "string" else b"\xff\xff\xff\xff"
        raw = value.encode() if isinstance(value, str) else value
        return (_varint(len(raw) + 1) if flexible else struct.pack(">h" if field.kind == "string" else ">i", len(raw))) + raw
    if field.kind == "bool":
        return bytes([value])
    if field.kind == "uuid":
        return bytes(value)
    return struct.pack(_WIDTHS[field.kind], value)


def _varint(value: int) -> bytes:
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    raw.append(value)
    return bytes(raw)


def header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A request's header, in the header version that belongs to the API version."""
    raw = None if client_id is None else client_id.encode()
    head = struct.pack(">hhih", api_key, version, correlation_id, -1 if raw is None else len(raw)) + (raw or b"")
    return head + (b"\0" if version >= APIS[api_key].flexible_from else b"")
