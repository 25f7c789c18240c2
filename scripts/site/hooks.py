"""What mkdocs calls while it builds the site (`hooks:` in mkdocs.yml): adds generated pages, rewrites links, completes the menu.

    README.md, CHANGELOG.md, CONTRIBUTING.md   pages of the site as they are; the first is its front page
    reference/*.md                             made from code at each build (PAGES)
    source/**                                  programs that a page links to, as pages

Nothing is written into docs/: the pages exist during the build only.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site import broker_settings, commands, failures, ledger_tables, links, provider, routes

PROJECT = Path(__file__).parents[2]
COMMANDS_OVERVIEW = "cli.md"
DECISIONS = "decisions/"
MORE = "More"  # the section for pages that the menu does not name


def overview_of_commands() -> str | None:
    return COMMANDS_OVERVIEW if (PROJECT / links.DOCS / COMMANDS_OVERVIEW).exists() else None


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": lambda: commands.command_page(overview=overview_of_commands()),
    "reference/pipelines.md": provider.pipelines_page,
    **{f"reference/{room}.md": partial(provider.room_page, room) for room in provider.ROOMS},
    "reference/broker-settings.md": broker_settings.settings_page,
    "reference/ledger-tables.md": ledger_tables.ledger_page,
    "reference/addresses.md": routes.routes_page,
    "reference/errors.md": failures.failures_page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is not in docs/, and puts what the menu leaves out where it can be found."""
    for path, page in links.OUTSIDE.items():
        files.append(File.generated(config, page, content=(PROJECT / path).read_text()))
    for page, make in PAGES.items():
        files.append(File.generated(config, page, content=make()))
    for path in linked_programs(files):
        files.append(File.generated(config, f"{links.SOURCES}{path}.md", content=source_page(path)))
    complete_menu(config, uris(files))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become links of the site."""
    uri = page.file.src_uri
    if uri in PAGES or uri.startswith(links.SOURCES):
        return markdown
    return links.within_site(markdown, home_of(uri), uri, is_file, exists)


def uris(files: Files) -> list[str]:
    return [file.src_uri for file in files.documentation_pages()]


def home_of(uri: str) -> str:
    """The folder in the repository that a page's links start from."""
    outside = {page: path for path, page in links.OUTSIDE.items()}
    return posixpath.dirname(outside[uri] if uri in outside else links.DOCS + uri)


def is_file(path: str) -> bool:
    return (PROJECT / path).is_file()


def exists(path: str) -> bool:
    return (PROJECT / path).exists()


def linked_programs(files: Files) -> list[str]:
    """Files outside of docs/ that pages link to and that are no pages themselves."""
    found = {
        target
        for file in files.documentation_pages()
        if file.src_uri not in PAGES
        for target in links.targets(file.content_string, home_of(file.src_uri))
    }
    return sorted(path for path in found if is_file(path) and not path.startswith(links.DOCS) and path not in links.OUTSIDE)


def source_page(path: str) -> str:
    """A program, to read."""
    text, kind = (PROJECT / path).read_text(), Path(path).suffix.removeprefix(".") or "text"
    return f"# {path}\n\n````{kind}\n{text}````\n"


def complete_menu(config: MkDocsConfig, pages: Iterable[str]) -> None:
    """Pages that the menu does not name go into a section of their own, so that a new page is never lost."""
    assert config.nav is not None
    named = set(named_pages(config.nav))
    lost = [page for page in pages if page not in named and not page.startswith((DECISIONS, links.SOURCES))]
    if lost:
        config.nav.append({MORE: sorted(lost)})


def named_pages(menu: Any) -> Iterable[str]:
    """Every page in a menu, however deep."""
    if isinstance(menu, str):
        yield menu
    elif isinstance(menu, dict):
        for below in menu.values():
            yield from named_pages(below)
    else:
        for below in menu:
            yield from named_pages(below)
