"""Every page of the site, written to disk: `python -m scripts.site FOLDER`. What builds it needs to know nothing of us.

    docs/**                                    as it is, links of the repository rewritten to links of the site
    README.md, CHANGELOG.md, CONTRIBUTING.md   the same; the first is its front page
    reference/*.md                             made from code (PAGES)
    source/**                                  programs that a page links to, as pages

A file is written only where it changed, so that whoever watches the folder builds no more than he must; what is no page any more
is removed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from scripts.site import broker_settings, commands, failures, ledger_tables, links, provider, routes

PROJECT = Path(__file__).parents[2]
COMMANDS_OVERVIEW = "cli.md"

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": lambda: commands.command_page(overview=COMMANDS_OVERVIEW),
    "reference/pipelines.md": provider.pipelines_page,
    **{f"reference/{room}.md": partial(provider.room_page, room) for room in provider.ROOMS},
    "reference/broker-settings.md": broker_settings.settings_page,
    "reference/ledger-tables.md": ledger_tables.ledger_page,
    "reference/addresses.md": routes.routes_page,
    "reference/errors.md": failures.failures_page,
}


def write_pages(folder: Path) -> None:
    """Makes the folder what the site is built from."""
    wanted = dict(everything())
    for page, content in wanted.items():
        place = folder / page
        if not place.exists() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    for place in [one for one in folder.rglob("*") if one.is_file() and str(one.relative_to(folder)) not in wanted]:
        place.unlink()


def everything() -> Iterator[tuple[str, bytes]]:
    """Pages and what lies beside them, by their place in the site."""
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
    """By their place in the site: where they are in the repository, and their text."""
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
    """Files outside of docs/ that pages (where they are, and their text) link to and that are no pages themselves."""
    found = {target for path, text in pages for target in links.targets(text, posixpath.dirname(path))}
    return sorted(path for path in found if is_file(path) and not path.startswith(links.DOCS) and path not in links.OUTSIDE)


def source_page(path: str) -> str:
    """A program, to read."""
    text, kind = (PROJECT / path).read_text(), Path(path).suffix.removeprefix(".") or "text"
    return f"# {path}\n\n````{kind}\n{text}````\n"
