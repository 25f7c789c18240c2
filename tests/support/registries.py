"""Schema registries: `logbus registry serve` as a process, and one without a broker, whose topic is a list."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from logbus.web.registry import SchemaRegistry
from logbus.web.registry_app import make_app
from logbus.web.registry_login import RegistryLogins
from logbus.web.registry_state import Entry, RegistryState
from starlette.testclient import TestClient

from tests.support.exporting import running_server


@contextmanager
def running_registry(directory: Path, bootstrap: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its URL."""
    with running_server(directory, "registry", "serve", "--bootstrap-server", bootstrap, *options) as started:
        yield started


class ListedStore:
    """A store whose topic is a list of records."""

    def __init__(self, records: Sequence[Entry] = ()) -> None:
        self.topic, self.failure = "_schemas", None
        self.records: list[Entry] = []
        self._state = RegistryState()
        self._write(records)

    @contextmanager
    def reading(self) -> Iterator[RegistryState]:
        yield self._state

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[Entry]], None]]:
        yield self._write

    def _write(self, entries: Sequence[Entry]) -> None:
        for key, value in entries:
            self._state.apply(len(self.records), key, value, {})
            self.records.append((key, value))


def listed_registry(
    store: ListedStore | None = None, logins: RegistryLogins | None = None, hosts: Sequence[str] = ("*",)
) -> TestClient:
    """Answers requests in this process."""
    registry = SchemaRegistry(store or ListedStore())  # type: ignore[arg-type]
    return TestClient(make_app(registry, logins=logins, hosts=hosts), raise_server_exceptions=False)
