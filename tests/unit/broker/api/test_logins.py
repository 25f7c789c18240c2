"""Users' credentials: changed and described by clients as in Apache Kafka, and given to the users of a file."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api import users as logins
from logbus_broker.errors import StartupError
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.framing import Origin
from logbus_broker.security import sasl
from logbus_broker.security.state import ScramMechanism, SecurityState

from tests.support.engine import Harness

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
ALTER, DESCRIBE = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
OK, NO_SUCH_MECHANISM, NOT_ALLOWED, NONE, TWICE, UNACCEPTABLE = 0, 33, 31, 91, 92, 93
PASSWORD = "the one and only"


def upsertion(name: str = "ann", mechanism: int = SHA_256, iterations: int = 4_096, salt: bytes = b"salt", **changed: Any) -> Any:
    salted = sasl.salted_password(SHA_512 if mechanism == SHA_512 else SHA_256, PASSWORD, salt or b"-", 4_096)
    fields = {"salted_password": salted, **changed}
    row = request_class(ALTER).ScramCredentialUpsertion
    return row(name=name, mechanism=mechanism, iterations=iterations, salt=salt, **fields)


def deletion(name: str = "ann", mechanism: int = SHA_256) -> Any:
    return request_class(ALTER).ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(broker: Harness, *rows: Any) -> dict[str, int]:
    deletions = [row for row in rows if not hasattr(row, "salt")]
    upsertions = [row for row in rows if hasattr(row, "salt")]
    answer = broker.ask(ALTER, 0, deletions=deletions, upsertions=upsertions)
    return {row.user: row.error_code for row in answer.results}


def describe(broker: Harness, *users: str) -> Any:
    answer = broker.ask(DESCRIBE, 0, users=[request_class(DESCRIBE).UserName(name=name) for name in users] or None)
    rows = {
        row.user: row.error_code or {info.mechanism: info.iterations for info in row.credential_infos} for row in answer.results
    }
    return answer.error_code or rows


def test_credentials_are_changed_and_described_with_kafkas_codes(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    assert describe(broker) == {}
    assert alter(broker, upsertion(), upsertion(mechanism=SHA_512, iterations=16_384), upsertion("bob")) == {"ann": OK, "bob": OK}
    assert describe(broker) == {"ann": {1: 4_096, 2: 16_384}, "bob": {1: 4_096}}
    assert describe(broker, "bob", "eve", "ann", "ann") == {"bob": {1: 4_096}, "eve": NONE, "ann": TWICE}
    cases: list[tuple[int, list[Any]]] = [
        (UNACCEPTABLE, [upsertion(iterations=4_095)]),
        (UNACCEPTABLE, [upsertion(iterations=16_385)]),
        (UNACCEPTABLE, [upsertion(salt=b"")]),
        (UNACCEPTABLE, [upsertion(salted_password=b"short")]),
        (NO_SUCH_MECHANISM, [upsertion(mechanism=9)]),
        (NO_SUCH_MECHANISM, [deletion(mechanism=0)]),
        (TWICE, [upsertion(), upsertion()]),
        (TWICE, [upsertion(), deletion()]),
        (UNACCEPTABLE, [deletion(mechanism=SHA_512), upsertion(iterations=1)]),
    ]
    for code, rows in cases:
        assert alter(broker, *rows, upsertion("joe")) == {"ann": code, "joe": OK}
    assert alter(broker, upsertion("")) == {"": UNACCEPTABLE}
    assert describe(broker, "ann") == {"ann": {1: 4_096, 2: 16_384}}, "one that is refused changes nothing of the user"
    assert alter(broker, deletion(), deletion("bob")) == {"ann": OK, "bob": OK}
    assert alter(broker, deletion(), upsertion("bob", iterations=8_192)) == {"ann": NONE, "bob": OK}
    assert describe(broker, "ann", "bob") == {"ann": {2: 16_384}, "bob": {1: 8_192}}
    broker.crash()
    assert describe(Harness(tmp_path), "ann", "bob") == {"ann": {2: 16_384}, "bob": {1: 8_192}}


def test_what_lies_on_the_disk_is_no_password(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    alter(broker, upsertion(salt=b"a salt of its own"))
    broker.engine.add_users({"bob": "of-a-file"}, lambda error: None)
    broker.settle()
    salted = sasl.salted_password(SHA_256, PASSWORD, b"a salt of its own", 4_096)
    contents = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert base64.b64encode(b"a salt of its own") in contents
    for secret in (PASSWORD.encode(), salted, b"of-a-file"):
        assert secret not in contents
        assert base64.b64encode(secret).rstrip(b"=") not in contents
        assert secret.hex().encode() not in contents


def test_only_who_may_sees_or_changes_credentials(tmp_path: Path) -> None:
    broker = Harness(
        tmp_path,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:admin",
        allow_everyone_if_no_acl_found=True,
    )
    broker.origin = Origin("127.0.0.1", "SASL_SSL", "User:ann")
    assert describe(broker) == describe(broker, "ann") == NOT_ALLOWED
    assert alter(broker, upsertion("ann"), deletion("bob")) == {"ann": NOT_ALLOWED, "bob": NOT_ALLOWED}
    broker.origin = Origin("127.0.0.1", "SASL_SSL", "User:admin")
    assert describe(broker) == {}


def test_users_of_a_file_get_a_credential_once(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# ours\n\nann = with spaces \nbob=a=b\n")
    path.chmod(0o600)
    passwords = logins.read_users_file(path)
    assert passwords == {"ann": " with spaces ", "bob": "a=b"}
    state = logins.add_users(passwords)(SecurityState())
    assert state.nobody_key
    assert set(state.credentials) == {(user, mechanism) for user in ("ann", "bob") for mechanism in ScramMechanism}
    assert sasl.is_password(state.credentials["bob", SHA_512], SHA_512, "a=b")
    assert logins.add_users({"ann": "another"})(state) is state, "it may have been changed since"


@pytest.mark.parametrize(
    ("mode", "text", "says"),
    [
        (0o640, "ann=secret", "others may read the passwords in .*: chmod 600"),
        (0o600, "secret", "line 1: expected NAME=PASSWORD"),
        (0o600, "ann=ok\n=secret", "line 2: expected NAME=PASSWORD"),
        (0o600, "ann=", "line 1: expected NAME=PASSWORD"),
        (None, "", "cannot read"),
    ],
)
def test_a_file_of_users_that_cannot_be_used_is_named(tmp_path: Path, mode: int | None, text: str, says: str) -> None:
    path = tmp_path / "users"
    if mode is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(StartupError, match=says) as refusal:
        logins.read_users_file(path)
    assert "secret" not in str(refusal.value)
