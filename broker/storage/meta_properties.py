"""`meta.properties`: whose data directory this is, in Kafka's own form. A directory of another broker, cluster or format is
refused before anything in it is touched.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

from broker.errors import StartupError
from broker.storage.filesystem import FileSystem

META = "meta.properties"
META_VERSION = "0"


def check_meta(filesystem: FileSystem, path: Path, broker_id: int, cluster_id: str | None, new_id: Callable[[], UUID]) -> str:
    """The directory's cluster id; a new directory becomes this broker's."""
    try:
        lines = filesystem.read_bytes(path / META).decode().splitlines()
    except FileNotFoundError:
        cluster_id = cluster_id or encode_id(new_id())
        text = f"cluster.id={cluster_id}\nversion={META_VERSION}\nbroker.id={broker_id}\n"
        filesystem.replace_bytes(path / META, text.encode())
        return cluster_id
    except UnicodeDecodeError:
        raise StartupError(f"{path / META} is not text: restore it from a copy, or set log.dirs to another directory") from None
    return _compare_meta(path, dict(_properties(lines)), broker_id, cluster_id)


def _compare_meta(path: Path, stored: dict[str, str], broker_id: int, cluster_id: str | None) -> str:
    if stored.get("version") != META_VERSION:
        raise StartupError(
            f"{path} has format version {stored.get('version')}, this broker knows {META_VERSION}: use the broker that wrote it"
        )
    if stored.get("broker.id") != str(broker_id):
        raise StartupError(
            f"{path} belongs to broker {stored.get('broker.id')}, this is broker {broker_id}: set broker.id or log.dirs to match"
        )
    if not stored.get("cluster.id"):
        raise StartupError(f"{path / META} names no cluster: restore it from a copy, or set log.dirs to another directory")
    if cluster_id and stored["cluster.id"] != cluster_id:
        raise StartupError(
            f"{path} belongs to cluster {stored['cluster.id']}, this is cluster {cluster_id}: set cluster.id or log.dirs to match"
        )
    return stored["cluster.id"]


def _properties(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith("#"):
            yield name.strip(), value.strip()


def encode_id(value: UUID) -> str:
    """Kafka's form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
