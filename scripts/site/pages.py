"""Every page of the site, written to disk: `python -m scripts.site FOLDER`. The site builder needs nothing else of this project.

    docs/**                                    as it is, links of the repository rewritten to links of the site
    README.md, CHANGELOG.md, CONTRIBUTING.md   the same; the first is its front page
    reference/*.md                             generated from code (PAGES)
    source/**                                  programs that a page links to, as pages

A file is written only if it has changed, so that a builder that watches the folder does no more work than necessary; files that
are no longer pages are removed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from scripts.site import commands, markdown, provider, reference

PROJECT = Path(__file__).parents[2]

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.command_page,
    "reference/pipelines.md": provider.pipelines_page,
    **{f"reference/{room}.md": partial(provider.room_page, room) for room in provider.ROOMS},
    "reference/broker-settings.md": reference.settings_page,
    "reference/ledger-tables.md": reference.ledger_page,
    "reference/addresses.md": reference.addresses_page,
    "reference/errors.md": reference.errors_page,
}


def write_pages(folder: Path) -> None:
    """Fills the folder from which the site is built."""
    contents = dict(everything())
    for page, content in contents.items():
        path = folder / page
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in [file for file in folder.rglob("*") if file.is_file() and str(file.relative_to(folder)) not in contents]:
        path.unlink()


def everything() -> Iterator[tuple[str, bytes]]:
    """Pages and the other files of the site, by their place in it."""
    texts = dict(written_pages())
    for page, (path, text) in texts.items():
        yield page, markdown.within_site(text, posixpath.dirname(path), page, is_file, exists).encode()
    for page, make in PAGES.items():
        yield page, make().encode()
    for path in linked_programs(texts.values()):
        yield f"{markdown.SOURCES}{path}.md", source_page(path).encode()
    docs = PROJECT / markdown.DOCS
    for file in docs.rglob("*"):
        if file.is_file() and file.suffix != ".md":
            yield str(file.relative_to(docs)), file.read_bytes()


def written_pages() -> Iterator[tuple[str, tuple[str, str]]]:
    """By place in the site: their path in the repository, and their text."""
    for path, page in markdown.OUTSIDE.items():
        yield page, (path, (PROJECT / path).read_text())
    docs = PROJECT / markdown.DOCS
    for file in sorted(docs.rglob("*.md")):
        page = str(file.relative_to(docs))
        yield page, (markdown.DOCS + page, file.read_text())


def is_file(path: str) -> bool:
    return (PROJECT / path).is_file()


def exists(path: str) -> bool:
    return (PROJECT / path).exists()


def linked_programs(pages: Iterable[tuple[str, str]]) -> list[str]:
    """Files outside of docs/ that pages (path and text) link to and that are not pages themselves."""
    paths = {target for path, text in pages for target in markdown.targets(text, posixpath.dirname(path))}
    return sorted(path for path in paths if is_file(path) and not path.startswith(markdown.DOCS) and path not in markdown.OUTSIDE)


def source_page(path: str) -> str:
    """A page that shows a program."""
    text, kind = (PROJECT / path).read_text(), Path(path).suffix.removeprefix(".") or "text"
    return f"# {path}\n\n````{kind}\n{text}````\n"
