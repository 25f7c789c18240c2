"""The distributions' metadata: what is named in code and what pyproject.toml says are the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

from logbus import errors

PROJECT = Path(__file__).parents[2]
MINE = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
BROKERS = tomllib.loads((PROJECT / "broker" / "pyproject.toml").read_text())["project"]


def test_every_extra_that_an_error_names_is_there() -> None:
    assert set(errors.EXTRAS.values()) == set(MINE["optional-dependencies"])


def test_both_distributions_have_one_version() -> None:
    assert MINE["optional-dependencies"]["broker"] == [f"logbus-broker=={MINE['version']}"]
    assert BROKERS["version"] == MINE["version"]
    assert [BROKERS[key] == MINE[key] for key in ("license", "requires-python")] == [True, True]
