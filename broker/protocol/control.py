"""The control plane's codec: kafka-python's message classes behind two functions.

Only requests that are rare or small come here; produce and fetch have codecs of their own. The package was written for
clients, but its classes decode requests and encode responses as well; whatever hostile bytes make it raise becomes a
ProtocolError.
"""

from __future__ import annotations

import importlib
import struct
from functools import cache
from typing import Any

from kafka.protocol.api_message import ApiMessage

from broker.errors import ProtocolError

for _module in ("admin", "consumer", "metadata", "producer"):  # importing them registers their classes
    importlib.import_module(f"kafka.protocol.{_module}")

_DECODE_ERRORS = (UnicodeDecodeError, IndexError, struct.error, ValueError, OverflowError, MemoryError, TypeError)


@cache
def _classes() -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    waiting = [ApiMessage]
    while waiting:
        parent = waiting.pop()
        for child in parent.__subclasses__():
            waiting.append(child)
            if child._class_version is None:
                found[child.API_KEY, child.type] = child
    return found


def response_class(api_key: int) -> Any:
    """The message class of an API's response; its nested classes are attributes of it."""
    return _classes()[api_key, "response"]


def request_class(api_key: int) -> Any:
    """The message class of an API's request."""
    return _classes()[api_key, "request"]


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Read a request's body (behind its header); ProtocolError where the bytes make no sense."""
    try:
        return request_class(api_key).decode(bytes(body), version=version)
    except _DECODE_ERRORS as error:
        raise ProtocolError(f"a body of api key {api_key} version {version} that cannot be read: {error}") from error


def encode_response(message: Any, version: int) -> bytes:
    """Write a response's body, without its header."""
    message._header = None
    return bytes(message.encode(version=version))
