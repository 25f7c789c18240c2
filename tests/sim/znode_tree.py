"""ZooKeeper's tree of nodes and its transactions, without time, sessions or network.

Versions, refusals and sequence numbers are ZooKeeper's own, as the contract suite finds them on a real server: a node begins with
version 0, and every write increments it; the digits of a sequential node count the nodes ever created under its parent, so
they follow the order of commits, and neither a refused transaction nor a deletion leaves a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from logbus_broker.cluster.store import Check, Committed, Create, Delete, Node, NoNode, Operation, Reason, Refused, Set

ANY_VERSION = -1
NO_VERSION = -1


class Kind(Enum):
    CREATED = "created"
    SET = "set"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of an operation. Every server applies it to its own tree."""

    kind: Kind
    path: str
    data: bytes = b""
    owner: int = 0
    birth: tuple[int, int] = (0, 0)


class Znode:
    """One node. `made` counts the children ever created."""

    __slots__ = ("birth", "children", "data", "made", "owner", "version")

    def __init__(self, data: bytes, owner: int, birth: tuple[int, int] = (0, 0)) -> None:
        self.data = data
        self.owner = owner
        self.birth = birth
        self.version = 0
        self.made = 0
        self.children: dict[str, None] = {}


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class ZnodeTree:
    """The nodes by path."""

    def __init__(self) -> None:
        self.nodes = {"/": Znode(b"", 0)}
        self.transactions = 0
        self.restored = 0  # how often the tree was replaced by an older one

    def read(self, path: str) -> Node | NoNode:
        node = self.nodes.get(path)
        return (
            NoNode() if node is None else Node(data=node.data, version=node.version, ephemeral_owner=node.owner, birth=node.birth)
        )

    def children(self, path: str) -> tuple[str, ...] | NoNode:
        node = self.nodes.get(path)
        return NoNode() if node is None else tuple(sorted(node.children))

    def transact(self, operations: Sequence[Operation], session_id: int) -> tuple[Committed | Refused, list[Change]]:
        """All of it or nothing. Operations see the effects of those before them."""
        self.transactions += 1
        changes: list[Change] = []
        undo: list[Callable[[], None]] = []
        versions: list[int] = []
        paths: list[str] = []
        for index, operation in enumerate(operations):
            done = _EXECUTE[type(operation)](self, operation, session_id, undo)
            if isinstance(done, Reason):
                for back in reversed(undo):
                    back()
                return Refused(index=index, reason=done), []
            if isinstance(done, Change):
                changes.append(done)
                paths.append(done.path)
                versions.append(NO_VERSION if done.kind is Kind.DELETED else self.nodes[done.path].version)
            else:
                paths.append(operation.path)
                versions.append(NO_VERSION)
        return Committed(versions=tuple(versions), paths=tuple(paths)), changes

    def apply(self, change: Change) -> None:
        """Apply what another server's tree did."""
        if change.kind is Kind.CREATED:
            self._add(change.path, Znode(change.data, change.owner, change.birth))
        elif change.kind is Kind.SET:
            node = self.nodes[change.path]
            node.data, node.version = change.data, node.version + 1
        else:
            self._remove(change.path)

    def _create(self, operation: Create, session_id: int, undo: list[Callable[[], None]]) -> Change | Reason:
        parent = self.nodes.get(parent_of(operation.path))
        if parent is None:
            return Reason.NO_NODE
        path = f"{operation.path}{parent.made:010d}" if operation.is_sequential else operation.path
        if path in self.nodes:
            return Reason.NODE_EXISTS
        if parent.owner:
            return Reason.OTHER  # ephemeral nodes have no children
        owner = session_id if operation.is_ephemeral else 0
        birth = (self.transactions, self.restored)
        self._add(path, Znode(operation.data, owner, birth))
        undo.append(partial(self._take_back, path))
        return Change(Kind.CREATED, path, operation.data, owner, birth)

    def _set(self, operation: Set, _session_id: int, undo: list[Callable[[], None]]) -> Change | Reason:
        node = self._with_version(operation.path, operation.version)
        if isinstance(node, Reason):
            return node
        undo.append(partial(self._restore, node, node.data, node.version))
        node.data, node.version = operation.data, node.version + 1
        return Change(Kind.SET, operation.path, operation.data)

    def _delete(self, operation: Delete, _session_id: int, undo: list[Callable[[], None]]) -> Change | Reason:
        node = self._with_version(operation.path, operation.version)
        if isinstance(node, Reason):
            return node
        if node.children:
            return Reason.NOT_EMPTY
        self._remove(operation.path)
        undo.append(partial(self._put_back, operation.path, node))
        return Change(Kind.DELETED, operation.path)

    def _check(self, operation: Check, _session_id: int, _undo: list[Callable[[], None]]) -> Reason | None:
        node = self._with_version(operation.path, operation.version)
        return node if isinstance(node, Reason) else None

    def _with_version(self, path: str, version: int) -> Znode | Reason:
        node = self.nodes.get(path)
        if node is None:
            return Reason.NO_NODE
        return node if version in (ANY_VERSION, node.version) else Reason.BAD_VERSION

    def _add(self, path: str, node: Znode) -> None:
        self.nodes[path] = node
        parent = self.nodes[parent_of(path)]
        parent.children[path.rpartition("/")[2]] = None
        parent.made += 1

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        del self.nodes[parent_of(path)].children[path.rpartition("/")[2]]

    def _take_back(self, path: str) -> None:
        self._remove(path)
        self.nodes[parent_of(path)].made -= 1

    def _put_back(self, path: str, node: Znode) -> None:
        self._add(path, node)
        self.nodes[parent_of(path)].made -= 1

    def _restore(self, node: Znode, data: bytes, version: int) -> None:
        node.data, node.version = data, version


_EXECUTE: dict[type, Callable[..., Change | Reason | None]] = {
    Create: ZnodeTree._create,
    Set: ZnodeTree._set,
    Delete: ZnodeTree._delete,
    Check: ZnodeTree._check,
}
