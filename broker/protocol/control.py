"""The control plane's codec: four functions around the message classes of rare or small requests.

Produce and fetch have their own codecs. The classes are generated from Kafka's public descriptions (schema.py, message_code.py)
at the first request of their API, so that they cost no startup time. Any exception that hostile bytes cause in a decoder becomes
a ProtocolError; a null is rejected where the description does not allow it, as Kafka does: so no handler meets an unexpected
None, or more elements than a broker has partitions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from broker.errors import ProtocolError
from broker.protocol.api import ApiKey
from broker.protocol.message_code import DECODE_ERRORS, message_class
from broker.protocol.schema import describe

# In all lists and tag sections of one request together; twice the default logbus.partitions.max: a request with more is hostile,
# or meant for another broker. Reading this many short names takes the loop tens of milliseconds, and a handler turns each into up
# to a kilobyte.
ELEMENTS_MAX = 20_000


def response_class(api_key: int) -> Any:
    """The message class of an API's response; nested structs are attributes of it."""
    return _class(api_key, "Response")


def request_class(api_key: int) -> Any:
    """The message class of an API's request."""
    return _class(api_key, "Request")


@cache
def _class(api_key: int, kind: str) -> Any:
    return message_class(describe("".join(word.capitalize() for word in ApiKey(api_key).name.split("_")) + kind))


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Read a request's body (after its header); ProtocolError if the bytes are malformed."""
    try:
        return request_class(api_key).decode(bytes(body), version=version, elements_max=ELEMENTS_MAX)
    except DECODE_ERRORS as error:
        raise ProtocolError(f"a body of api key {api_key} version {version} that cannot be read: {error}") from error


def encode_response(message: Any, version: int) -> bytes:
    """Write a response's body, without its header."""
    return bytes(message.encode(version=version))
