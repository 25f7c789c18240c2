"""The tests and files that the documentation names as evidence exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PAGES = [*sorted(PROJECT.glob("docs/**/*.md")), PROJECT / "README.md", PROJECT / "CONTRIBUTING.md"]
TESTS = {
    name
    for path in (PROJECT / "tests").rglob("test_*.py")
    for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
ROOMS = ("broker/", "plugins/", "spark_jobs/", "tests/", "benchmarks/", "docs/", "dags/", "scripts/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert named <= TESTS, f"{page.name} names tests that are not there: {sorted(named - TESTS)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = {name for name in re.findall(r"`([\w./-]+)`", page.read_text()) if name.startswith(ROOMS)}
    made = {name for name in named if name.startswith("benchmarks/out")}
    missing = sorted(name for name in named - made if not (PROJECT / name).exists())
    assert not missing, f"{page.name} names files that are not there: {missing}"


def test_every_decision_is_in_the_index() -> None:
    index = PROJECT / "docs" / "decisions" / "README.md"
    listed = set(re.findall(r"\]\(([\w.-]+\.md)\)", index.read_text()))
    assert listed == {page.name for page in index.parent.glob("20*.md")}
