"""`meta.properties`: which broker and cluster own this data directory, in Kafka's own format. A directory of another broker,
cluster or format is refused before anything in it is touched.

A broker in a cluster has two more lines. `logbus.cluster` says that its topics are those registered in ZooKeeper: without it the
broker would take them for its own, or for strays. `directory.id` tells two disks with the same broker id apart. The cluster's id
comes from ZooKeeper, so a new directory has none until the broker has read it there (`join_cluster`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from broker.errors import StartupError
from broker.storage.filesystem import FileSystem

META = "meta.properties"
META_VERSION = "0"
IN_CLUSTER = "logbus.cluster"


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
        raise StartupError(
            f"{path} belongs to cluster {stored['cluster.id']}, ZooKeeper's is {cluster_id}: "
            "set zookeeper.connect or log.dirs to match"
        )


def belongs_to_cluster(filesystem: FileSystem, path: Path) -> bool:
    """Whether the logs in this data directory are replicas; False if its file does not say so."""
    try:
        return (_read(filesystem, path) or {}).get(IN_CLUSTER) == "true"
    except StartupError:
        return False


def _new_meta(broker_id: int, cluster_id: str | None, new_id: Callable[[], UUID], *, in_cluster: bool) -> dict[str, str]:
    stored = {"version": META_VERSION, "broker.id": str(broker_id)}
    if in_cluster:
        return {"cluster.id": cluster_id or "", **stored, IN_CLUSTER: "true", "directory.id": encode_id(new_id())}
    return {"cluster.id": cluster_id or encode_id(new_id()), **stored}


def _compare_meta(path: Path, stored: Mapping[str, str], broker_id: int, cluster_id: str | None, *, in_cluster: bool) -> None:
    for name in ("version", "broker.id"):
        if name not in stored:
            raise StartupError(f"{path / META} has no {name}: restore it from a copy, or set log.dirs to another directory")
    if stored["version"] != META_VERSION:
        raise StartupError(
            f"{path} has format version {stored['version']}, this broker knows {META_VERSION}: use the broker that wrote it"
        )
    if stored["broker.id"] != str(broker_id):
        raise StartupError(
            f"{path} belongs to broker {stored['broker.id']}, this is broker {broker_id}: set broker.id or log.dirs to match"
        )
    was_in_cluster = stored.get(IN_CLUSTER) == "true"
    if was_in_cluster and not in_cluster:
        raise StartupError(
            f"{path} belongs to a broker of a cluster, whose topics ZooKeeper knows: set zookeeper.connect, "
            "or log.dirs to another directory"
        )
    if in_cluster and not was_in_cluster:
        raise StartupError(
            f"{path} belongs to a broker that is alone, and ZooKeeper does not know its topics: leave zookeeper.connect out, "
            "or set log.dirs to an empty directory and copy the topics over with a consumer and a producer"
        )
    if not stored.get("cluster.id") and not in_cluster:
        raise StartupError(f"{path / META} names no cluster: restore it from a copy, or set log.dirs to another directory")
    if cluster_id and stored.get("cluster.id") not in (None, "", cluster_id):
        raise StartupError(
            f"{path} belongs to cluster {stored['cluster.id']}, this is cluster {cluster_id}: set cluster.id or log.dirs to match"
        )


def _read(filesystem: FileSystem, path: Path) -> dict[str, str] | None:
    try:
        return dict(_properties(filesystem.read_bytes(path / META).decode().splitlines()))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise StartupError(f"{path / META} is not text: restore it from a copy, or set log.dirs to another directory") from None


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
