"""Any message of any API and version, drawn by Hypothesis from kio's classes, and its bytes as kio writes them: a codec oracle.

kio never reads data from a socket here, only what our encoders wrote (its parser allocates by unchecked lengths).
"""

from __future__ import annotations

import dataclasses
import io
import types
import typing
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32Timedelta, i64Timedelta

_LONGEST = 32_767  # bytes of a string in versions that are not flexible
_EXTREME = ["x" * _LONGEST, "é" * (_LONGEST // 2), "a\nb\0c\x1b[1m d"]
_TEXT = st.sampled_from(["clicks", "group", "retention.ms", "1", "0", "", *_EXTREME]) | st.text(max_size=8)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-3, 5) | st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "float64": st.floats(allow_nan=False),
    "string": _TEXT,
    "bytes": st.binary(max_size=8) | st.just(b"z" * 70_000),
    "records": st.binary(max_size=8),
    "uuid": st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(0, 1 << 30).map(lambda ms: i32Timedelta.parse(timedelta(milliseconds=ms))),
    "timedelta_i64": st.integers(0, 1 << 40).map(lambda ms: i64Timedelta.parse(timedelta(milliseconds=ms))),
    "datetime_i64": st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(
        lambda at: at.replace(tzinfo=UTC, microsecond=at.microsecond // 1000 * 1000)
    ),
}


def requests(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Any request of that API and version."""
    return _entities(load_request_schema(api_key, version))


def responses(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Any response of that API and version."""
    return _entities(load_response_schema(api_key, version))


def written(message: Any) -> bytes:
    """The message as kio writes it."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def read_response(api_key: int, version: int, body: bytes) -> Any:
    """A response of ours as kio reads it; ValueError if it cannot, or if bytes are left over."""
    schema = load_response_schema(api_key, version)
    try:
        message, size = entity_reader(schema)(memoryview(body), 0)
    except SerialError as error:
        raise ValueError(f"api key {api_key} version {version}: {error!r}") from error
    if size != len(body):
        raise ValueError(f"api key {api_key} version {version}: {len(body) - size} bytes behind the end")
    return message


def _entities(schema: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(schema)
    return st.builds(schema, **{item.name: _values(item, hints[item.name]) for item in dataclasses.fields(schema)})


def _values(item: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    inner = [part for part in typing.get_args(hint) if part is not types.NoneType]
    is_nullable = types.NoneType in typing.get_args(hint)
    if is_nullable:
        return st.none() | _values_of(item, inner[0])
    return _values_of(item, hint)


def _values_of(item: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is tuple:
        return st.lists(_values_of(item, typing.get_args(hint)[0]), max_size=2).map(tuple)
    if dataclasses.is_dataclass(hint):
        return _entities(typing.cast("type[Any]", hint))
    return _PRIMITIVES[item.metadata["kafka_type"]]
