"""Message classes with decoders and encoders, generated from Kafka's descriptions: one function for each struct and version.

A function is Python source that is generated here and compiled once, at the first request of its API, so that it costs no startup
time: adjacent fields of fixed size are one `struct` call, and nothing is looked up while a message is read. The source contains
names and numbers from the descriptions only, never a peer's bytes.

A decoder takes (data, position, budget) and returns (message, next position). `budget` is a list of two numbers: how many
elements all lists and tag sections of this request may still have, and the initial limit. A count is charged before any of its
elements are read. Unknown tags are skipped, not copied. On malformed bytes a decoder raises one of _DECODE_ERRORS, which becomes
a ProtocolError; a null is rejected where the description does not allow it, as Kafka does: so no handler meets an unexpected
None, or more elements than a broker has partitions. Instructions for a request and its answer, compared with kafka-python's
classes: 39 % for a Heartbeat, 43 % for an OffsetCommit of ten partitions, 35 % for an OffsetFetch, 47 % for a Metadata.

Written by hand are the responses of Produce and Fetch (produce.py, fetch.py) and a replica's Fetch (replica_fetch.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar
from uuid import UUID

from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import ApiKey, Field, describe
from logbus_broker.protocol.framing import read_uvarint, write_uvarint

_DECODE_ERRORS = (IndexError, struct.error, ValueError, ProtocolError)  # a UnicodeDecodeError is a ValueError
_FIXED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}
_BLOBS = ("string", "bytes", "records")
_UNSET: Any = object()

Data = bytes | memoryview


class Message:
    """A message or a nested struct: its fields are attributes, its structs are classes inside its class."""

    __slots__ = ()
    fields: ClassVar[tuple[Field, ...]] = ()
    flexible: ClassVar[Any] = None

    @classmethod
    def decode(cls, data: bytes, *, version: int) -> Any:
        """Read a body; raises _DECODE_ERRORS if the bytes are malformed."""
        return reader(cls, version)(bytes(data), 0, [1 << 31, 1 << 31])[0]

    def encode(self, *, version: int) -> bytes:
        out = bytearray()
        writer(type(self), version)(out, self)
        return bytes(out)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in self.fields)})"


def _new_class(name: str, fields: tuple[Field, ...], flexible: Any) -> type[Message]:
    """The class of a message, with the classes of its structs as attributes."""
    names: dict[str, Any] = {"_UNSET": _UNSET}
    arguments, lines = [], []
    for field in fields:
        # A list as a default would be shared by all messages created without one. So each message creates its own list, and the
        # default in the description is an empty tuple, which cannot be changed by mistake.
        fresh = field.default == () and field.is_array
        names[f"d_{field.name}"] = _UNSET if fresh else field.default
        arguments.append(f"{field.name}=d_{field.name}")
        lines.append(
            f"self.{field.name} = [] if {field.name} is _UNSET else {field.name}"
            if fresh
            else f"self.{field.name} = {field.name}"
        )
    source = f"def __init__(self, {'*, ' if fields else ''}{', '.join(arguments)}):\n " + "\n ".join(lines or ["pass"])
    init = _compiled("__init__", source, names, f"<{name}>")
    inside = {field.kind: _new_class(field.kind, field.fields, flexible) for field in fields if field.fields}
    slots = tuple(field.name for field in fields)
    body = {"__slots__": slots, "__init__": init, "fields": fields, "flexible": flexible, "readers": {}, "writers": {}, **inside}
    return type(name, (Message,), body)


def reader(kind: Any, version: int) -> Callable[[Data, int, list[int]], tuple[Any, int]]:
    """The decoder of a class in a version; generated at its first use."""
    decoder = kind.readers.get(version)
    if decoder is None:
        decoder = kind.readers[version] = _make_reader(kind, version)
    return decoder  # type: ignore[no-any-return]


def writer(kind: Any, version: int) -> Callable[[bytearray, Any], None]:
    """The encoder of a class in a version; generated at its first use."""
    encoder = kind.writers.get(version)
    if encoder is None:
        encoder = kind.writers[version] = _make_writer(kind, version)
    return encoder  # type: ignore[no-any-return]


def _compiled(name: str, source: str, names: dict[str, Any], where: str) -> Any:
    exec(compile(source, where, "exec"), names)
    return names[name]


def _plain(kind: Any, version: int) -> list[Field]:
    return [field for field in kind.fields if version in field.versions and not _is_tag(kind, field, version)]


def _is_tag(kind: Any, field: Field, version: int) -> bool:
    return version in kind.flexible and version in field.tagged


def _tags(kind: Any, version: int) -> list[Field]:
    fields = [field for field in kind.fields if version in field.versions and _is_tag(kind, field, version)]
    return sorted(fields, key=lambda field: field.tag)


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Adjacent fields of fixed size together, every other field alone."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and _is_fixed(field) and _is_fixed(runs[-1][0]):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def _is_fixed(field: Field) -> bool:
    return field.kind in _FIXED and not field.is_array


# -- reading ------------------------------------------------------------------


_INT16, _INT32 = struct.Struct(">h").unpack_from, struct.Struct(">i").unpack_from


def _length(data: Data, at: int, unpack: Any) -> tuple[int, int]:
    """A length or count in the message's encoding: `unpack` is None in the flexible one. -1 is null, less is invalid."""
    if unpack is None:
        size, at = read_uvarint(data, at)
        return size - 1, at
    (size,) = unpack(data, at)
    if size < -1:
        raise ValueError(f"a length of {size}")
    return size, at + (2 if unpack is _INT16 else 4)


def _view(data: Data, at: int, unpack: Any, name: str, nullable: bool) -> tuple[Any, int]:
    if unpack is None and (byte := data[at]) < 0x80:  # nearly always: a call costs more than this comparison
        size, at = byte - 1, at + 1
    else:
        size, at = _length(data, at, unpack)
    if size < 0:
        if not nullable:
            raise ValueError(f"{name} is null")
        return None, at
    end = at + size
    if end > len(data):
        raise ValueError(f"{name} is longer than the request")
    return data[at:end], end


def _blob(data: Data, at: int, unpack: Any, name: str, nullable: bool) -> tuple[Any, int]:
    raw, at = _view(data, at, unpack, name, nullable)
    return (None if raw is None else bytes(raw)), at


def _text(data: Data, at: int, unpack: Any, name: str, nullable: bool) -> tuple[Any, int]:
    raw, at = _view(data, at, unpack, name, nullable)
    if raw is not None and len(raw) > 0x7FFF:  # only in the flexible encoding; an answer in an older version could not hold it
        raise ValueError(f"{name} has {len(raw)} bytes")
    return (None if raw is None else str(raw, "utf-8")), at


def _uuid(data: Data, at: int) -> tuple[UUID | None, int]:
    raw, end = bytes(data[at : at + 16]), at + 16
    if len(raw) < 16:
        raise ValueError("an id beyond the end of the request")
    return (UUID(bytes=raw) if any(raw) else None), end


def _charge(budget: list[int], count: int) -> None:
    budget[0] -= count
    if budget[0] < 0:
        raise ValueError(f"{count} elements in its lists, where at most {budget[1]} are taken in all")


def _skip(data: Data, at: int, size: int) -> int:
    if at + size > len(data):
        raise ValueError("a tag longer than the request")
    return at + size


_READ_NAMES: dict[str, Any] = {
    "uvarint": read_uvarint, "length": _length, "blob": _blob, "text": _text, "view": _view, "uuid": _uuid, "charge": _charge,
    "skip": _skip, "INT16": _INT16, "INT32": _INT32, "unpack_from": struct.unpack_from,
}  # fmt: skip


def _make_reader(kind: Any, version: int) -> Any:
    # The object is created without calling __init__, which would set every field twice; so fields that this version does not have
    # on the wire get their defaults here, line by line.
    names: dict[str, Any] = {**_READ_NAMES, "kind": kind, "new": kind.__new__}
    lines = ["message = new(kind)"]
    present = _plain(kind, version)
    for field in kind.fields:
        if field not in present:
            names[f"d_{field.name}"] = field.default
            lines.append(f"message.{field.name} = " + ("[]" if field.default == () else f"d_{field.name}"))
    for number, run in enumerate(_runs(present)):
        if _is_fixed(run[0]):
            form = struct.Struct(">" + "".join(_FIXED[field.kind] for field in run))
            names[f"fixed_{number}"] = form.unpack_from
            lines += [f"{', '.join(f'message.{field.name}' for field in run)}, = fixed_{number}(data, at)", f"at += {form.size}"]
        else:
            lines += _reading(kind, run[0], version, names)
    if version in kind.flexible:
        lines += _reading_tags(kind, version, names)
    source = "def read(data, at, budget):\n " + "\n ".join([*lines, "return message, at"])
    return _compiled("read", source, names, f"<{kind.__name__} {version}>")


def _reading(kind: Any, field: Field, version: int, names: dict[str, Any]) -> list[str]:
    """Lines that read one field into its attribute."""
    flexible, nullable, target = version in kind.flexible, version in field.nullable, f"message.{field.name}"
    if not field.is_array:
        if field.fields and nullable:
            lines = _one_read(kind, field, version, names, "item", nullable=False)
            # Null is written as -1; Kafka reads any negative byte as null.
            return ["there = data[at]", "at += 1", f"if there > 127: {target} = None", "else:", *_in(lines), f" {target} = item"]
        return _one_read(kind, field, version, names, target, nullable=nullable)
    null = f"{target} = None" if nullable else f"raise ValueError('{field.name} is null')"
    short = [
        "count = data[at] - 1",
        "at += 1",
        "if count > 126: count, at = length(data, at - 1, None)",
    ]  # nearly always one byte
    lines = [
        *(short if flexible else ["count, at = length(data, at, INT32)"]),
        f"if count < 0: {null}",
        "else:",
        " charge(budget, count)",
    ]
    if field.kind in _FIXED:
        size = struct.calcsize(">" + _FIXED[field.kind])
        # One call for all numbers of a list. The count has been charged, and unpack_from fails on too few bytes before it
        # allocates anything, so a count of two billion costs nothing.
        reading = [f"{target} = list(unpack_from(f'>{{count}}{_FIXED[field.kind]}', data, at))", f"at += count * {size}"]
        return [*lines, *_in(reading)]
    item_lines = _one_read(kind, field, version, names, "item", nullable=False)
    return [*lines, f" {target} = items = []", " for _ in range(count):", *_in(_in(item_lines)), "  items.append(item)"]


def _one_read(kind: Any, field: Field, version: int, names: dict[str, Any], target: str, *, nullable: bool) -> list[str]:
    if field.fields:
        names[f"read_{field.name}"] = reader(getattr(kind, field.kind), version)
        return [f"{target}, at = read_{field.name}(data, at, budget)"]
    if field.kind in _BLOBS:
        width = _width(field, version in kind.flexible)
        call = {"string": "text", "records": "view"}.get(field.kind, "blob")
        return [f"{target}, at = {call}(data, at, {width}, {field.name!r}, {nullable})"]
    if field.kind == "uuid":
        return [f"{target}, at = uuid(data, at)"]
    names[f"fixed_{field.name}"] = (form := struct.Struct(">" + _FIXED[field.kind])).unpack_from
    return [f"{target}, = fixed_{field.name}(data, at)", f"at += {form.size}"]


def _reading_tags(kind: Any, version: int, names: dict[str, Any]) -> list[str]:
    lines = ["if data[at] == 0: return message, at + 1", "count, at = uvarint(data, at)", "charge(budget, count)"]
    lines += [
        "for _ in range(count):",
        " tag, at = uvarint(data, at)",
        " size, at = uvarint(data, at)",
        " end = skip(data, at, size)",
    ]
    for field in _tags(kind, version):
        lines += [f" if tag == {field.tag}:", *_in(_in(_reading(kind, field, version, names)))]
        # If a field does not end where its tag says, the sender has a different idea of the version: what follows would be read
        # out of step.
        lines += ["  if at != end: raise ValueError('a tag of another length than its field')"]
    return [*lines, " at = end"]


def _in(lines: list[str]) -> list[str]:
    return [" " + line for line in lines]


# -- writing ------------------------------------------------------------------


def _put_length(out: bytearray, count: int, pack: Any) -> None:
    out += write_uvarint(count + 1) if pack is None else pack(count)


def _put_blob(out: bytearray, value: Any, pack: Any) -> None:
    raw = value.encode() if isinstance(value, str) else value
    _put_length(out, len(raw), pack)
    out += raw


_WRITE_NAMES: dict[str, Any] = {
    "put_length": _put_length, "put_blob": _put_blob, "uvarint": write_uvarint, "pack": struct.pack, "zeros": bytes(16),
    "INT16": struct.Struct(">h").pack, "INT32": struct.Struct(">i").pack,
}  # fmt: skip


def _make_writer(kind: Any, version: int) -> Any:
    names: dict[str, Any] = dict(_WRITE_NAMES)
    lines = []
    for number, run in enumerate(_runs(_plain(kind, version))):
        if _is_fixed(run[0]):
            names[f"fixed_{number}"] = struct.Struct(">" + "".join(_FIXED[field.kind] for field in run)).pack
            lines.append(f"out += fixed_{number}({', '.join(f'message.{field.name}' for field in run)})")
        else:
            lines += _writing(kind, run[0], version, names)
    if version in kind.flexible:
        lines += _writing_tags(kind, version, names)
    source = "def write(out, message):\n " + "\n ".join(lines or ["pass"])
    return _compiled("write", source, names, f"<{kind.__name__} {version}>")


def _writing(kind: Any, field: Field, version: int, names: dict[str, Any]) -> list[str]:
    flexible, nullable, source = version in kind.flexible, version in field.nullable, f"message.{field.name}"
    if not field.is_array:
        lines = _one_written(kind, field, version, names, source)
        if field.fields and nullable:
            return [f"if {source} is None: out.append(255)", "else:", " out.append(1)", *_in(lines)]
        return _or_null(lines, source, _width(field, flexible)) if field.kind in _BLOBS and nullable else lines
    width = None if flexible else "INT32"
    lines = [f"items = {source}", f"put_length(out, len(items), {width})"]
    if field.kind in _FIXED:
        lines.append(f"out += pack(f'>{{len(items)}}{_FIXED[field.kind]}', *items)")
    else:
        lines += ["for item in items:", *_in(_one_written(kind, field, version, names, "item"))]
    return _or_null(lines, source, width) if nullable else lines


def _or_null(lines: list[str], source: str, width: str | None) -> list[str]:
    """Null where the description allows it; elsewhere a None is our own bug, and its length raises a TypeError."""
    return [f"if {source} is None: put_length(out, -1, {width})", "else:", *_in(lines)]


def _width(field: Field, flexible: bool) -> str | None:
    """What packs or unpacks the length of a string or bytes: None in the flexible encoding."""
    return None if flexible else "INT16" if field.kind == "string" else "INT32"


def _one_written(kind: Any, field: Field, version: int, names: dict[str, Any], source: str) -> list[str]:
    if field.fields:
        names[f"write_{field.name}"] = writer(getattr(kind, field.kind), version)
        return [f"write_{field.name}(out, {source})"]
    if field.kind in _BLOBS:
        return [f"put_blob(out, {source}, {_width(field, version in kind.flexible)})"]
    if field.kind == "uuid":
        return [f"out += zeros if {source} is None else {source}.bytes"]
    names[f"fixed_{field.name}"] = struct.Struct(">" + _FIXED[field.kind]).pack
    return [f"out += fixed_{field.name}({source})"]


def _writing_tags(kind: Any, version: int, names: dict[str, Any]) -> list[str]:
    """A tag is written only if its field differs from its default."""
    fields = _tags(kind, version)
    if not fields:
        return ["out.append(0)"]
    # The count precedes the tags on the wire but is known only after them: they are gathered in a separate buffer, each preceded
    # by its length. The generated lines always write to a buffer called `out`, so `out` changes its meaning here: the message,
    # all tags, one tag.
    lines = ["count, whole, out = 0, out, bytearray()", "tags = out"]
    for field in fields:
        names[f"d_{field.name}"] = [] if field.default == () else field.default
        lines += [f"if message.{field.name} != d_{field.name}:", " count += 1", " out = bytearray()"]
        lines += [*_in(_writing(kind, field, version, names)), f" tags += uvarint({field.tag}) + uvarint(len(out)) + out"]
    return [*lines, "whole += uvarint(count) + tags"]


# In all lists and tag sections of one request together; twice the default logbus.partitions.max: a request with more is hostile,
# or meant for another broker. Reading this many short names takes the loop tens of milliseconds, and a handler turns each into up
# to a kilobyte.
ELEMENTS_MAX = 20_000


def response_class(api_key: int) -> Any:
    """The message class of an API's response; nested structs are attributes of it."""
    return _class_of(api_key, "Response")


def request_class(api_key: int) -> Any:
    """The message class of an API's request."""
    return _class_of(api_key, "Request")


@cache
def _class_of(api_key: int, kind: str) -> Any:
    name = "".join(word.capitalize() for word in ApiKey(api_key).name.split("_")) + kind
    fields, flexible = describe(name)
    return _new_class(name, fields, flexible)


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Read a request's body (after its header); ProtocolError if the bytes are malformed."""
    return _decode(api_key, version, bytes(body))[0]


def decode_whole_request(api_key: int, version: int, body: Data) -> Any:
    """The same for Produce and Fetch: the body must end where the message ends. Records are slices of `body`: views, not copies,
    if it is one."""
    message, end = _decode(api_key, version, body)
    if end != len(body):
        raise ProtocolError(f"malformed request (api key {api_key}, version {version}): {len(body) - end} bytes after its end")
    return message


def _decode(api_key: int, version: int, body: Data) -> tuple[Any, int]:
    try:
        return reader(request_class(api_key), version)(body, 0, [ELEMENTS_MAX, ELEMENTS_MAX])
    except _DECODE_ERRORS as error:
        raise ProtocolError(f"malformed request (api key {api_key}, version {version}): {error}") from error


def decode_response(api_key: int, version: int, body: memoryview) -> Any:
    """The body of an answer from another broker; ProtocolError if the bytes are malformed."""
    try:
        return response_class(api_key).decode(body, version=version)
    except _DECODE_ERRORS as error:
        raise ProtocolError(f"malformed answer (api key {api_key}, version {version}): {error}") from error


def encode_response(message: Any, version: int) -> bytes:
    """Write a response's body, without its header."""
    return bytes(message.encode(version=version))
