"""Connections that have nothing to do with a fault elsewhere, and must not notice it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from logbus_broker.protocol.api import ApiKey

from tests.support.raw_client import Closed, RawClient


class Bystanders:
    """`count` idle connections, each of which sends ApiVersions now and then."""

    def __init__(self, bootstrap: str, count: int = 3) -> None:
        self.bootstrap = bootstrap
        self._clients = [self._new() for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients:
            client.__exit__(None, None, None)

    def lost(self) -> int:
        """How many no longer get an answer; they are replaced by new ones."""
        lost = [client for client in self._clients if not is_answered(client)]
        for client in lost:
            client.__exit__(None, None, None)
            self._clients[self._clients.index(client)] = self._new()
        return len(lost)

    def _new(self) -> RawClient:
        """A connection that has sent a request: the broker soon closes those that never do."""
        client = RawClient(self.bootstrap)
        assert is_answered(client)
        return client


def is_answered(client: RawClient) -> bool:
    try:
        return len(client.request(ApiKey.API_VERSIONS, 0, b"", flexible=False)) > 6
    except (Closed, OSError):
        return False
