"""What the brokers ask of ZooKeeper, whoever answers: the real one through `zookeeper.py`, or a simulated one in tests.

One contract suite runs on both. Every call returns at once; its answer comes later as `then(outcome)`, always on the thread that
calls `drain`, never from inside of the call itself. Answers and events come in the order in which they happened.

A write has three outcomes: `Committed`, `Refused` (nothing was written, and why) and `Unknown`: the connection was lost or the
deadline passed before the answer came. Nobody assumes anything about an unknown one: it may yet happen. Since every write is
conditional on a version, looking at the node afterwards says which.

Watches say "look again", nothing more: each fires once, and all are forgotten when the connection is lost. What was asked while
there is no connection waits for one, for as long as its deadline allows; before the first connection it is `Unknown` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make a node. `is_sequential` appends ten digits to the path, in the order of commits and without holes."""

    path: str
    data: bytes = b""
    is_ephemeral: bool = False
    is_sequential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Replace a node's data if it has this version; -1: whatever it has."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove a node without children if it has this version; -1: whatever it has."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The transaction holds only if the node exists with this version; -1: only if it exists."""

    path: str
    version: int


Operation = Create | Set | Delete | Check

# Half of ZooKeeper's limit of 1 MiB (jute.maxbuffer), which counts what surrounds the data too.
TRANSACTION_BYTES_MAX = 512 * 1024


def transaction_bytes(operations: Sequence[Operation]) -> int:
    """Paths and data of a transaction: what counts against the limit."""
    return sum(len(operation.path) + len(getattr(operation, "data", b"")) for operation in operations)


class Reason(Enum):
    """Why a transaction was refused."""

    NODE_EXISTS = "node exists"
    NO_NODE = "no node"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """All operations of a transaction happened. `versions` and `paths` by operation: the version the node has now (-1 for Delete
    and Check) and its path, with the digits of a sequential one."""

    versions: tuple[int, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing happened, because of operation `index`."""

    index: int
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The answer was lost, or did not come in time."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a read found. `ephemeral_owner` is the session of an ephemeral node, 0 of any other."""

    data: bytes
    version: int
    ephemeral_owner: int = 0


@dataclass(frozen=True, slots=True)
class NoNode:
    """A read of a path that does not exist."""


Outcome = Committed | Refused | Unknown
Found = Node | NoNode | Unknown
Children = tuple[str, ...] | NoNode | Unknown  # names, sorted


class StoreEvents(Protocol):
    """Who listens; called by `drain`."""

    def connected(self, session_id: int) -> None:
        """There is a connection: the first, the same session again, or a new one. All watches are gone."""

    def suspended(self) -> None:
        """The connection is lost. The session may live on for its timeout, and nobody can say for how long."""

    def changed(self, path: str) -> None:
        """A watch on `path` has fired: look again."""


class Store(Protocol):
    """See the file's theory."""

    session_id: int  # of the newest connection; 0 before the first

    def begin(self, events: StoreEvents) -> None:
        """Connect, and go on trying forever."""

    def read(self, path: str, then: Callable[[Found], None], *, watch: bool = False) -> None:
        """A node's data; with `watch`, `changed(path)` comes once when it is changed, deleted or made."""

    def children(self, path: str, then: Callable[[Children], None], *, watch: bool = False) -> None:
        """The names below a node; with `watch`, `changed(path)` comes once when there are others or the node is deleted. A node
        that does not exist is not watched."""

    def commit(self, operations: Sequence[Operation], then: Callable[[Outcome], None]) -> None:
        """All of it or nothing. A transaction of more than TRANSACTION_BYTES_MAX is a defect of the caller: beyond ZooKeeper's
        limit the server drops the connection instead of answering."""

    def drain(self) -> None:
        """Handle the answers and events that have arrived, and deadlines that have passed; the loop's thread."""

    def next_deadline(self) -> float:
        """When `drain` has something to do though nothing arrives, by the monotonic clock; infinity where nothing is asked."""

    def close(self, then: Callable[[], None]) -> None:
        """End the session, so that its ephemeral nodes are gone at once."""
