"""Credentials, ACLs and quotas survive a restart, in a file that only its owner reads and that holds no password."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from logbus_broker.cluster.security_store import LocalSecurity
from logbus_broker.disk.filesystem import FileSystem
from logbus_broker.errors import StartupError
from logbus_broker.log.log_directory import LogDirectory
from logbus_broker.security.state import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ScramCredential,
    ScramMechanism,
    SecurityState,
)

STATE = SecurityState(
    credentials={
        ("ann", ScramMechanism.SCRAM_SHA_512): ScramCredential(
            salt=b"\x00salt", iterations=4096, stored_key=b"stored\xff", server_key=b"server"
        )
    },
    acls=frozenset(
        {
            Acl(
                resource_type=AclResourceType.TOPIC,
                pattern_type=PatternType.PREFIXED,
                resource_name="web.",
                principal="User:ann",
                host="*",
                operation=AclOperation.READ,
                permission=AclPermission.ALLOW,
            )
        }
    ),
    quotas={frozenset({("user", "ann"), ("client-id", None)}): {"producer_byte_rate": 1024.0}},
)


@contextmanager
def opened(path: Path) -> Iterator[LogDirectory]:
    directory = LogDirectory.open(path, broker_id=0, filesystem=FileSystem(), new_id=uuid.uuid4)
    try:
        yield directory
    finally:
        directory.close(clean=True)


def test_what_is_stored_is_there_after_a_restart_and_for_its_owner_only(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        store = LocalSecurity(directory)
        assert store.state == SecurityState()
        for write in store.change(lambda _: STATE):
            assert store.state == SecurityState(), "in effect only once it is on disk"
            write()
        assert store.state == STATE
        assert not list(store.change(lambda state: state)), "nothing changed, nothing is written"
    with opened(tmp_path) as directory:
        assert LocalSecurity(directory).state == STATE
    assert (tmp_path / "security.json").stat().st_mode & 0o077 == 0


def test_a_file_that_no_broker_has_written_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        directory.write_json_atomic("security.json", {"acls": [{"resource_type": "TABLE"}], "credentials": [], "quotas": []})
        with pytest.raises(StartupError, match=r"security\.json is malformed"):
            LocalSecurity(directory)
