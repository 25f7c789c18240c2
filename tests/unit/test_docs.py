"""What the docs promise exists: the tests they name, the settings they list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.setting_names import setting_names

PROJECT = Path(__file__).parents[2]
FAULTS = (PROJECT / "docs" / "faults.md").read_text()
NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", FAULTS)))


@pytest.mark.parametrize(("file", "name"), NAMED_TESTS)
def test_every_test_that_the_table_of_faults_names_exists(file: str, name: str) -> None:
    tree = ast.parse((PROJECT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_of_the_table_of_faults_names_a_test() -> None:
    rows = [line for line in FAULTS.split("## Limits")[0].splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 36
    assert all("::test_" in row.split(" | ")[2] for row in rows)


def test_every_limit_that_is_listed_is_a_setting() -> None:
    listed = re.findall(r"`([a-z][a-z.]+)`", "".join(re.findall(r"^\| (`.*?) \|", FAULTS.split("## Limits")[1], re.MULTILINE)))
    assert len(listed) >= 10
    assert set(listed) <= set(setting_names())
