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

from scripts.site import broker_settings, commands, failures, ledger_tables, links, provider, routes

PROJECT = Path(__file__).parents[2]

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.command_page,
    "reference/pipelines.md": provider.pipelines_page,
    **{f"reference/{room}.md": partial(provider.room_page, room) for room in provider.ROOMS},
    "reference/broker-settings.md": broker_settings.settings_page,
    "reference/ledger-tables.md": ledger_tables.ledger_page,
    "reference/addresses.md": routes.routes_page,
    "reference/errors.md": failures.failures_page,
}


def write_pages(folder: Path) -> None:
    """Fills the folder from which the site is built."""
    wanted = dict(everything())
    for page, content in wanted.items():
        place = folder / page
        if not place.exists() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    for place in [one for one in folder.rglob("*") if one.is_file() and str(one.relative_to(folder)) not in wanted]:
        place.unlink()


def everything() -> Iterator[tuple[str, bytes]]:
    """Pages and the other files of the site, by their place in it."""
    texts = dict(written_pages())
    for page, (path, text) in texts.items():
        yield page, links.within_site(text, posixpath.dirname(path), page, is_file, exists).encode()
    for page, make in PAGES.items():
        yield page, make().encode()
    for path in linked_programs(texts.values()):
        yield f"{links.SOURCES}{path}.md", source_page(path).encode()
    docs = PROJECT / links.DOCS
    for file in docs.rglob("*"):
        if file.is_file() and file.suffix != ".md":
            yield str(file.relative_to(docs)), file.read_bytes()


def written_pages() -> Iterator[tuple[str, tuple[str, str]]]:
    """By place in the site: their path in the repository, and their text."""
    for path, page in links.OUTSIDE.items():
        yield page, (path, (PROJECT / path).read_text())
    docs = PROJECT / links.DOCS
    for file in sorted(docs.rglob("*.md")):
        page = str(file.relative_to(docs))
        yield page, (links.DOCS + page, file.read_text())


def is_file(path: str) -> bool:
    return (PROJECT / path).is_file()


def exists(path: str) -> bool:
    return (PROJECT / path).exists()


def linked_programs(pages: Iterable[tuple[str, str]]) -> list[str]:
    """Files outside of docs/ that pages (path and text) link to and that are not pages themselves."""
    found = {target for path, text in pages for target in links.targets(text, posixpath.dirname(path))}
    return sorted(path for path in found if is_file(path) and not path.startswith(links.DOCS) and path not in links.OUTSIDE)


def source_page(path: str) -> str:
    """A page that shows a program."""
    text, kind = (PROJECT / path).read_text(), Path(path).suffix.removeprefix(".") or "text"
    return f"# {path}\n\n````{kind}\n{text}````\n"
