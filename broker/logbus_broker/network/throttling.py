"""Clients over their quotas: answered at once with the time they are held up for, and not read from until it is over.

As in Kafka since 2.0. What is read again first is what the client has sent meanwhile: clients that wait by themselves notice
nothing. A Fetch over its quota is answered without records. Clients keep the membership of their groups on a connection of its
own, which the limits of bytes never hold up, and the limit of request time for a second at most.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from logbus_broker.api.handler import Parts, part_size
from logbus_broker.filesystem import FileSlice
from logbus_broker.protocol import codec
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.framing import Request
from logbus_broker.security.quotas import CONSUMER_BYTES, PRODUCER_BYTES, REQUEST_PERCENTAGE, ClientQuotas

_MILLISECONDS = Struct(">i")
_FETCH_HEAD_BYTES = 10  # throttle time, error code, session id: from version 7 on
_FETCH_SESSIONS_FROM = 7
_MUTATIONS = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
_REQUEST_PAUSE_SECONDS_MAX = 1.0  # Kafka's: one window
_PAUSE_SECONDS_MAX = 2**31 / 1000 - 1  # what throttle_time_ms can say


class Throttle:
    """What one broker's connections ask before and after each request, only while it `is_active`: that is looked up once a
    second, not for each request."""

    def __init__(self, quotas: ClientQuotas, monotonic: Callable[[], float]) -> None:
        self.quotas = quotas
        self.monotonic = monotonic
        self.is_active = quotas.is_active

    def refresh(self) -> None:
        self.is_active = self.quotas.is_active

    def asked(self, request: Request, began: float) -> float:
        """A request was handled, from `began` on; returns for how many seconds its client is to be held up."""
        now, who = self.monotonic(), (request.origin.principal, request.client_id)
        seconds = min(self.quotas.record(REQUEST_PERCENTAGE, *who, (now - began) * 100, now), _REQUEST_PAUSE_SECONDS_MAX)
        if request.api_key == ApiKey.PRODUCE:
            seconds = max(seconds, self.quotas.record(PRODUCER_BYTES, *who, len(request.body), now))
        return min(seconds, _PAUSE_SECONDS_MAX)

    def answered(self, request: Request, parts: Parts) -> tuple[Parts, float]:
        """An answer is ready; returns what to send in its place, and for how many seconds to hold up the client."""
        now, who = self.monotonic(), (request.origin.principal, request.client_id)
        if request.api_key in _MUTATIONS:  # the handler has taken them
            return parts, min(self.quotas.seconds_without_mutations(*who, now), _PAUSE_SECONDS_MAX)
        if request.api_key != ApiKey.FETCH:
            return parts, 0.0
        seconds = self.quotas.seconds_above(CONSUMER_BYTES, *who, now)
        if not seconds:
            seconds = self.quotas.record(CONSUMER_BYTES, *who, sum(map(part_size, parts)), now)
            return parts, min(seconds, _PAUSE_SECONDS_MAX)
        for part in parts:
            if isinstance(part, FileSlice):
                part.release()
        return [_fetch_without_records(request.version, parts[0])], min(seconds, _PAUSE_SECONDS_MAX)


def _fetch_without_records(version: int, head: bytes | FileSlice) -> bytes:
    """The answer of the same session, with no partition in it."""
    assert isinstance(head, bytes), "an answer begins with its head"
    if version < _FETCH_SESSIONS_FROM:
        return head[: _MILLISECONDS.size] + b"\0\0\0\0"
    empty = b"\1\0" if version >= APIS[ApiKey.FETCH].flexible_from else b"\0\0\0\0"
    return head[:_FETCH_HEAD_BYTES] + empty


def with_throttle_time(request: Request, parts: Parts, seconds: float) -> Parts:
    """The answer with its `throttle_time_ms`, if it has one."""
    kind, version, milliseconds = codec.response_class(request.api_key), request.version, round(seconds * 1000)
    names = [field.name for field in kind.fields if version in field.versions and version not in field.tagged]
    if "throttle_time_ms" not in names or not parts or not isinstance(parts[0], bytes):
        return parts
    if names[0] == "throttle_time_ms":
        return [_MILLISECONDS.pack(milliseconds) + parts[0][_MILLISECONDS.size :], *parts[1:]]
    answer = kind.decode(
        b"".join(part for part in parts if isinstance(part, bytes)), version=version
    )  # few: only Fetch has files
    answer.throttle_time_ms = milliseconds
    return [codec.encode_response(answer, version)]
