"""Where users' credentials, ACLs and quotas are kept: one interface, and the store of a standalone broker. That of a
cluster is in `api/cluster_metadata.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from logbus_broker.cluster.local_files import Files, Job, reading
from logbus_broker.security.state import SecurityState, decode_state, encode_state

SECURITY_FILE = "security.json"

Edit = Callable[[SecurityState], SecurityState]


class SecurityStore(Protocol):
    """`state` is another object after each change, also by another broker of the cluster; then `on_change` is called."""

    on_change: Callable[[], None]

    @property
    def state(self) -> SecurityState: ...

    def change(self, edit: Edit) -> Generator[Any, Any, None]:
        """Steps of a background task that store what `edit` makes of the state; after them it is in effect. `edit` may be called
        again, with a newer state, if another broker was faster. Raises what `edit` raises, StorageError, RequestTimedOut."""


class LocalSecurity:
    """The one of a standalone broker: a file in its data directory. Changes are tasks of one queue, so none runs beside
    another."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.on_change: Callable[[], None] = lambda: None
        stored = files.read_json(SECURITY_FILE)
        with reading(SECURITY_FILE):
            self.state = SecurityState() if stored is None else decode_state(stored)

    def change(self, edit: Edit) -> Generator[Job, Any, None]:
        changed = edit(self.state)
        if changed == self.state:
            return
        yield lambda: self._files.write_json_atomic(SECURITY_FILE, encode_state(changed))
        self.state = changed
        self.on_change()
