"""The file of kafka-reassign-partitions, as written by us and by others."""

from __future__ import annotations

import json

import pytest
from logbus.errors import UserError
from logbus.kafka.reassignments import ReassignmentFile

ROW = {"topic": "t", "partition": 0, "replicas": [1, 2]}


def text(*rows: object, **others: object) -> str:
    return json.dumps({"partitions": list(rows), **others})


def test_what_is_written_is_read() -> None:
    file = ReassignmentFile(targets={("t", 0): (1, 2), ("a.b", 11): (3,)})
    assert ReassignmentFile.from_json(file.to_json()) == file
    assert json.loads(file.to_json()) == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]},
            {"topic": "a.b", "partition": 11, "replicas": [3], "log_dirs": ["any"]},
        ],
    }


def test_a_file_of_kafkas_needs_neither_a_version_nor_log_dirs() -> None:
    assert ReassignmentFile.from_json(text(ROW)).targets == {("t", 0): (1, 2)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not what kafka-reassign-partitions takes"),
        ("[]", "not what kafka-reassign-partitions takes"),
        ("{}", "lacks 'partitions'"),
        (text({"topic": "t"}), "lacks 'partition'"),
        (text(), "names no partition"),
        (text(ROW, version=2), "version 2 of the file is not known"),
        (text(ROW, ROW), "t-0 is in the file twice"),
        (text({**ROW, "replicas": []}), "t-0: replicas .* is empty"),
        (text({**ROW, "replicas": [1, 1]}), "names a broker twice"),
        (text({**ROW, "log_dirs": ["/disk1", "any"]}), "only log_dirs of .any."),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_what_is_wrong(content: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ReassignmentFile.from_json(content)
