"""Several requests to ZooKeeper, one after the other, written as one function.

A script is a generator that yields requests and is sent their answers; `ask` runs it over a Store. So what takes three round
trips reads from top to bottom, does not block the loop, and can be run against any Store, or by hand:

    def grow(path: str) -> Script[None]:
        found = yield from read(path)
        ...
        outcome = yield from commit([...])

A BrokerError that a script raises is its outcome. Anything else is a bug: the caller gets AnswerLost, so that it does not wait
forever, and the exception propagates to the code that drains the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from broker.coordination.store import Children, Found, Node, NoNode, Operation, Outcome, Store, Unknown
from broker.errors import BrokerError, RequestTimedOut

READS_AT_ONCE = 200  # their answers are handled in one turn of the loop: 2 ms


@dataclass(frozen=True, slots=True)
class Reads:
    paths: Sequence[str]
    watch: bool


@dataclass(frozen=True, slots=True)
class Names:
    path: str
    watch: bool


@dataclass(frozen=True, slots=True)
class Transaction:
    operations: Sequence[Operation]


Question = Reads | Names | Transaction
T = TypeVar("T")
Script = Generator[Question, Any, T]


class AnswerLost(RequestTimedOut):
    """ZooKeeper did not answer in time, or the connection was lost: ask again once there is a new one. If a client waits for
    the answer, the client retries."""


def read(path: str, *, watch: bool = False) -> Script[Node | NoNode]:
    (found,) = yield from read_all([path], watch=watch)
    return found


def read_all(paths: Sequence[str], *, watch: bool = False) -> Script[list[Node | NoNode]]:
    """The nodes at the paths, in the same order; AnswerLost if any was not answered."""
    found: list[Found] = []
    for begin in range(0, len(paths), READS_AT_ONCE):
        found += yield Reads(paths[begin : begin + READS_AT_ONCE], watch)
    return [_known(one) for one in found]


def read_twice(path: str) -> Script[Node | NoNode]:
    """`read`, and again if the answer was lost: the second waits for the next connection. For requests that clients wait for."""
    try:
        return (yield from read(path))
    except AnswerLost:
        return (yield from read(path))


def _known(found: Found) -> Node | NoNode:
    if isinstance(found, Unknown):
        raise AnswerLost(found.detail)
    return found


def children(path: str, *, watch: bool = False) -> Script[tuple[str, ...]]:
    """The names below a path, none if it does not exist; AnswerLost if there was no answer, or if the path to be watched does not
    exist: ZooKeeper only watches the children of existing nodes."""
    names: Children = yield Names(path, watch)
    if isinstance(names, Unknown):
        raise AnswerLost(names.detail)
    if isinstance(names, NoNode):
        if watch:
            raise AnswerLost(f"{path} is not there yet")
        return ()
    return names


def commit(operations: Sequence[Operation]) -> Script[Outcome]:
    outcome: Outcome = yield Transaction(operations)
    return outcome


def ask(store: Store, script: Script[T], then: Callable[[T | None, BrokerError | None], None]) -> Asking[T]:
    """Run the script; calls `then(its result, None)` or `then(None, its error)` once, never before this returns unless the
    script makes no request."""
    asking = Asking(store, script, then)
    asking.go_on(None)
    return asking


class Asking(Generic[T]):
    """A running script."""

    def __init__(self, store: Store, script: Script[T], then: Callable[[T | None, BrokerError | None], None]) -> None:
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
        except BrokerError as error:
            self._then(None, error)
        except Exception as error:
            self._then(None, AnswerLost(f"a defect of the broker: {error!r}"))
            raise
        else:
            self._ask(question)

    def _ask(self, question: Question) -> None:
        match question:
            case Transaction(operations):
                self._store.commit(operations, self.go_on)
            case Names(path, watch):
                self._store.children(path, self.go_on, watch=watch)
            case Reads(paths, watch):
                self._read(paths, watch)

    def _read(self, paths: Sequence[str], watch: bool) -> None:
        found: list[Found | None] = [None] * len(paths)
        missing = len(paths)

        def answered(index: int, one: Found) -> None:
            nonlocal missing
            found[index] = one
            missing -= 1
            if not missing:
                self.go_on(found)

        for index, path in enumerate(paths):
            self._store.read(path, partial(answered, index), watch=watch)
