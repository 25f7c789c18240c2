"""What the brokers need from ZooKeeper: implemented by the real one through `zookeeper.py`, or by a simulated one in tests; and
`Script`, several requests to it in a row.

One contract suite runs on both. Every call returns at once; its answer comes later as `then(outcome)`, always on the thread that
calls `drain`, never before the call has returned. Answers and events arrive in the order in which they happened.

A write has three outcomes: `Committed`, `Refused` (nothing was written, and why) and `Unknown`: the connection was lost or the
deadline passed before the answer arrived. Nothing may be assumed about an unknown one: it may yet happen. Since every write is
conditional on a version, reading the node afterwards shows which.

A watch only means "read again": each fires once, and all are dropped when the connection is lost. A request made while there is
no connection waits for one until its deadline; before the first connection it is `Unknown` at once.

A script is a generator that yields questions and is sent their answers. So what takes three round trips reads from top to bottom,
does not block the loop, and can be run against any Store, or by hand:

    def grow(path: str) -> Script[None]:
        node = yield from read(path)
        ...
        outcome = yield from commit([...])

A BrokerError that a script raises is its outcome. Anything else is a bug: the caller gets AnswerLost, so that it does not wait
forever, and the exception propagates to the code that drains the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from logbus_broker import errors, logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a node. `is_sequential` appends ten digits to the path, in commit order and without gaps."""

    path: str
    data: bytes = b""
    is_ephemeral: bool = False
    is_sequential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Replace a node's data if it has this version; -1: any version."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove a node without children if it has this version; -1: any version."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The transaction succeeds only if the node exists with this version; -1: only if it exists."""

    path: str
    version: int


Operation = Create | Set | Delete | Check

# Half of ZooKeeper's limit of 1 MiB (jute.maxbuffer), which also counts the framing around the data.
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
    """All operations of a transaction happened. `versions` and `paths` by operation: the node's new version (-1 for Delete and
    Check) and its path, with the digits of a sequential one."""

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
    """The answer was lost, or did not arrive in time."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a read found. `ephemeral_owner` is the session of an ephemeral node, 0 for any other. `birth` is by which transaction
    the node was created, and when, in milliseconds: not the same twice, even if ZooKeeper's data was restored in between."""

    data: bytes
    version: int
    ephemeral_owner: int = 0
    birth: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class NoNode:
    """A read of a path that does not exist."""


T = TypeVar("T")
Outcome = Committed | Refused | Unknown
Found = Node | NoNode | Unknown
Children = tuple[str, ...] | NoNode | Unknown  # names, sorted


class StoreEvents:
    """The listener, called by `drain`: a subclass overrides what concerns it."""

    def connected(self, session_id: int) -> None:
        """There is a connection: the first, the same session again, or a new one. All watches are gone."""

    def suspended(self) -> None:
        """The connection is lost. The session may survive for up to its timeout, but how long is unknown."""

    def changed(self, path: str) -> None:
        """A watch on `path` has fired: read again."""


class Store(Protocol):
    """See the module docstring."""

    session_id: int  # of the newest connection; 0 before the first

    def begin(self, events: StoreEvents) -> None:
        """Connect, and keep trying forever."""

    def read(self, path: str, then: Callable[[Found], None], *, watch: bool = False) -> None:
        """A node's data; with `watch`, `changed(path)` is called once when it is changed, deleted or created."""

    def children(self, path: str, then: Callable[[Children], None], *, watch: bool = False) -> None:
        """The names below a node; with `watch`, `changed(path)` is called once when they change or the node is deleted. A node
        that does not exist is not watched."""

    def commit(self, operations: Sequence[Operation], then: Callable[[Outcome], None]) -> None:
        """All operations or none. A transaction of more than TRANSACTION_BYTES_MAX is a defect of the caller: beyond ZooKeeper's
        limit the server drops the connection instead of answering."""

    def drain(self) -> None:
        """Handle the answers and events that have arrived, and deadlines that have passed; on the loop's thread."""

    def next_deadline(self) -> float:
        """When `drain` has something to do even if nothing arrives, by the monotonic clock; infinity if no request is pending."""

    def close(self, then: Callable[[], None]) -> None:
        """End the session, so that its ephemeral nodes are gone at once."""


READS_AT_ONCE = 200  # their answers are handled in one turn of the loop: 2 ms


def in_batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, at most `size` at a time."""
    return (items[begin : begin + size] for begin in range(0, len(items), size))


# Asks the store, and passes the answer on later.
Question = Callable[[Store, Callable[[Any], None]], None]
Script = Generator[Question, Any, T]


class AnswerLost(errors.RequestTimedOut):
    """ZooKeeper did not answer in time, or the connection was lost: ask again once there is a new one. If a client waits for
    the answer, the client retries."""


def read(path: str, *, watch: bool = False) -> Script[Node | NoNode]:
    (node,) = yield from read_all([path], watch=watch)
    return node


def read_all(paths: Sequence[str], *, watch: bool = False) -> Script[list[Node | NoNode]]:
    """The nodes at the paths, in the same order; AnswerLost if any was not answered."""
    outcomes: list[Found] = []
    for batch in in_batches(paths, READS_AT_ONCE):
        outcomes += yield partial(_ask_for_nodes, batch, watch)
    for outcome in outcomes:
        if isinstance(outcome, Unknown):
            raise AnswerLost(outcome.detail)
    return cast(list[Node | NoNode], outcomes)


def _ask_for_nodes(paths: Sequence[str], watch: bool, store: Store, then: Callable[[list[Found | None]], None]) -> None:
    outcomes: list[Found | None] = [None] * len(paths)
    missing = len(paths)

    def answered(index: int, outcome: Found) -> None:
        nonlocal missing
        outcomes[index] = outcome
        missing -= 1
        if not missing:
            then(outcomes)

    for index, path in enumerate(paths):
        store.read(path, partial(answered, index), watch=watch)


def read_twice(path: str) -> Script[Node | NoNode]:
    (node,) = yield from read_all_twice([path])
    return node


def read_all_twice(paths: Sequence[str]) -> Script[list[Node | NoNode]]:
    """`read_all`, and again if an answer was lost: the second waits for the next connection. For requests that clients wait
    for."""
    try:
        return (yield from read_all(paths))
    except AnswerLost:
        return (yield from read_all(paths))


def children(path: str, *, watch: bool = False) -> Script[tuple[str, ...]]:
    """The names below a path, none if it does not exist; AnswerLost if there was no answer, or if the path to be watched does not
    exist: ZooKeeper only watches the children of existing nodes."""
    names: Children = yield lambda store, then: store.children(path, then, watch=watch)
    if isinstance(names, Unknown):
        raise AnswerLost(names.detail)
    if isinstance(names, NoNode):
        if watch:
            raise AnswerLost(f"{path} does not exist yet")
        return ()
    return names


def commit(operations: Sequence[Operation]) -> Script[Outcome]:
    outcome: Outcome = yield lambda store, then: store.commit(operations, then)
    return outcome


def run_script(store: Store, script: Script[T], then: Callable[[T | None, errors.BrokerError | None], None]) -> RunningScript[T]:
    """Run the script; calls `then(its result, None)` or `then(None, its error)` once, never before this returns unless the
    script makes no request."""
    asking = RunningScript(store, script, then)
    asking.go_on(None)
    return asking


class RunningScript(Generic[T]):
    """A running script."""

    def __init__(self, store: Store, script: Script[T], then: Callable[[T | None, errors.BrokerError | None], None]) -> None:
        self._store = store
        self._script = script
        self._then = then
        self._is_stopped = False

    def stop(self) -> None:
        """Ignore all further answers: the script does not continue and `then` is not called."""
        self._is_stopped = True

    def go_on(self, answer: Any) -> None:
        if self._is_stopped:
            return
        try:
            question = self._script.send(answer)
        except StopIteration as end:
            self._then(end.value, None)
        except errors.BrokerError as error:
            self._then(None, error)
        except Exception as error:
            self._then(None, AnswerLost(f"{error!r} {logs.BROKER_BUG}"))
            raise
        else:
            question(self._store, self.go_on)
