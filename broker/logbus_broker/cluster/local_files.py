"""The small files of a data directory: `meta.properties`, and those that are rewritten again and again.

`meta.properties` says which broker and cluster own the directory, in Kafka's own format. A directory of another broker, cluster
or format is rejected before anything in it is touched. A broker in a cluster has two more lines. `logbus.cluster` says that its
topics are those registered in ZooKeeper: without it the broker would take them for its own, or for strays. `directory.id` tells
two disks with the same broker id apart. The cluster's id comes from ZooKeeper, so a new directory has none until the broker has
read it there (`join_cluster`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from logbus_broker import errors, logs
from logbus_broker.filesystem import FileSystem

META = "meta.properties"
_META_VERSION = "0"
_IN_CLUSTER = "logbus.cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The owner of the directory. `cluster_id` is empty in a new one whose cluster has not been read yet, `directory_id` on a
    single broker."""

    cluster_id: str
    directory_id: str = ""

    @property
    def is_in_cluster(self) -> bool:
        return bool(self.directory_id)


def check_meta(
    filesystem: FileSystem,
    path: Path,
    broker_id: int,
    cluster_id: str | None,
    new_id: Callable[[], UUID],
    *,
    in_cluster: bool = False,
) -> Identity:
    """The owner of the directory; a new one becomes this broker's. StartupError if it is another's."""
    stored = _read(filesystem, path)
    if stored is None:
        stored = _new_meta(broker_id, cluster_id, new_id, in_cluster=in_cluster)
        _write(filesystem, path, stored)
    _compare_meta(path, stored, broker_id, cluster_id, in_cluster=in_cluster)
    return Identity(cluster_id=stored["cluster.id"], directory_id=stored.get("directory.id", "") if in_cluster else "")


def join_cluster(filesystem: FileSystem, path: Path, cluster_id: str) -> None:
    """The directory belongs to this cluster from now on, or already did; StartupError if it belongs to another."""
    stored = _read(filesystem, path) or {}
    if not stored.get("cluster.id"):
        _write(filesystem, path, {**stored, "cluster.id": cluster_id})
    elif stored["cluster.id"] != cluster_id:
        raise errors.StartupError(
            f"{path} belongs to cluster {stored['cluster.id']}, ZooKeeper's is {cluster_id}: "
            "set zookeeper.connect or log.dirs to match"
        )


def become_member(filesystem: FileSystem, path: Path, new_id: Callable[[], UUID]) -> None:
    """The directory of a standalone broker is a cluster's from now on, with the cluster id that it has; its topics have to be
    registered there before it is opened again (join.py)."""
    stored = _read(filesystem, path) or {}
    _write(filesystem, path, {**stored, _IN_CLUSTER: "true", "directory.id": encode_id(new_id())})


def belongs_to_cluster(filesystem: FileSystem, path: Path) -> bool:
    """Whether the logs in this data directory are replicas; False if its file does not say so."""
    try:
        return (_read(filesystem, path) or {}).get(_IN_CLUSTER) == "true"
    except errors.StartupError:
        return False


def _new_meta(broker_id: int, cluster_id: str | None, new_id: Callable[[], UUID], *, in_cluster: bool) -> dict[str, str]:
    stored = {"version": _META_VERSION, "broker.id": str(broker_id)}
    if in_cluster:
        return {"cluster.id": cluster_id or "", **stored, _IN_CLUSTER: "true", "directory.id": encode_id(new_id())}
    return {"cluster.id": cluster_id or encode_id(new_id()), **stored}


def _compare_meta(path: Path, stored: Mapping[str, str], broker_id: int, cluster_id: str | None, *, in_cluster: bool) -> None:
    for name in ("version", "broker.id"):
        if name not in stored:
            raise errors.StartupError(
                f"{path / META} has no {name}: restore it from a copy, or set log.dirs to another directory"
            )
    if stored["version"] != _META_VERSION:
        raise errors.StartupError(
            f"{path} has format version {stored['version']}, this broker reads {_META_VERSION}: use the broker that wrote it"
        )
    if stored["broker.id"] != str(broker_id):
        raise errors.StartupError(
            f"{path} belongs to broker {stored['broker.id']}, this is broker {broker_id}: set broker.id or log.dirs to match"
        )
    was_in_cluster = stored.get(_IN_CLUSTER) == "true"
    if was_in_cluster and not in_cluster:
        raise errors.StartupError(
            f"{path} belongs to a broker of a cluster, whose topics are in ZooKeeper: set zookeeper.connect, "
            "or log.dirs to another directory"
        )
    if in_cluster and not was_in_cluster:
        raise errors.StartupError(
            f"{path} belongs to a standalone broker, whose topics are not in ZooKeeper: `python -m logbus_broker join` takes "
            "them into a new cluster; or leave zookeeper.connect out, or set log.dirs to an empty directory"
        )
    if not stored.get("cluster.id") and not in_cluster:
        raise errors.StartupError(
            f"{path / META} has no cluster.id: restore it from a copy, or set log.dirs to another directory"
        )
    if cluster_id and stored.get("cluster.id") not in (None, "", cluster_id):
        raise errors.StartupError(
            f"{path} belongs to cluster {stored['cluster.id']}, this is cluster {cluster_id}: set cluster.id or log.dirs to match"
        )


def _read(filesystem: FileSystem, path: Path) -> dict[str, str] | None:
    try:
        return dict(_properties(filesystem.read_bytes(path / META).decode().splitlines()))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise errors.StartupError(
            f"{path / META} is not text: restore it from a copy, or set log.dirs to another directory"
        ) from None


def _write(filesystem: FileSystem, path: Path, stored: Mapping[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in stored.items())
    filesystem.replace_bytes(path / META, text.encode())


def _properties(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith("#"):
            yield name.strip(), value.strip()


def encode_id(value: UUID) -> str:
    """Kafka's form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


Job = Callable[[], Any]
Store = Callable[[Job, Callable[[Any, BaseException | None], None]], None]
Then = Callable[[BaseException | None], None]


class GroupedWrites:
    """A file written off the loop: a caller that changed its content is called back once it is on disk. One write at a time; what
    is requested while one runs goes with the next: a thousand changes take two writes, not a thousand, as with the flushes of a
    log.

    `snapshot` is called on the loop's thread and returns the job that writes the content as of that moment. All methods run on
    the loop's thread."""

    def __init__(self, store: Store, snapshot: Callable[[], Job]) -> None:
        self._store = store
        self._snapshot = snapshot
        self._asked: list[Then] = []
        self._is_writing = False

    def write(self, then: Then) -> None:
        """Write the current content; `then(None)` is called once it is on disk, `then(error)` if it could not be written."""
        self._asked.append(then)
        if not self._is_writing:
            self._begin()

    def until_written(self, go_on: Callable[[Any, BaseException | None], None]) -> None:
        """The same for a task that waits (`Until`)."""
        self.write(lambda error: go_on(None, error))

    def _begin(self) -> None:
        callbacks, self._asked = self._asked, []

        def written(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            for then in callbacks:
                try:
                    then(error)
                except Exception:  # a failing callback must not affect the others
                    logs.log_bug("a callback after a metadata write failed")
            if self._asked and not self._is_writing:
                self._begin()

        self._is_writing = True
        try:
            job = self._snapshot()
        except Exception as error:  # otherwise its waiters would wait forever
            logs.log_bug("encoding a metadata file failed")
            written(None, error)
        else:
            self._store(job, written)


class Files(Protocol):
    """The data directory's methods for small files; writing may run on any thread."""

    def read_json(self, name: str) -> Any | None: ...

    def write_json_atomic(self, name: str, value: Any) -> None: ...

    def write_atomic(self, name: str, data: bytes) -> None: ...


@contextmanager
def reading(name: str) -> Iterator[None]:
    """What this block does with the contents of a file fails with a StartupError if no broker has written them."""
    try:
        yield
    except (AttributeError, errors.InvalidTopic, KeyError, TypeError, ValueError) as error:
        raise errors.StartupError(f"{name} is malformed ({error!r}): restore it from a copy of the data directory") from error
