"""What `logbus acl` and `logbus user` take; tests/contract/test_secured_kafka.py changes ACLs and users with them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from logbus.cli import main


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("acl add --topic web read", "name whom (--user)"),
        ("acl add --user ann read", "name a resource"),
        ("acl add --user ann --topic web", "name what to do (read, write ...)"),
        ("acl add --user ann --topic web* read", "--topic web --resource-pattern-type prefixed means all whose names begin so"),
        ("acl add --user ann --group g write", "Write is nothing that can be done to a group: Describe, Read, Delete, All"),
        ("acl add --user ann --topic web fly", "'fly' is not an operation: All, Read"),
        ("acl add --allow-principal ann --topic web read", "write User:ann, or --user ann"),
        ("acl rm read", "name a resource or a user"),
        ("acl explain --user ann --topic web read write", "name one user, one resource and one operation"),
        ("user add ann", "as the first line of standard input; --write FILE makes one"),
    ],
)
def test_what_is_missing_or_could_never_match_is_named(words: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logbus.kafka.users.ScramUsers.mechanisms", lambda users: {})
    result = CliRunner().invoke(main, words.split())
    assert (result.exit_code, sentence in " ".join(result.stderr.split())) == (2, True), result.stderr
