"""The pages as written to disk, for any site builder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from scripts.site.pages import PAGES, PROJECT, write_pages


class Loader(yaml.SafeLoader):
    """Accepts a builder's file with custom YAML tags."""


Loader.add_multi_constructor("tag:", lambda loader, suffix, node: None)
CONFIG = yaml.load((PROJECT / "mkdocs.yml").read_text(), Loader)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "of_before.md").write_text("a page that is none any more")
    write_pages(folder)
    return folder


def test_every_page_and_picture_is_there_and_nothing_of_before(folder: Path) -> None:
    docs = PROJECT / "docs"
    pages = {str(file.relative_to(docs)) for file in docs.rglob("*") if file.is_file()} | set(PAGES)
    written = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert pages <= written
    others = {name for name in written - pages if not name.startswith("source/")}
    assert others == {"index.md", "changelog.md", "contributing.md"}


def test_no_link_leads_out_of_the_site(folder: Path) -> None:
    """The repository's links would: ../dags/x.py, docs/x.md."""
    leading = [
        f"{page.relative_to(folder)}: {target}"
        for page in folder.rglob("*.md")
        if "source" not in page.parts
        for target in re.findall(r"\]\(([^()\s:#/][^()\s:#]*)(?=[)#])", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert leading == []


def test_writing_again_touches_nothing(folder: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    write_pages(folder)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_the_menu_names_every_page(folder: Path) -> None:
    """Decisions are reached through their list, programs through the pages that show them."""
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")}
    named = set(re.findall(r"[\w/.-]+\.md", yaml.safe_dump(CONFIG["nav"])))
    assert {page for page in pages - named if not page.startswith(("decisions/", "source/"))} == set()
    assert named <= pages
